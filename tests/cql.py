"""The Cassandra driver itself, as an operator's cqlsh uses it: an oracle beside the product's own sessions."""

from __future__ import annotations

from typing import Any

# The driver's own 2 and 5 s are over on a machine that is busy with other tests.
_PATIENCE_S = 30


def cql_cluster(host: str, port: int) -> Any:
    """Return a cluster that is not connected yet. Shut it down when it is no longer needed."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile

    return Cluster(
        [host],
        port=port,
        protocol_version=4,
        connect_timeout=_PATIENCE_S,
        control_connection_timeout=_PATIENCE_S,
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(request_timeout=_PATIENCE_S)},
    )
