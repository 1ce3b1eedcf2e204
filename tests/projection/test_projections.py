"""Projections on SQLite, PostgreSQL and MariaDB, fed from the embedded tier."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from tests.suites.projections import ProjectionConformance
from tests.suites.tags_setting import Scene, TagSetting

from headrace.errors import BadArgument, HandlerCommitted, HandlerFailed, SlotsMoved
from headrace.projection import Projection, ProjectionRunner, Recovery, open_target
from headrace.projection.slots import below, earliest, moved, owned, slot_of
from headrace.services import RunningService
from headrace.tags import TaggedEvent, TagOffset


def postgres_database(postgres: RunningService) -> str:
    """Make a database on the server and return its URL."""
    server = create_engine(_driver(postgres.url), isolation_level="AUTOCOMMIT")
    name = f"p{uuid.uuid4().hex[:12]}"
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    server.dispose()
    return server.url.set(database=name).render_as_string(hide_password=False)


def mariadb_database(mariadb: RunningService, options: str = "") -> str:
    """Make a database on the server and return its URL."""
    base = f"mariadb+pymysql://root@{mariadb.address}"
    name = f"p{uuid.uuid4().hex[:12]}"
    server = create_engine(f"{base}/mysql")
    with server.begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    server.dispose()
    return f"{base}/{name}"


class Embedded:
    """A folder for the log and the store."""

    @pytest.fixture
    def log_address(self, tmp_path: Path) -> str:
        """Return a fresh folder."""
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def store_address(self, log_address: str) -> str:
        """Return the same folder."""
        return log_address


class TestOnSqlite(Embedded, ProjectionConformance):
    """A file beside the log."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> str:
        """Return a file."""
        return f"sqlite:///{tmp_path / 'projection.db'}"


@pytest.mark.servers
class TestOnPostgres(Embedded, ProjectionConformance):
    """A real server."""

    @pytest.fixture
    def database(self, postgres: RunningService) -> str:
        """Return a database of its own."""
        return postgres_database(postgres)


@pytest.mark.servers
class TestOnMariadb(Embedded, ProjectionConformance):
    """A real server."""

    @pytest.fixture
    def database(self, mariadb: RunningService) -> str:
        """Return a database of its own."""
        return mariadb_database(mariadb)


@pytest.mark.servers
@pytest.mark.asyncio(loop_scope="module")
class TestBehindLocks(Embedded, TagSetting):
    """Rows that an application's transaction holds for longer than a statement waits for them."""

    @pytest.mark.parametrize("server", ["postgres", "mariadb"])
    async def test_a_lock_that_is_held_is_no_fault_of_the_event(
        self, scene: Scene, server: str, request: pytest.FixtureRequest
    ) -> None:
        """The batch is done again when the lock is gone, and its event is not set aside."""
        running: RunningService = request.getfixturevalue(server)
        url = postgres_database(running) if server == "postgres" else mariadb_database(running)
        patience = {"postgres": {"options": "-c lock_timeout=50"},
                    "mariadb": {"init_command": "SET innodb_lock_wait_timeout = 1"}}  # fmt: skip
        engine, application = create_engine(url, connect_args=patience[server]), create_engine(url)
        with application.begin() as connection:
            connection.execute(text("CREATE TABLE totals (n INTEGER)"))
            connection.execute(text("INSERT INTO totals VALUES (0)"))
        holding = application.connect()
        holding.execute(text("UPDATE totals SET n = n + 100"))

        def handle(connection: Connection, event: TaggedEvent) -> None:
            try:
                connection.execute(text("UPDATE totals SET n = n + 1"))
            except OperationalError:
                holding.commit()
                raise

        await scene.append("a", range(1, 4))
        projection = Projection("totals", scene.tag, handle, database=engine, recovery=Recovery("dead-letter"))
        target = open_target(projection, scene.store.settings)
        await ProjectionRunner(projection, scene.queries, target).catch_up()
        assert await target.letters.all() == []
        with application.connect() as connection:
            assert connection.execute(text("SELECT n FROM totals")).scalar() == 103
        holding.close()
        engine.dispose()
        application.dispose()


