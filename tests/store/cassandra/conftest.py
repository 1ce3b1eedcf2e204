"""What the tests of the Cassandra backend stand on: the run's node, one keyspace for all, a plain CQL session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cql import cql_cluster

from headrace.services import RunningService

KEYSPACE = "exam"


@pytest.fixture(scope="session")
def store_address(cassandra: RunningService) -> str:
    """One keyspace for the whole run: making tables takes seconds."""
    return f"cassandra://{cassandra.address}/{KEYSPACE}"


@pytest.fixture(scope="session")
def cql(cassandra: RunningService) -> Iterator[Any]:
    """A session of the driver itself, as an operator's cqlsh."""
    cluster = cql_cluster(cassandra.host, cassandra.port)
    yield cluster.connect()
    cluster.shutdown()
