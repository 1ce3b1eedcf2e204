"""Projections without a database on real Kafka and Cassandra: their offsets and claims stand in Cassandra."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.projection.test_simulation import IntoTheLog

from headrace.log import Log, open_log
from headrace.services import RunningService
from headrace.store import Store, open_store
from headrace.testing.plugin import Size

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@pytest.mark.asyncio(loop_scope="module")
class TestIntoKafka(IntoTheLog):
    """A broker and a node."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def log(self, kafka: RunningService) -> AsyncIterator[Log]:
        """Open the broker's log."""
        log = await open_log(f"kafka://{kafka.address}")
        yield log
        await log.close()

    @pytest_asyncio.fixture(loop_scope="module")
    async def store(self, cassandra: RunningService) -> AsyncIterator[Store]:
        """Open a keyspace."""
        store = await open_store(f"cassandra://{cassandra.address}/projection_tests")
        yield store
        await store.close()

    @pytest.fixture(params=[3])
    def seed(self, request: pytest.FixtureRequest) -> int:
        """Return one seed: a run takes longer here."""
        return int(request.param)

    @pytest.fixture
    def lease_s(self) -> float:
        """Return a lease that outlasts a slow moment of the servers."""
        return 2.0

    @pytest.fixture
    def rounds(self, size: Size) -> int:
        """Return how long the run is."""
        return size(4, 30)
