"""tags-read: one tag of 20 000 replicated events, read from the start to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.tag_rows import TagRows
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.journals import KEYSPACE, ground, opened
from headrace.app import Headrace
from headrace.journal import Topology, replicate_batch
from headrace.model import Event, TopicPartition
from headrace.tags import TagWriter

TOPIC = "tagged"
TAG = "green"
EVENTS = 20_000
AN_APPEND = 100


class ReadContest:
    """Both sides read the same rows again and again."""

    def __init__(self, hr: Headrace, rows: TagRows, *, count: int) -> None:
        self._hr = hr
        self._rows = rows
        self._count = count

    async def work(self) -> Readings:
        """Query the tag."""
        count = 0
        with stopwatch() as watch:
            async for _ in self._hr.events_by_tag(TAG):
                count += 1
        self._check(count)
        return {"events_per_s": watch.rate(count)}

    async def bound(self) -> Readings:
        """Select its rows, in pages as large as the query's."""
        buckets = await self._hr.store.tags.views.buckets(TAG)
        with stopwatch() as watch:
            count = self._rows.select(TAG, buckets, page_size=self._hr.settings.tags.page_size)
        self._check(count)
        return {"events_per_s": watch.rate(count)}

    def _check(self, count: int) -> None:
        if count != self._count:
            raise BenchFailed(f"{self._count} events were tagged but {count} read")


async def _fill(hr: Headrace, count: int) -> None:
    """Append tagged events and replicate them into the store."""
    journal = await opened(hr, TOPIC, partitions=1)
    for first in range(1, count + 1, AN_APPEND):
        numbers = range(first, min(first + AN_APPEND, count + 1))
        await journal.append("key", [Event(n, b"x" * 200, tags=(TAG,)) for n in numbers])
    layout = await Topology(hr.log, hr.store.settings, TOPIC).layout()
    writer, at = TagWriter(hr.store, hr.settings.tags, log=hr.log), TopicPartition(TOPIC, 0)
    async for batch in hr.log.read(at, 0, (await hr.log.bounds(at)).end):
        await replicate_batch(hr.store, layout, at, batch.records, up_to=batch.next_offset - 1, views=writer)


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        count = stage.count(EVENTS)
        await _fill(on.hr, count)
        rows = TagRows(on.cassandra.host, on.cassandra.port, KEYSPACE)
        try:
            contest = ReadContest(on.hr, rows, count=count)
            yield Contest(contest.work, contest.bound)
        finally:
            rows.close()


BENCH = Bench(
    name="tags-read",
    work="query of one tag of 20 000 replicated events, Cassandra",
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
