"""outbox: the relay carries a backlog from PostgreSQL to Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import create_topic
from benchmarks.bounds.outbox_loops import PollingLoop, RawLoop
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.outboxes import Backlog
from benchmarks.workloads.servers import server
from headrace.log import Log, open_log
from headrace.outbox import OutboxSettings, Relay

TOPIC = "outbox"
MESSAGES = 100_000
# A hand-written polling loop waits for each acknowledgement; a part of the work is enough to measure its rate.
PEER_SHARE = 0.02


class OutboxContest:
    """Each side finds the same backlog in the same table, sends it, and leaves the table empty."""

    def __init__(self, backlog: Backlog, log: Log, raw: RawLoop, peer: PollingLoop) -> None:
        self._backlog = backlog
        self._log = log
        self._raw = raw
        self._peer = peer

    async def work(self) -> Readings:
        """Run a relay with the default settings until nothing is pending."""
        self._backlog.fill(TOPIC)
        relay = Relay(self._backlog.url, self._log, settings=OutboxSettings())
        with stopwatch() as watch:
            async with relay:
                await self._backlog.drained()
        self._check()
        return {"messages_per_s": watch.rate(self._backlog.count), "against_polling": watch.rate(self._backlog.count)}

    async def bound(self) -> Readings:
        """Select, produce, delete, a thousand at a time; and the loop that people write."""
        self._backlog.fill(f"raw-{TOPIC}")
        with stopwatch() as watch:
            self._raw.run()
        self._check()
        count = self._backlog.fill(f"raw-{TOPIC}", share=PEER_SHARE)
        with stopwatch() as peer:
            self._peer.run()
        return {"messages_per_s": watch.rate(self._backlog.count), "against_polling": peer.rate(count)}

    def _check(self) -> None:
        if left := self._backlog.left():
            raise BenchFailed(f"{left} messages are left")


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    stage.folder.chmod(0o755)  # PostgreSQL, started by root, runs as another user
    with server("kafka", stage) as kafka, server("postgres", stage) as postgres:
        for topic in (TOPIC, f"raw-{TOPIC}"):
            create_topic(kafka.address, topic, partitions=4)
        backlog = Backlog(postgres.url, count=stage.count(MESSAGES, least=1000))
        log = await open_log(kafka.url)
        raw, peer = RawLoop(postgres.url, kafka.address), PollingLoop(postgres.url, kafka.address)
        try:
            contest = OutboxContest(backlog, log, raw, peer)
            yield Contest(contest.work, contest.bound)
        finally:
            raw.close()
            peer.close()
            await log.close()
            backlog.close()


BENCH = Bench(
    name="outbox",
    work="relay of 100 000 messages, PostgreSQL to Kafka, default settings",
    measures=(
        Measure(
            "messages_per_s",
            unit="messages/s",
            against="a raw loop of select, produce, flush and delete of the same 1000 rows",
            target=at_least(0.8),
        ),
        Measure(
            "against_polling",
            unit="messages/s",
            against="a polling loop as written by hand: one produce, one flush, one delete a message",
        ),
    ),
    setup=setup,
)
