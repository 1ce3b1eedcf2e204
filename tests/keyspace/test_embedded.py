"""The keyspaces' exam on the embedded log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.keyspace.accounts import Accounts
from tests.keyspace.exam import KeyspaceExam
from tests.keyspace.setting import Place, Served, serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Run the node, on a folder of the module's own."""
    folder = tmp_path_factory.mktemp("keyspace")
    async with serving(Place(f"embedded:{folder / 'log'}", str(folder / "state")), "one", Accounts) as served:
        yield served


class TestKeyspaceEmbedded(KeyspaceExam):
    """All of it."""
