"""Events by tag on real Kafka and Cassandra."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from tests.cql import cql_cluster
from tests.suites.journal_setting import replicate
from tests.suites.tags_filling import TagFillConformance
from tests.suites.tags_following import TagFollowingConformance
from tests.suites.tags_queries import TagQueryConformance
from tests.suites.tags_several import SeveralTagsConformance
from tests.suites.tags_simulation import TagSimulation
from tests.suites.tags_trimming import TagTrimConformance
from tests.suites.tags_views import (
    TABLES,
    TagLossConformance,
    TagRepairConformance,
    TagViewConformance,
)

from headrace.app import connect
from headrace.config import HeadraceSettings, TagSettings
from headrace.errors import TagsDisabled
from headrace.log import Log, open_log
from headrace.model import Event
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


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def shared_store(request: pytest.FixtureRequest, cassandra: RunningService) -> AsyncIterator[Store]:
    """Open a keyspace for each class: making one takes longer than most tests.

    One for all of them would remember the topics of all tests, and each query looks at every topic.
    """
    store = await open_store(f"cassandra://{cassandra.address}/tags_{request.cls.__name__.lower()}")
    yield store
    await store.close()


class Servers:
    """One broker, one node, a keyspace for each class; every test has topics and a tag of its own."""

    @pytest.fixture
    def log(self, shared_log: Log) -> Log:
        """Return the broker's log."""
        return shared_log

    @pytest.fixture
    def store(self, shared_store: Store) -> Store:
        """Return the keyspace."""
        return shared_store


class TestServedQueries(Servers, TagQueryConformance):
    """All that queries promise."""


class TestServedSeveralTags(Servers, SeveralTagsConformance):
    """Queries over several tags."""


class TestServedTrimming(Servers, TagTrimConformance):
    """Retention of the views; its keyspace has buckets of a minute, and times of the day before."""


class TestServedFollowing(Servers, TagFollowingConformance):
    """What many live queries cost, and what they live through."""


class TestServedViews(Servers, TagViewConformance):
    """All that writing the views promises."""


class TestServedRepair(Servers, TagRepairConformance):
    """Repairs."""


class TestServedFills(Servers, TagFillConformance):
    """A tag that history gets afterwards."""


class TestServedSimulation(Servers, TagSimulation):
    """Everything at once."""

    @pytest.fixture
    def restarts(self, size: Size) -> int:
        """Return how often the query is stopped and resumed, at least: fewer times, as it takes longer here."""
        return size(40, 100)

    @pytest.fixture
    def writes(self, size: Size) -> int:
        """Return how many records are written."""
        return size(120, 2500)


class TestServedLoss(Servers, TagLossConformance):
    """Tables emptied with cqlsh, in a keyspace of their own."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def store(self, cassandra: RunningService) -> AsyncIterator[Store]:  # type: ignore[override]
        """Open another keyspace: nobody else is to find its tables empty."""
        self._cassandra = cassandra
        store = await open_store(f"cassandra://{cassandra.address}/tag_loss_tests")
        yield store
        await store.close()

    async def truncate(self, store: Store, tables: Sequence[str] = TABLES) -> None:
        """Empty the tables."""
        await asyncio.to_thread(_truncate, self._cassandra, tables)


def _truncate(cassandra: RunningService, tables: Sequence[str]) -> None:
    cluster = cql_cluster(cassandra.host, cassandra.port)
    try:
        session = cluster.connect()
        for table in tables:
            session.execute(f"TRUNCATE tag_loss_tests.{table}", timeout=60)
    finally:
        cluster.shutdown()


async def test_disabled_tags_leave_no_tables(kafka: RunningService, cassandra: RunningService) -> None:
    """T33: journals work, replicated or not, queries fail with a clear error, and the keyspace has no table of tags."""
    settings = HeadraceSettings(tags=TagSettings(enabled=False))
    keyspace = f"tagless_{uuid.uuid4().hex[:8]}"
    store = f"cassandra://{cassandra.address}/{keyspace}"
    async with connect(f"kafka://{kafka.address}", store=store, settings=settings) as hr:
        journal = hr.journal(f"tagless-{uuid.uuid4().hex[:8]}", partitions=1)
        await journal.append("a", [Event(1, "x", tags=("vip",))])
        await replicate(hr.log, hr.store, journal.topic)
        assert [event.tags async for event in journal.read("a")] == [("vip",)]
        with pytest.raises(TagsDisabled):
            await anext(hr.events_by_tag("vip"))
    tables = await asyncio.to_thread(_tables, cassandra, keyspace)
    assert "journal" in tables
    assert not [name for name in tables if "tag" in name]


def _tables(cassandra: RunningService, keyspace: str) -> list[str]:
    cluster = cql_cluster(cassandra.host, cassandra.port)
    try:
        query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
        return [name for (name,) in cluster.connect().execute(query, (keyspace,))]
    finally:
        cluster.shutdown()
