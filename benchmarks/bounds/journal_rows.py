"""Plain cassandra-driver over the rows that journals were replicated to: paged selects, one and many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args

from benchmarks.bounds.cassandra_sessions import raw_cluster
from benchmarks.harness import BenchFailed
from headrace.store.cassandra.columns import EVENT, selected

__all__ = ["JournalRows"]

SELECT = f"SELECT {selected(EVENT)} FROM {{}}.journal WHERE id = ? AND topic = ? AND segment = 0"
IN_FLIGHT = 100
TIMEOUT_S = 60.0


class JournalRows:
    """The columns that the journal itself reads, of journals that fit into their first segment."""

    def __init__(self, host: str, port: int, keyspace: str) -> None:
        self._cluster = raw_cluster(host, port)
        self._session = self._cluster.connect()
        self._select = self._session.prepare(SELECT.format(keyspace))

    def select(self, topic: str, id_: str, *, page_size: int) -> int:
        """Read one journal's rows page by page; returns how many there were."""
        bound = self._select.bind((id_, topic))
        bound.fetch_size = page_size
        return sum(1 for _ in self._session.execute(bound))

    def start(self, topic: str, id_: str) -> Any:  # noqa: ANN401 - the driver has no types
        """Ask for one journal's rows; `wait` for what is returned."""
        return self._session.execute_async(self._select, (id_, topic))

    def wait(self, response: Any) -> int:  # noqa: ANN401
        """Return how many rows came."""
        return sum(1 for _ in response.result())

    def select_many(self, topic: str, ids: Sequence[str]) -> int:
        """Read the rows of many journals, 100 in flight; returns how many there were."""
        found = execute_concurrent_with_args(self._session, self._select, [(id_, topic) for id_ in ids], IN_FLIGHT)
        for result in found:
            if not result.success:
                raise BenchFailed(f"Cassandra refused a read: {result.result_or_exc}")
        return sum(sum(1 for _ in result.result_or_exc) for result in found)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.shutdown()
