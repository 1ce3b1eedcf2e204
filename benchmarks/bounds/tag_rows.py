"""Plain cassandra-driver on the tables of events by tag: batches of one bucket, and paged selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cassandra.query import BatchStatement, BatchType

from benchmarks.bounds.cassandra_sessions import execute_all, raw_cluster
from headrace.store import TagRow
from headrace.store.cassandra.tags import ROW, row_values
from headrace.store.cassandra.writer import cut_groups

__all__ = ["TagRows"]

BATCH_ROWS = 150
BATCH_BYTES = 40_000
IN_FLIGHT = 64
TIMEOUT_S = 60.0


class TagRows:
    """The columns that the views themselves write and read."""

    def __init__(self, host: str, port: int, keyspace: str) -> None:
        self._cluster = raw_cluster(host, port)
        self._session = self._cluster.connect()
        columns = ", ".join(ROW)
        marks = ", ".join("?" * (len(ROW) + 2))
        table = f"{keyspace}.tag_views"
        self._insert = self._session.prepare(
            f"INSERT INTO {table} (tag_name, timebucket, {columns}) VALUES ({marks}) USING TIMESTAMP ?"
        )
        self._select = self._session.prepare(f"SELECT {columns} FROM {table} WHERE tag_name = ? AND timebucket = ?")

    def write(self, rows: Sequence[TagRow]) -> None:
        """Write rows in unlogged batches of one bucket, some in flight."""
        execute_all(self._session, self._batches(rows), in_flight=IN_FLIGHT)

    def select(self, tag: str, buckets: Sequence[int], *, page_size: int) -> int:
        """Read a tag's rows page by page; returns how many there were."""
        count = 0
        for bucket in buckets:
            bound = self._select.bind((tag, bucket))
            bound.fetch_size = page_size
            count += sum(1 for _ in self._session.execute(bound))
        return count

    def close(self) -> None:
        """Close the connections."""
        self._cluster.shutdown()

    def _batches(self, rows: Sequence[TagRow]) -> Any:  # noqa: ANN401 - the driver has no types
        groups = cut_groups(
            rows,
            key=lambda row: (row.tag, row.bucket_ms),
            size_of=lambda row: 250 + len(row.payload or b""),
            max_rows=BATCH_ROWS,
            max_bytes=BATCH_BYTES,
        )
        for group in groups:
            batch = BatchStatement(BatchType.UNLOGGED)
            for row in group:
                batch.add(self._insert.bind((row.tag, row.bucket_ms, *row_values(row, None))))
            yield batch
