"""raw-cassandra: the rates of cassandra-driver itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.cassandra import EventTable
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.servers import server

SINGLE_ROWS = 5_000
BATCHED_ROWS = 40_000
READ_ROWS = 10_000
BATCH_SIZE = 40
PAGE_SIZE = 1000


class RawCassandra:
    """Writes new rows in every round and reads one long partition again and again."""

    def __init__(self, table: EventTable, stage: Stage) -> None:
        self._table = table
        self._single = events(stage.count(SINGLE_ROWS))
        batched = stage.count(BATCHED_ROWS, least=BATCH_SIZE)
        self._batched = events(batched, keys=batched // BATCH_SIZE)
        self._read_count = stage.count(READ_ROWS)
        self._next = 0
        long = events(self._read_count, keys=1)
        self._key = f"long-{long[0].key.decode()}"
        rows = [(self._key, nr, event.value) for nr, event in enumerate(long)]
        table.insert_batches(rows, batch_size=BATCH_SIZE)

    async def work(self) -> Readings:
        """Insert one by one, insert in batches, select."""
        single = self._table.rows(self._single, start=self._numbers(len(self._single)))
        with stopwatch() as inserting:
            self._table.insert_singly(single)
        batched = self._table.rows(self._batched, start=self._numbers(len(self._batched)))
        with stopwatch() as batching:
            self._table.insert_batches(batched, batch_size=BATCH_SIZE)
        with stopwatch() as selecting:
            count = self._table.select(self._key, page_size=PAGE_SIZE)
        if count != self._read_count:
            raise BenchFailed(f"{self._read_count} rows were written but {count} read")
        return {
            "single_rows_per_s": inserting.rate(len(single)),
            "batched_rows_per_s": batching.rate(len(batched)),
            "rows_read_per_s": selecting.rate(count),
        }

    def _numbers(self, count: int) -> int:
        start, self._next = self._next, self._next + count
        return start


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("cassandra", stage) as cassandra:
        table = EventTable(cassandra.host, cassandra.port)
        try:
            yield Contest(RawCassandra(table, stage).work)
        finally:
            table.close()


BENCH = Bench(
    name="raw-cassandra",
    work="cassandra-driver: single inserts, single-partition unlogged batches of 40, a paged select; LOCAL_QUORUM",
    measures=(
        Measure("single_rows_per_s", unit="rows/s"),
        Measure("batched_rows_per_s", unit="rows/s"),
        Measure("rows_read_per_s", unit="rows/s"),
    ),
    setup=setup,
)
