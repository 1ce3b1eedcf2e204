"""Setting up the driver."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.connection import DefaultEndPoint
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    NoSpeculativeExecutionPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from headrace.config import CassandraStoreSettings
from headrace.store.cassandra.addresses import ClusterAddress
from headrace.store.cassandra.encryption import tls_context

__all__ = ["connect", "make_cluster", "nodes_by_dc"]

# Version 5 adds checksums that Python is slow at; all of Cassandra 3.11 to 5 speak 4.
_PROTOCOL = 4
_HEARTBEAT_S = 5
_OTHER_NODES = 2

# Without a handler of its own the driver's warnings would go to stderr of programs that configure no logging.
logging.getLogger("cassandra").addHandler(logging.NullHandler())


def make_cluster(address: ClusterAddress, settings: CassandraStoreSettings) -> Any:  # noqa: ANN401 - the driver has no types
    """Return the driver's Cluster, not connected yet."""
    nearest = DCAwareRoundRobinPolicy(settings.local_dc or "")
    profile = ExecutionProfile(
        # Shuffled, because otherwise every attempt at a row goes to the same replica first, a frozen one included.
        load_balancing_policy=TokenAwarePolicy(nearest, shuffle_replicas=True),
        speculative_execution_policy=_speculation(settings),
        consistency_level=ConsistencyLevel.name_to_value[settings.consistency],
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=settings.attempt_timeout_s,
        row_factory=tuple_factory,
    )
    return Cluster(
        contact_points=[DefaultEndPoint(host, port) for host, port in address.contacts],
        port=address.contacts[0][1],
        auth_provider=_login(settings),
        ssl_context=tls_context(settings),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        protocol_version=_PROTOCOL,
        connect_timeout=settings.attempt_timeout_s,
        control_connection_timeout=settings.attempt_timeout_s,
        max_schema_agreement_wait=settings.request_timeout_s,
        # A node that falls silent counts as down after these; by default it would be asked first for a minute.
        idle_heartbeat_interval=_HEARTBEAT_S,
        idle_heartbeat_timeout=settings.attempt_timeout_s,
    )


def nodes_by_dc(cluster: Any) -> dict[str, int]:  # noqa: ANN401
    """Return how many nodes each data centre has, as far as the driver knows."""
    return dict(Counter(host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter))


def _speculation(settings: CassandraStoreSettings) -> Any:  # noqa: ANN401
    """Ask a second and a third node when the first is slow; the driver does so only for what may be repeated."""
    if settings.speculate_after_s is None:
        return NoSpeculativeExecutionPolicy()
    return ConstantSpeculativeExecutionPolicy(settings.speculate_after_s, _OTHER_NODES)


def connect(cluster: Any) -> Any:  # noqa: ANN401
    """Return the driver's Session; blocks. A cluster that did not answer leaves no thread behind."""
    try:
        return cluster.connect()
    except BaseException:
        cluster.shutdown()
        raise


def _login(settings: CassandraStoreSettings) -> Any:  # noqa: ANN401
    if settings.username is None:
        return None
    password = settings.password.get_secret_value() if settings.password else ""
    return PlainTextAuthProvider(settings.username, password)
