"""The keyspaces' exam on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.keyspace.accounts import Accounts
from tests.keyspace.exam import KeyspaceExam
from tests.keyspace.setting import Place, Served, serving

from headrace.services import RunningService


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(kafka: RunningService, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Run the node, in a cluster of the module's own."""
    folder = tmp_path_factory.mktemp("keyspace")
    place = Place(f"kafka://{kafka.address}", str(folder), f"c-{uuid.uuid4().hex[:8]}")
    async with serving(place, "one", Accounts) as served:
        yield served


@pytest.mark.servers
class TestKeyspaceKafka(KeyspaceExam):
    """All of it."""
