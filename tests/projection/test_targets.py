"""Our two targets take the exam of all targets: offsets in the store's settings, and in SQL databases."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Connection, Engine, create_engine, text
from tests.projection.test_projections import mariadb_database, postgres_database

from headrace.projection import Projection, Target, open_target
from headrace.projection.delivery import to_the_end
from headrace.projection.sql_target import SqlTarget
from headrace.services import RunningService
from headrace.store import Store, open_store
from headrace.tags import TaggedEvent
from headrace.testing.conformance import TargetConformance
from headrace.testing.conformance.target_setting import MakeTarget


class TestBesideTheHandler(TargetConformance):
    """Offsets in the settings of an embedded store."""

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = await open_store(f"embedded:{tmp_path}")
        yield store
        await store.close()

    @pytest.fixture
    def make_target(self, store: Store) -> MakeTarget:
        async def make(projection: Projection) -> Target:
            return open_target(projection, store.settings)

        return make


class SqlEffects:
    """Rows of a table, written through the connection that the target gives."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._table = f"seen_{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count()
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self._table} (nr INTEGER, id VARCHAR(50), seq_nr INTEGER)"))

    def handle(self, *arguments: Any) -> None:
        connection, event = arguments
        assert isinstance(connection, Connection)
        assert isinstance(event, TaggedEvent)
        values = {"nr": next(self._numbers), "id": event.id, "seq_nr": event.seq_nr}
        connection.execute(text(f"INSERT INTO {self._table} VALUES (:nr, :id, :seq_nr)"), values)

    def reset(self, *arguments: Any) -> None:
        (connection,) = arguments
        connection.execute(text(f"DELETE FROM {self._table}"))

    async def seen(self) -> list[tuple[str, int]]:
        return await asyncio.to_thread(self._seen)

    def _seen(self) -> list[tuple[str, int]]:
        with self._engine.connect() as connection:
            rows = connection.execute(text(f"SELECT id, seq_nr FROM {self._table} ORDER BY nr"))
            return [(id_, seq_nr) for id_, seq_nr in rows]


class InADatabase(TargetConformance):
    """Offsets in the handler's own transaction; a database gives `engine`."""

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError("override the fixture `engine`")

    @pytest.fixture
    def effects(self, engine: Engine) -> SqlEffects:
        return SqlEffects(engine)

    @pytest.fixture
    def make_target(self, engine: Engine) -> MakeTarget:
        async def make(projection: Projection) -> SqlTarget:
            return SqlTarget(engine, projection, is_ours=False)

        return make


class TestOnSqlite(InADatabase):
    """A file."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = create_engine(f"sqlite:///{tmp_path / 'target.db'}")
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def postgres_engine(postgres: RunningService) -> Iterator[Engine]:
    """Open a database of the module's own: making one for each test would take longer than the tests."""
    engine = create_engine(postgres_database(postgres))
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def mariadb_engine(mariadb: RunningService) -> Iterator[Engine]:
    """Open a database of the module's own."""
    engine = create_engine(mariadb_database(mariadb))
    yield engine
    engine.dispose()


@pytest.mark.servers
class TestOnPostgres(InADatabase):
    """One database, and a projection's name of its own for each test."""

    @pytest.fixture
    def engine(self, postgres_engine: Engine) -> Engine:
        return postgres_engine


@pytest.mark.servers
class TestOnMariadb(InADatabase):
    """One database, and a projection's name of its own for each test."""

    @pytest.fixture
    def engine(self, mariadb_engine: Engine) -> Engine:
        return mariadb_engine


async def test_a_handler_in_a_thread_is_waited_for_however_often_its_worker_is_cancelled() -> None:
    """A second cancellation, as of a time-out around a shutdown, leaves no thread running on and no error unheard."""
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def handle() -> None:
        started.set()
        go_on.wait(20)
        ended.set()
        raise ValueError("nobody is there to hear it")

    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    work = asyncio.ensure_future(to_the_end(handle))
    await asyncio.to_thread(started.wait, 20)
    for _ in range(3):
        work.cancel()
        await asyncio.wait([work], timeout=0.02)
    assert not work.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert ended.is_set()
    gc.collect()
    assert unheard == []
