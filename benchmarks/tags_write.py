"""tags-write: views by tag of 200 000 events with three tags each, rows and numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.tag_rows import TagRows
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.journals import KEYSPACE, ground, opened
from benchmarks.workloads.tagged import TAGS, folds
from headrace.journal import Layout, Topology
from headrace.model import TopicPartition
from headrace.store import ReplicatedOffset
from headrace.tags import Bucket, TagWriter
from headrace.tags.write import Numbering

TOPIC = "tagged"
EVENTS = 200_000
BATCH = 50_000


class WriteContest:
    """Each round writes further events; the bound writes rows of another tag's name, as many and as large."""

    def __init__(self, writer: TagWriter, layout: Layout, rows: TagRows, *, count: int) -> None:
        self._writer = writer
        self._layout = layout
        self._rows = rows
        self._count = count
        self._round = 0
        self._at = TopicPartition(TOPIC, 0)

    async def work(self) -> Readings:
        """Number the events, write rows, write numbers."""
        batches = list(folds(self._count, batch=BATCH, round_nr=self._round))
        with stopwatch() as watch:
            start = self._round * self._count - 1
            for end, found in batches:
                known = ReplicatedOffset(
                    at=self._at, generation=0, offset=start, log_time_ms=0, created_ms=0, updated_ms=0
                )
                await self._writer.log_time_ms(self._layout, known)
                await self._writer.write(self._at, found, up_to=end)
                start = end
        self._round += 1
        return {"rows_per_s": watch.rate(self._count * len(TAGS))}

    async def bound(self) -> Readings:
        """Write rows that were made before."""
        numbering = Numbering("raw", 1, Bucket.HOUR)
        rows = [
            row
            for _, found in folds(self._count, batch=BATCH, round_nr=self._round)
            for pid, fold in found.items()
            for row in numbering.number(pid, fold.tagged, {}).rows
        ]
        with stopwatch() as watch:
            self._rows.write(rows)
        return {"rows_per_s": watch.rate(len(rows))}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        await opened(on.hr, TOPIC, partitions=1)
        layout = await Topology(on.hr.log, on.hr.store.settings, TOPIC).layout()
        writer = TagWriter(on.hr.store, on.hr.settings.tags, log=on.hr.log)
        await writer.open_topic(layout)
        rows = TagRows(on.cassandra.host, on.cassandra.port, KEYSPACE)
        try:
            contest = WriteContest(writer, layout, rows, count=stage.count(EVENTS, least=5000))
            yield Contest(contest.work, contest.bound)
        finally:
            rows.close()


BENCH = Bench(
    name="tags-write",
    work="views by tag of 200 000 events with 3 tags each, Cassandra",
    measures=(
        Measure(
            "rows_per_s",
            unit="rows/s",
            against="cassandra-driver writing the same rows in the same batches",
            target=at_least(0.7),
        ),
    ),
    setup=setup,
)
