"""Three nodes, one of which freezes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.cql import cql_cluster

from headrace.config import CassandraStoreSettings
from headrace.services import RunningService, start
from headrace.store import Store, open_store
from headrace.testing.conformance.store_setting import event, read_rows

pytestmark = [pytest.mark.servers, pytest.mark.full, pytest.mark.timeout(600)]

KEYSPACE = "three"


@pytest.fixture(scope="module")
def nodes(pytestconfig: pytest.Config) -> Iterator[RunningService]:
    """Three nodes of 700 MB, which take minutes to start on a small machine: only for the full size."""
    if not pytestconfig.getoption("--full"):
        pytest.skip("three Cassandra nodes are started with --full only")
    with start("cassandra", nodes=3) as service:
        yield service


@pytest_asyncio.fixture
async def store(nodes: RunningService) -> AsyncIterator[Store]:
    store = await open_store(f"cassandra://{nodes.address}/{KEYSPACE}")
    yield store
    await store.close()


async def test_a_frozen_node_is_survived(nodes: RunningService, store: Store) -> None:
    """FM2, FM4: rows have three copies, and while one node is frozen every read and write is answered in time."""
    await store.writer.write_rows("t", "before", [event(1)])
    await asyncio.to_thread(nodes.nodes[2].pause)
    try:
        for n in range(40):
            began_s = time.monotonic()
            await store.writer.write_rows("t", f"id-{n}", [event(1)])
            assert await read_rows(store, "t", f"id-{n}") == [event(1)]
            assert time.monotonic() - began_s < CassandraStoreSettings().request_timeout_s
        assert await read_rows(store, "t", "before") == [event(1)]
    finally:
        await asyncio.to_thread(nodes.nodes[2].resume)


async def test_a_keyspace_with_one_copy_is_warned_of(nodes: RunningService, caplog: pytest.LogCaptureFixture) -> None:
    """FM2: whoever opens a keyspace that was made with one copy is told what to run."""
    cluster = cql_cluster(nodes.host, nodes.port)
    session = await asyncio.to_thread(cluster.connect)
    await asyncio.to_thread(
        session.execute,
        "CREATE KEYSPACE lonely WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    )
    await asyncio.to_thread(cluster.shutdown)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        await (await open_store(f"cassandra://{nodes.address}/lonely")).close()
    assert "keeps one copy of each row on several nodes" in caplog.text
    assert "ALTER KEYSPACE lonely" in caplog.text
