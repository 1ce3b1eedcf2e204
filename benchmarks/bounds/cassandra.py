"""Plain cassandra-driver: single inserts, single-partition unlogged batches, a paged select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement, BatchType, tuple_factory

from benchmarks.harness import BenchFailed
from benchmarks.workloads import Event

__all__ = ["EventTable", "Row"]

Row = tuple[str, int, bytes]

KEYSPACE = """
CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}
"""
TABLE = "CREATE TABLE IF NOT EXISTS bench.events (id text, seq_nr bigint, payload blob, PRIMARY KEY (id, seq_nr))"
INSERT = "INSERT INTO bench.events (id, seq_nr, payload) VALUES (?, ?, ?)"
SELECT = "SELECT id, seq_nr, payload FROM bench.events WHERE id = ?"
IN_FLIGHT = 100


class EventTable:
    """Rows of an id, a seq_nr and a payload: the smallest possible journal."""

    def __init__(self, host: str, port: int) -> None:
        profile = ExecutionProfile(
            load_balancing_policy=RoundRobinPolicy(),
            consistency_level=ConsistencyLevel.LOCAL_QUORUM,
            row_factory=tuple_factory,
            request_timeout=60,
        )
        self._cluster = Cluster([host], port=port, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        self._session = self._cluster.connect()
        self._session.execute(KEYSPACE)
        self._session.execute(TABLE)
        self._insert = self._session.prepare(INSERT)
        self._select = self._session.prepare(SELECT)

    @staticmethod
    def rows(events: Sequence[Event], *, start: int = 0) -> list[Row]:
        """Return the events as rows, numbered from `start`."""
        return [(event.key.decode(), start + nr, event.value) for nr, event in enumerate(events)]

    def insert_singly(self, rows: Sequence[Row]) -> None:
        """Insert row by row, 100 in flight."""
        self._execute((self._insert, row) for row in rows)

    def insert_batches(self, rows: Sequence[Row], *, batch_size: int) -> None:
        """Insert in unlogged batches of one id each, up to `batch_size` rows, 100 in flight."""
        self._execute((batch, None) for batch in self._batches(rows, batch_size))

    def select(self, key: str, *, page_size: int) -> int:
        """Read one key's rows page by page; returns how many there were."""
        bound = self._select.bind((key,))
        bound.fetch_size = page_size
        return sum(1 for _ in self._session.execute(bound))

    def close(self) -> None:
        """Close the connections."""
        self._cluster.shutdown()

    def _batches(self, rows: Sequence[Row], batch_size: int) -> Iterator[Any]:
        by_id: dict[str, list[Row]] = {}
        for row in rows:
            by_id.setdefault(row[0], []).append(row)
        for own in by_id.values():
            waiting = iter(own)
            while some := list(islice(waiting, batch_size)):
                batch = BatchStatement(BatchType.UNLOGGED, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
                for row in some:
                    batch.add(self._insert, row)
                yield batch

    def _execute(self, statements: Iterator[Any]) -> None:
        for result in execute_concurrent(self._session, statements, IN_FLIGHT, results_generator=True):
            if not result.success:
                raise BenchFailed(f"Cassandra refused a write: {result.result_or_exc}")
