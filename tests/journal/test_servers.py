"""Journals on real Kafka and Cassandra."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from tests.suites.journal import JournalConformance
from tests.suites.journal_matrix import Case, JournalMatrix, all_cases, pairwise

from headrace.log import Log, open_log
from headrace.services import RunningService
from headrace.store import Store, open_store
from headrace.testing.plugin import Size

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_log(kafka: RunningService) -> AsyncIterator[Log]:
    """Open the log once."""
    log = await open_log(f"kafka://{kafka.address}")
    yield log
    await log.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_store(cassandra: RunningService) -> AsyncIterator[Store]:
    """Open the store once: connecting takes longer than most tests."""
    store = await open_store(f"cassandra://{cassandra.address}/journal_tests")
    yield store
    await store.close()


class Servers:
    """One broker, one node, one keyspace; every test has a topic of its own."""

    @pytest.fixture
    def log(self, shared_log: Log) -> Log:
        """Return the broker's log."""
        return shared_log

    @pytest.fixture
    def store_address(self, cassandra: RunningService) -> str:
        """Return where the keyspace is."""
        return f"cassandra://{cassandra.address}/journal_tests"

    @pytest.fixture
    def store(self, shared_store: Store) -> Store:
        """Return the keyspace."""
        return shared_store


class TestServedJournal(Servers, JournalConformance):
    """All that journals promise."""


class TestServedMatrix(Servers, JournalMatrix):
    """A pairwise sample of the matrix."""

    @pytest.fixture
    def cases(self, size: Size) -> Sequence[Case]:
        """Return the cases to run: 70 have every pair of values, except the pairs of a split and a replica."""
        return pairwise(all_cases(), most=size(70, 200))