@pytest.mark.servers
@pytest.mark.parametrize("character_set", ["latin1", "utf8mb3"])
@pytest.mark.asyncio(loop_scope="module")
class TestOnOldCharacterSets(Embedded, TagSetting):
    """Databases whose tables can't hold every character by default, as MariaDB's could not before 11.6."""

    @pytest.mark.parametrize("is_old", [False, True])
    async def test_a_dead_letter_may_have_any_text(
        self, scene: Scene, mariadb: RunningService, character_set: str, *, is_old: bool
    ) -> None:
        """The projection goes on behind it, also with tables that were made without a character set of their own."""
        engine = create_engine(mariadb_database(mariadb, f"CHARACTER SET {character_set}"))
        if is_old:
            with engine.begin() as connection:
                connection.execute(
                    text(
                        "CREATE TABLE headrace_dead_letters (name VARCHAR(200), `offset` VARCHAR(120), tag "
                        "VARCHAR(500), topic TEXT, id TEXT, seq_nr BIGINT, error TEXT, attempts INTEGER, "
                        "failed_ms BIGINT, PRIMARY KEY (name, `offset`))"
                    )
                )

        def handle(_: Connection, event: TaggedEvent) -> None:
            raise ValueError(f"no 😀 {event.seq_nr}")

        await scene.append("😀 タグ", 1)
        projection = Projection("letters", scene.tag, handle, database=engine, recovery=Recovery("dead-letter"))
        target = open_target(projection, scene.store.settings)
        await ProjectionRunner(projection, scene.queries, target).catch_up()
        (letter,) = await target.letters.all()
        assert (letter.id, letter.error) == ("😀 タグ", "ValueError: no 😀 1")
        engine.dispose()

    async def test_tags_are_told_apart(self, scene: Scene, mariadb: RunningService, character_set: str) -> None:
        """A worker whose tag differs in case only, or in a character that the database lacks, moves nothing."""
        engine = create_engine(mariadb_database(mariadb, f"CHARACTER SET {character_set}"))
        upper = Projection("tags", "タグ-A", lambda *_: None, database=engine)
        lower = Projection("tags", "タグ-a", lambda *_: None, database=engine)
        targets = [open_target(each, scene.store.settings) for each in (upper, lower)]
        known = await targets[0].load()
        await targets[1].put(known)
        with pytest.raises(SlotsMoved):
            await targets[0].handle([], known, TagOffset.at(5))
        engine.dispose()


@pytest.mark.asyncio(loop_scope="module")
class TestAsynchronous(Embedded, TagSetting):
    """Engines and handlers of the asynchronous kind."""

    async def test_an_asynchronous_handler_shares_its_transaction(self, scene: Scene, tmp_path: Path) -> None:
        """T34: with an AsyncEngine the handler is awaited, and the offset is in its transaction."""
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}")
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE seen (number INTEGER)"))
        failing = [True]

        async def handle(connection: AsyncConnection, event: TaggedEvent) -> None:
            await connection.execute(text("INSERT INTO seen VALUES (:n)"), {"n": event.number})
            if event.number == 3 and failing.pop():
                raise ConnectionError("somewhere else")

        for n in range(1, 6):
            await scene.append("a", n)
        projection = Projection("async", scene.tag, handle, database=engine)
        target = open_target(projection, scene.store.settings)
        runner = ProjectionRunner(projection, scene.queries, target)
        with pytest.raises(HandlerFailed, match="ConnectionError: somewhere else"):
            await runner.catch_up()
        failing.append(False)
        assert await runner.catch_up() == 3  # those before it are done
        async with engine.connect() as connection:
            assert [n for (n,) in await connection.execute(text("SELECT number FROM seen"))] == [1, 2, 3, 4, 5]
        await engine.dispose()

    async def test_an_asynchronous_handler_can_not_end_its_transaction(self, scene: Scene, tmp_path: Path) -> None:
        """T34: neither through SQLAlchemy, where its event fails, nor past it, where the projection stands still."""
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.db'}")
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE seen (number INTEGER)"))
        how = ["commit"]

        async def handle(connection: AsyncConnection, event: TaggedEvent) -> None:
            await connection.execute(text("INSERT INTO seen VALUES (:n)"), {"n": event.number})
            if event.number == 2 and how[0] == "commit":
                await connection.commit()
            if event.number == 2 and how[0] == "cursor":
                raw = await connection.get_raw_connection()
                assert raw.driver_connection is not None
                await raw.driver_connection.execute("COMMIT")

        for n in range(1, 4):
            await scene.append("a", n)
        projection = Projection("async", scene.tag, handle, database=engine)
        target = open_target(projection, scene.store.settings)
        runner = ProjectionRunner(projection, scene.queries, target)
        with pytest.raises(HandlerFailed, match=r"event 2 .* committed the transaction"):
            await runner.catch_up()
        how[0] = "cursor"
        for _ in range(2):
            with pytest.raises(HandlerCommitted, match=r"handle' of projection 'async'"):
                await runner.catch_up()
        async with engine.connect() as connection:
            assert [n for (n,) in await connection.execute(text("SELECT number FROM seen"))] == [1, 2]
        await engine.dispose()

    async def test_an_asynchronous_handler_needs_an_asynchronous_engine(self, scene: Scene, tmp_path: Path) -> None:
        """On a blocking engine nobody would await it: it is refused, and one that does not look asynchronous stops
        the projection before the event, whatever its recovery says."""
        await scene.append("a", 1)
        engine = create_engine(f"sqlite:///{tmp_path / 'blocking.db'}")
        seen: list[str] = []

        async def handle(connection: Connection, event: TaggedEvent) -> None:
            seen.append(event.id)

        async def reset(connection: Connection) -> None: ...

        with pytest.raises(BadArgument, match="asynchronous and its engine is not"):
            open_target(Projection("async", scene.tag, handle, database=engine), scene.store.settings)
        with pytest.raises(BadArgument, match="reset is"):
            open_target(Projection("async", scene.tag, print, database=engine, reset=reset), scene.store.settings)
        hidden = Projection("async", scene.tag, lambda *args: handle(*args), database=engine, recovery=Recovery("skip"))
        target = open_target(hidden, scene.store.settings)
        with pytest.raises(BadArgument, match="asynchronous and its engine is not"):
            await ProjectionRunner(hidden, scene.queries, target).catch_up()
        plain = Projection("async", scene.tag, lambda _, event: seen.append(event.id), database=engine)
        target = open_target(plain, scene.store.settings)
        assert await ProjectionRunner(plain, scene.queries, target).catch_up() == 1
        assert seen == ["a"]
        engine.dispose()

    async def test_a_database_can_be_named_by_its_url(self, scene: Scene, tmp_path: Path) -> None:
        """The engine is made and let go of."""
        await scene.append("a", 1)
        seen: list[str] = []
        url = f"sqlite:///{tmp_path / 'named.db'}"
        projection = Projection("named", scene.tag, lambda _, event: seen.append(event.id), database=url)
        target = open_target(projection, scene.store.settings)
        assert await ProjectionRunner(projection, scene.queries, target).catch_up() == 1
        await target.close()
        assert seen == ["a"]


