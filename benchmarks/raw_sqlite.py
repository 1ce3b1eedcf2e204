"""raw-sqlite: the rates of sqlite3 itself, at several group sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.sqlite import RecordTable
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, stopwatch
from benchmarks.workloads import events

GROUPS = {1: 500, 100: 20_000, 1000: 50_000}
PARTITIONS = 4
PAGE_SIZE = 1000


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    table = RecordTable(stage.folder / "raw.db", partitions=PARTITIONS)
    counts = {size: stage.count(full, least=size) for size, full in GROUPS.items()}
    written = {size: events(count) for size, count in counts.items()}

    async def work() -> Readings:
        readings = {}
        for size in GROUPS:
            rows = table.rows(written[size])
            with stopwatch() as watch:
                table.insert(rows, group_size=size)
            readings[f"rows_per_s_in_groups_of_{size}"] = watch.rate(len(rows))
        with stopwatch() as watch:
            count = sum(len(page) for page in table.pages(0, page_size=PAGE_SIZE))
        return {**readings, "rows_read_per_s": watch.rate(count)}

    try:
        yield Contest(work)
    finally:
        table.close()


BENCH = Bench(
    name="raw-sqlite",
    work="sqlite3 executemany into a table of the log's kind, WAL, fsynced; select in pages of 1000",
    measures=(
        *(Measure(f"rows_per_s_in_groups_of_{size}", unit="rows/s") for size in GROUPS),
        Measure("rows_read_per_s", unit="rows/s"),
    ),
    setup=setup,
)
