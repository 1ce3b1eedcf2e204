"""replicate-embedded: journals from the embedded log into the embedded store, by the shipped job on Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import headrace
from benchmarks.bounds.event_rows import EventRows
from benchmarks.bounds.row_writers import journal_row
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.events import events
from benchmarks.workloads.journals import opened
from benchmarks.workloads.replications import Backlog, Job, filled, running, session
from headrace.pipeline import Endpoints

TOPIC = "journals"
EVENTS = 200_000
FIRST = 2_000
PARTITIONS = 4
KEYS = 1000
GROUP_SIZE = 20_000


class ReplicateEmbeddedContest:
    """Each round replicates further events; the bound puts as many rows into a file of its own."""

    def __init__(self, job: Job, address: str, backlog: Backlog, rows: EventRows, *, count: int) -> None:
        self._job = job
        self._address = address
        self._backlog = backlog
        self._rows = rows
        self._count = count
        self._written = 0
        self.first_batch_s = 0.0

    async def work(self) -> Readings:
        """Give the job events; its time is that of the micro-batches that carried them."""
        await filled(self._address, self._backlog.take(self._count))
        batches = await self._job.carried(self._count)
        return {
            "events_per_s": self._count / sum(batch.took_s for batch in batches),
            "first_batch_s": self.first_batch_s,
        }

    async def bound(self) -> Readings:
        """Insert rows that were made before."""
        first, self._written = self._written, self._written + self._count
        made = events(self._count, keys=KEYS)
        numbered = (
            ((first + nr) % KEYS, journal_row(first + nr, made[nr].value, keys=KEYS)) for nr in range(len(made))
        )
        values = self._rows.values(list(numbered))
        with stopwatch() as watch:
            await asyncio.to_thread(self._rows.insert, values, group_size=GROUP_SIZE)
        return {"events_per_s": watch.rate(self._count)}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    address = f"embedded:{stage.folder / 'data'}"
    async with headrace.connect(address) as hr:
        await opened(hr, TOPIC, partitions=PARTITIONS)
    backlog = Backlog(TOPIC, partitions=PARTITIONS, keys=KEYS)
    rows = EventRows(stage.folder / "raw.db")
    try:
        await filled(address, backlog.take(FIRST))
        with session(stage) as spark:
            async with running(spark, Endpoints.of(address), [TOPIC]) as job:
                count = stage.count(EVENTS, least=5000)
                contest = ReplicateEmbeddedContest(job, address, backlog, rows, count=count)
                first, *_ = await job.carried(FIRST + 1)  # and the mark that made the topic
                contest.first_batch_s = first.took_s
                yield Contest(contest.work, contest.bound)
    finally:
        rows.close()


BENCH = Bench(
    name="replicate-embedded",
    work="200 000 events, embedded log → embedded store by the shipped job, steady state",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="sqlite3 bulk insert of the same rows",
            target=at_least(0.7),
        ),
        Measure("first_batch_s", unit="s"),
    ),
    setup=setup,
)