def test_slots_are_shared_by_all_workers() -> None:
    """T34: every slot has one worker, whatever their number; a journal's slot never changes."""
    for workers in (1, 2, 3, 5, 32):
        shares = [slot for worker in range(workers) for slot in owned(worker, workers, 32)]
        assert sorted(shares) == list(range(32))
    assert slot_of("accounts", "acc-1", 32) == slot_of("accounts", "acc-1", 32) == 26


@pytest.mark.parametrize(
    ("worker", "workers", "named"), [(2, 2, "worker"), (-1, 2, "worker"), (0, 33, "workers"), (0, 0, "workers")]
)
def test_impossible_workers_are_refused(worker: int, workers: int, named: str) -> None:
    """The error names the argument."""
    with pytest.raises(BadArgument, match=f"^{named} is"):
        owned(worker, workers, 32)


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"name": "a "}, {"name": "a\0b"}, {"name": "\ud800"}, {"name": None}, {"tag": ""},
     {"tag": ("a", "b")}, {"handler": None}, {"slots": 0},
     {"tags": ("a", "b")}, {"tag": "", "tags": "ab"}, {"tag": "", "tags": ("a", "")}, {"tag": "", "tags": {"a", "b"}},
     {"slots": True}, {"batch_size": 0}, {"batch_size": 1.5}, {"save_every": 0}, {"lease_s": 0}],
)  # fmt: skip
def test_impossible_projections_are_refused(wrong: dict[str, Any]) -> None:
    """The error names the argument."""
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        Projection(**{"name": "a", "tag": "t", "handler": print, **wrong})


def test_generators_are_no_handlers() -> None:
    """A yield in a handler makes a generator of it, whose code would never run: each event would count as handled."""

    def generate(*_: object) -> Iterator[int]:
        yield 1

    async def generate_async(*_: object) -> AsyncIterator[int]:
        yield 1

    for wrong in (generate, generate_async):
        with pytest.raises(BadArgument, match=r"handler is .* generator"):
            Projection("a", "t", wrong)
        with pytest.raises(BadArgument, match=r"reset is .* generator"):
            Projection("a", "t", print, reset=wrong)


def test_a_slot_that_has_not_begun_starts_all_over() -> None:
    """X4: the earliest of several places is where reading starts; a slot without one means the start of time."""
    one, two = TagOffset.at(1), TagOffset.at(2)
    assert earliest({0: two, 1: one}) == one
    assert earliest({0: two, 1: None}) is None


def test_a_batch_moves_only_the_slots_below_it() -> None:
    """FT3: a slot that is further on than the batch stays where it is, and is not asked for."""
    one, two, three = (TagOffset.at(n) for n in (1, 2, 3))
    offsets = {0: None, 1: one, 2: two, 3: three}
    assert below(offsets, two) == {0: None, 1: one}
    assert moved(offsets, two) == {0: two, 1: two, 2: two, 3: three}


def _driver(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")
