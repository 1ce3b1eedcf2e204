"""read-small: one short journal that is replicated whole, again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.journal_rows import JournalRows
from benchmarks.bounds.kafka import RawProducer, create_topic
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most, p50, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.journals import KEYSPACE, append_to, appends_to, ground, opened, read_all, replicate
from headrace.journal import Journal
from headrace.model import NewRecord
from headrace.protocol.actions import Mark
from headrace.protocol.headers import encode_action

TOPIC = "journals"
RAW_TOPIC = "raw-journals"
EVENTS = 100
READS = 300


class SmallContest:
    """A read must learn from the log that nothing is missing, and get the rows; the bound does just these two."""

    def __init__(self, journal: Journal, rows: JournalRows, producer: RawProducer, *, id_: str, reads: int) -> None:
        self._journal = journal
        self._rows = rows
        self._producer = producer
        self._id = id_
        self._reads = reads
        headers = encode_action(Mark(id="0" * 32))
        self._mark = NewRecord(RAW_TOPIC, id_.encode(), None, headers, partition=0)

    async def work(self) -> Readings:
        """Read the journal, one read after the other."""
        seen = []
        for _ in range(self._reads):
            with stopwatch() as watch:
                await read_all(self._journal, self._id, expected=EVENTS)
            seen.append(watch.seconds)
        return {"read_p50_ms": p50(seen)}

    async def bound(self) -> Readings:
        """Produce a record as large as a Mark, and select the rows meanwhile."""
        return {"read_p50_ms": p50([self._produce_and_select() for _ in range(self._reads)])}

    def _produce_and_select(self) -> float:
        with stopwatch() as watch:
            response = self._rows.start(TOPIC, self._id)
            delivery = self._producer.start(self._mark)
            count = self._rows.wait(response)
            self._producer.wait(delivery)
        if count != EVENTS:
            raise BenchFailed(f"{EVENTS} events were replicated but {count} rows selected")
        return watch.seconds


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        create_topic(on.kafka.address, RAW_TOPIC, partitions=1)
        journal = await opened(on.hr, TOPIC, partitions=1)
        (append,) = appends_to(events(EVENTS, keys=1), size=EVENTS, numbers={})
        await append_to(journal, [append], in_flight=1)
        await replicate(on.hr, TOPIC)
        rows = JournalRows(on.cassandra.host, on.cassandra.port, KEYSPACE)
        producer = RawProducer(on.kafka.address, linger_ms=on.hr.settings.log.kafka.linger_ms)
        try:
            contest = SmallContest(journal, rows, producer, id_=append.id, reads=stage.count(READS))
            yield Contest(contest.work, contest.bound)
        finally:
            producer.close()
            rows.close()


BENCH = Bench(
    name="read-small",
    work="journal.read of a replicated journal of 100 events, one at a time",
    measures=(
        Measure(
            "read_p50_ms",
            unit="ms",
            against="one produce and one select of the same rows, in parallel",
            target=at_most(1.5),
        ),
    ),
    setup=setup,
)
