"""read-replicated: one long journal that is replicated whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.journal_rows import JournalRows
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.journals import KEYSPACE, append_to, appends_to, ground, opened, read_all, replicate
from headrace.journal import Journal

TOPIC = "journals"
EVENTS = 10_000
APPEND_SIZE = 100
PAGE_SIZE = 500


class LongContest:
    """Both sides read the same rows again and again."""

    def __init__(self, journal: Journal, rows: JournalRows, *, id_: str, count: int) -> None:
        self._journal = journal
        self._rows = rows
        self._id = id_
        self._count = count

    async def work(self) -> Readings:
        """Read the journal."""
        with stopwatch() as watch:
            await read_all(self._journal, self._id, expected=self._count)
        return {"events_per_s": watch.rate(self._count)}

    async def bound(self) -> Readings:
        """Select its rows, in pages as large as the store's."""
        with stopwatch() as watch:
            count = self._rows.select(TOPIC, self._id, page_size=PAGE_SIZE)
        if count != self._count:
            raise BenchFailed(f"{self._count} events were replicated but {count} rows selected")
        return {"events_per_s": watch.rate(count)}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        journal = await opened(on.hr, TOPIC, partitions=1)
        appends = appends_to(events(stage.count(EVENTS), keys=1), size=APPEND_SIZE, numbers={})
        await append_to(journal, appends, in_flight=1)
        await replicate(on.hr, TOPIC)
        rows = JournalRows(on.cassandra.host, on.cassandra.port, KEYSPACE)
        try:
            last = appends[-1]
            contest = LongContest(journal, rows, id_=last.id, count=last.events[-1].seq_nr)
            yield Contest(contest.work, contest.bound)
        finally:
            rows.close()


BENCH = Bench(
    name="read-replicated",
    work="journal.read of a replicated journal of 10 000 events, Cassandra",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="cassandra-driver's paged select of the same rows",
            target=at_least(0.7),
        ),
    ),
    setup=setup,
)
