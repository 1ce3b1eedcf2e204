"""outbox-latency: from the begin of a commit to the acknowledgement of its message, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg

from benchmarks.bounds.kafka import RawProducer, create_topic
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_most, p50, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.outboxes import Acknowledged, Backlog
from benchmarks.workloads.servers import server
from headrace.log import open_log
from headrace.model import NewRecord
from headrace.outbox import OutboxSettings, Relay

TOPIC = "latency"
MESSAGES = 300


class LatencyContest:
    """Both sides commit a row and wait until Kafka has acknowledged a record of the same size."""

    def __init__(self, backlog: Backlog, log: Acknowledged, producer: RawProducer, url: str, count: int) -> None:
        self._backlog = backlog
        self._log = log
        self._producer = producer
        self._connection = psycopg.connect(url)
        self._events = events(count)

    async def work(self) -> Readings:
        """Publish, commit, and wait for the relay's append to be acknowledged."""
        seen: list[float] = []
        for event in self._events:
            self._log.acknowledged.clear()
            with stopwatch() as watch:
                await asyncio.to_thread(self._backlog.publish_one, TOPIC, event)
                await self._log.acknowledged.wait()
            seen.append(watch.seconds)
        return {"commit_to_ack_p50_ms": p50(seen)}

    async def bound(self) -> Readings:
        """Insert the same row, commit, and produce the record."""
        return {"commit_to_ack_p50_ms": p50(self._commit_and_produce())}

    def _commit_and_produce(self) -> Sequence[float]:
        seen: list[float] = []
        for event in self._events:
            with stopwatch() as watch:
                self._connection.execute("INSERT INTO bench_rows (message) VALUES (%s)", (event.value,))
                self._connection.commit()
                self._producer.wait(self._producer.start(NewRecord(f"raw-{TOPIC}", event.key, event.value)))
            seen.append(watch.seconds)
        return seen

    def prepare(self) -> None:
        """Make the bound's table."""
        self._connection.execute("CREATE TABLE bench_rows (id bigserial PRIMARY KEY, message bytea)")
        self._connection.commit()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    stage.folder.chmod(0o755)  # PostgreSQL, started by root, runs as another user
    with server("kafka", stage) as kafka, server("postgres", stage) as postgres:
        for topic in (TOPIC, f"raw-{TOPIC}"):
            create_topic(kafka.address, topic, partitions=1)
        backlog = Backlog(postgres.url, count=1)
        log = Acknowledged(await open_log(kafka.url))
        producer = RawProducer(kafka.address, linger_ms=1.0)
        contest = LatencyContest(backlog, log, producer, postgres.url, stage.count(MESSAGES, least=20))
        contest.prepare()
        try:
            async with Relay(postgres.url, log, settings=OutboxSettings()):
                yield Contest(contest.work, contest.bound)
        finally:
            contest.close()
            producer.close()
            await log.close()
            backlog.close()


BENCH = Bench(
    name="outbox-latency",
    work="one message at a time: commit to acknowledgement, PostgreSQL to Kafka, relay in the same process",
    measures=(
        Measure(
            "commit_to_ack_p50_ms",
            unit="ms",
            against="a commit of the same row, then one raw produce",
            target=at_most(3),
        ),
    ),
    setup=setup,
)
