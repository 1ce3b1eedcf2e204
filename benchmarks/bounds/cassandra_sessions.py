"""Plain cassandra-driver as the store uses it: how its bounds connect, and many requests in flight."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Semaphore
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import tuple_factory

from benchmarks.harness import BenchFailed

__all__ = ["execute_all", "raw_cluster"]

TIMEOUT_S = 60.0


def raw_cluster(host: str, port: int) -> Any:  # noqa: ANN401 - the driver has no types
    """Return a cluster to connect to; rows come as tuples, and requests go to the nodes that have them."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy()),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        row_factory=tuple_factory,
        request_timeout=TIMEOUT_S,
    )
    # Version 5 of the protocol adds checksums, which are slow in Python; the bounds do without them.
    return Cluster([host], port=port, protocol_version=4, execution_profiles={EXEC_PROFILE_DEFAULT: profile})


def execute_all(session: Any, statements: Iterable[Any], *, in_flight: int) -> None:  # noqa: ANN401
    """Execute all statements, with a limited number in flight; raise if one failed."""
    free = Semaphore(in_flight)
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        free.release()

    for statement in statements:
        free.acquire()
        session.execute_async(statement).add_callbacks(lambda _: free.release(), failed)
    for _ in range(in_flight):
        free.acquire()
    if failures:
        raise BenchFailed(f"Cassandra refused {len(failures)} requests: {failures[0]}")
