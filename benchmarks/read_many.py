"""read-many: a thousand journals recovered at once, half of each replicated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.journal_rows import JournalRows
from benchmarks.bounds.kafka import RawConsumer
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import KEYS, events
from benchmarks.workloads.journals import KEYSPACE, append_to, appends_to, ground, many, opened, read_all, replicate
from headrace.app import Headrace
from headrace.journal import HeadCache, Journal

TOPIC = "journals"
PARTITIONS = 4
EVENTS = 20
IN_FLIGHT = 100


class ManyContest:
    """Both sides get the first half of every journal from the store, and the second half from the log."""

    def __init__(self, hr: Headrace, rows: JournalRows, consumer: RawConsumer, ids: list[str]) -> None:
        self._hr = hr
        self._rows = rows
        self._consumer = consumer
        self._ids = ids
        self._ranges: dict[int, tuple[int, int]] = {}

    async def write(self, journal: Journal) -> None:
        """Write the journals, and replicate what is there after the first half."""
        numbers: dict[str, int] = {}
        half = events(EVENTS // 2 * len(self._ids), keys=len(self._ids))
        await append_to(journal, appends_to(half, size=1, numbers=numbers))
        await replicate(self._hr, TOPIC)
        starts = self._consumer.ends(TOPIC, range(PARTITIONS))
        await append_to(journal, appends_to(half, size=1, numbers=numbers))
        ends = self._consumer.ends(TOPIC, range(PARTITIONS))
        self._ranges = {nr: (starts[nr], ends[nr]) for nr in starts}

    async def work(self) -> Readings:
        """Read all journals, as a process does that has just started: its head cache knows nothing yet."""
        cache = HeadCache(self._hr.log, self._hr.store.reader)
        journal = Journal(self._hr.log, self._hr.store, TOPIC, cache=cache)
        await journal.mark("set-up", "the topic is known")
        try:
            with stopwatch() as watch:
                await many(lambda id_: read_all(journal, id_, expected=EVENTS), self._ids, in_flight=IN_FLIGHT)
        finally:
            await cache.close()
        return {"journals_per_s": watch.rate(len(self._ids))}

    async def bound(self) -> Readings:
        """Select the rows of all journals, then consume what the log has of them."""
        with stopwatch() as watch:
            count = self._rows.select_many(TOPIC, self._ids)
            count += self._consumer.consume(TOPIC, self._ranges)
        if count != EVENTS * len(self._ids):
            raise BenchFailed(f"{EVENTS * len(self._ids)} events were appended but {count} read")
        return {"journals_per_s": watch.rate(len(self._ids))}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        journal = await opened(on.hr, TOPIC, partitions=PARTITIONS)
        rows = JournalRows(on.cassandra.host, on.cassandra.port, KEYSPACE)
        consumer = RawConsumer(on.kafka.address)
        try:
            ids = [event.key.decode() for event in events(stage.count(KEYS))]
            contest = ManyContest(on.hr, rows, consumer, ids)
            await contest.write(journal)
            yield Contest(contest.work, contest.bound)
        finally:
            consumer.close()
            rows.close()


BENCH = Bench(
    name="read-many",
    work=f"journal.read of 1000 journals of {EVENTS} events, half of each replicated, {IN_FLIGHT} at a time",
    measures=(
        Measure(
            "journals_per_s",
            unit="journals/s",
            against="cassandra-driver's selects of the same rows, 100 in flight, then a raw consumer over the rest",
            target=at_least(0.5),
        ),
    ),
    setup=setup,
)
