"""A consumer that fails: its event is tried again, counted, and set aside when it is hopeless."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pymysql
import pytest
import pytest_asyncio
from sqlalchemy import URL, Column, Connection, Engine, Integer, Table, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker
from tests.outbox.conftest import DATABASES
from tests.outbox.setting import count, rows
from tests.outbox.test_front_door import AUTOCOMMITS
from tests.outbox.test_publishing import ASYNC_DRIVERS

from headrace.errors import BadArgument, TransactionEnded
from headrace.model import Record
from headrace.outbox import Handling, Inbox, migrate
from headrace.outbox.inbox import is_transient

EVENT = Record("t", 2, 7, 1_700_000_000_000, b"k", b"\x00v", (("headrace.event-id", b"e-1"), ("raw", b"\xff")))


def failing(times: int, work: Callable[..., object] = lambda *_: None) -> Callable[[Any, Record], None]:
    """Return a handler that fails so often, each time after it has written something."""
    left = iter(range(times))

    def handle(db: Any, record: Record) -> None:
        work(db, record)
        if next(left, None) is not None:
            raise ValueError("no such customer")

    return handle


def note_work(db: Any, _record: Record) -> None:
    db.execute(text("INSERT INTO kafka_inbox (consumer, event_id) VALUES ('work', 'done')"))


@pytest.mark.parametrize("kind", ["engine", "sessions"])
def test_a_failed_event_is_tried_again_and_handled_once(engine: Engine, kind: str) -> None:
    """L21: what a failed try wrote is rolled back; when it succeeds its failures are forgotten, and it is known."""
    where: Any = engine if kind == "engine" else sessionmaker(engine)
    inbox, handler = Inbox("billing"), failing(2, note_work)

    outcomes = [inbox.handle(where, EVENT, handler) for _ in range(4)]

    story = "ValueError: no such customer"
    assert outcomes == [
        Handling("failed", 1, story),
        Handling("failed", 2, story),
        Handling("handled"),
        Handling("known"),
    ]
    assert count(engine, "kafka_inbox") == 2
    assert count(engine, "kafka_inbox_failures") == 0


def test_a_hopeless_event_is_set_aside_whole_and_can_be_released(engine: Engine) -> None:
    """L12, L21: after its attempts the consumer goes on; the event waits with its reason until somebody decides."""
    inbox, other = Inbox("billing", max_attempts=3), Inbox("shipping")
    handler = failing(4, note_work)

    outcomes = [inbox.handle(engine, EVENT, handler).outcome for _ in range(4)]
    with Session(engine) as session:
        (poison,) = inbox.poison(session)
        assert other.poison(session) == []
        assert not other.release(session, poison.event_id)

    assert outcomes == ["failed", "failed", "poison", "known"]
    assert (poison.event_id, poison.attempts, poison.record) == ("e-1", 3, EVENT)
    assert poison.last_error == "ValueError: no such customer"
    with engine.begin() as db:
        assert inbox.release(db, poison.event_id)
        assert inbox.poison(db) == []
    assert inbox.handle(engine, poison.record, handler) == Handling("failed", 1, poison.last_error)
    assert inbox.handle(engine, poison.record, handler) == Handling("handled")


@pytest.mark.parametrize("story", ["nul \0 in it", "half a pair \ud800", "\N{SNOWMAN}" * 5000, ""])
def test_any_error_can_be_noted(engine: Engine, story: str) -> None:
    """L12: whatever a handler's error quotes, its event is counted and set aside, not tried forever."""

    def handler(_db: Any, _record: Record) -> None:
        raise ValueError(story)

    inbox = Inbox("billing", max_attempts=2)

    assert [inbox.handle(engine, EVENT, handler).outcome for _ in range(3)] == ["failed", "poison", "known"]


def test_an_event_that_was_handled_meanwhile_is_not_poison(engine: Engine) -> None:
    """L21: another delivery succeeds before the failure of this one is noted: to release it would handle it twice."""
    inbox = Inbox("billing", max_attempts=1)

    slow: Any = Slow(engine, lambda: inbox.handle(engine, EVENT, failing(0)))

    assert inbox.handle(slow, EVENT, failing(1)) == Handling("known")
    assert slow.outcome == Handling("handled")
    with engine.begin() as db:
        assert inbox.poison(db) == []
        assert not inbox.release(db, "e-1")


class Slow:
    """The engine, with another delivery before the second transaction begins."""

    outcome: object = None

    def __init__(self, engine: Engine, other: Callable[[], object]) -> None:
        self.engine, self.other, self.times = engine, other, 0

    def begin(self) -> Any:
        self.times += 1
        if self.times == 2:
            self.outcome = self.other()
        return self.engine.begin()


def test_an_event_that_was_set_aside_meanwhile_stays_so(engine: Engine) -> None:
    """L12: two deliveries fail for the last time at once: the second must not forget what the first set aside."""
    inbox = Inbox("billing", max_attempts=2)
    assert inbox.handle(engine, EVENT, failing(1)).outcome == "failed"
    slow: Any = Slow(engine, lambda: inbox.handle(engine, EVENT, failing(1)).outcome)

    assert inbox.handle(slow, EVENT, failing(1)) == Handling("known")
    assert slow.outcome == "poison"
    with engine.begin() as db:
        assert [(each.event_id, each.attempts) for each in inbox.poison(db)] == [("e-1", 2)]
        assert inbox.release(db, "e-1")
    assert inbox.handle(engine, EVENT, failing(0)) == Handling("handled")


@pytest.mark.parametrize("database", DATABASES[1:2], indirect=True)
def test_failures_that_are_forgotten_while_one_is_noted_are_counted_again(engine: Engine) -> None:
    """L12: PostgreSQL does not lock the row that an insert finds, so another delivery may delete it behind that."""
    inbox = Inbox("billing")
    assert inbox.handle(engine, EVENT, failing(1)).attempts == 1
    released = []

    def release_first(_db: object, _cursor: object, statement: str, *_others: object) -> None:
        if statement.startswith("UPDATE kafka_inbox_failures") and not released:
            released.append("e-1")
            with engine.begin() as db:
                assert inbox.release(db, "e-1")

    event.listen(engine, "before_cursor_execute", release_first)

    assert inbox.handle(engine, EVENT, failing(1)) == Handling("failed", 1, "ValueError: no such customer")
    assert released == ["e-1"]


def test_a_database_that_is_away_is_no_fault_of_the_event(engine: Engine) -> None:
    """L12: its error is raised, and no attempt is spent."""

    def lose_the_database(_db: object, _record: Record) -> None:
        raise OperationalError("SELECT", {}, ConnectionError("gone"))

    with pytest.raises(OperationalError):
        Inbox("billing", max_attempts=1).handle(engine, EVENT, lose_the_database)

    assert failures_of(engine) == [(0, 1, False)]
    assert Inbox("billing").handle(engine, EVENT, failing(0)) == Handling("handled")
    assert failures_of(engine) == []


def failures_of(engine: Engine) -> list[tuple[int, int, bool]]:
    """Return attempts, interruptions and whether it was given up, for each event."""
    found = rows(engine, "kafka_inbox_failures", "event_id")
    return [(row["attempts"], row["interruptions"], bool(row["is_poison"])) for row in found]


@pytest.fixture(params=["engine", "sessions", "async engine", "async sessions"])
def handle_with(request: pytest.FixtureRequest, engine: Engine, database: URL) -> Iterator[Handle]:
    """Have an inbox handle EVENT with a blocking handler, in a connection or a session of either kind."""
    if "async" not in request.param:
        where: Any = engine if request.param == "engine" else sessionmaker(engine)

        async def handle(inbox: Inbox, handler: Any) -> Handling:
            return inbox.handle(where, EVENT, handler)

        yield handle
        return
    name = "mariadb" if database.get_backend_name() in ("mysql", "mariadb") else database.get_backend_name()

    async def handle_async(inbox: Inbox, handler: Any) -> Handling:
        made = create_async_engine(database.set(drivername=ASYNC_DRIVERS[name]))
        where = made if request.param == "async engine" else async_sessionmaker(made)

        async def run(db: Any, record: Record) -> None:
            await db.run_sync(handler, record)

        try:
            return await inbox.handle_async(where, EVENT, run)
        finally:
            await made.dispose()

    yield handle_async


def connection_of(db: Any) -> Connection:
    made = db.connection() if isinstance(db, Session) else db
    assert isinstance(made, Connection)
    return made


def by_cursor(db: Any, statement: str) -> None:
    connection_of(db).connection.cursor().execute(statement)


ENDINGS: dict[str, Callable[[Any], object]] = {
    "commit": lambda db: db.commit(),
    "rollback": lambda db: db.rollback(),
    "close": lambda db: db.close(),
    "text": lambda db: db.execute(text("COMMIT")),
    "driver's text": lambda db: connection_of(db).exec_driver_sql("ROLLBACK"),
    "cursor": lambda db: by_cursor(db, "ROLLBACK"),
}


class TestHandlersThatEndTheTransaction:
    """L21: it stores that the event is known, so only the inbox may end it."""

    @pytest.mark.parametrize(
        ("ending", "is_caught"), [(ending, False) for ending in ENDINGS] + [("commit", True), ("text", True)]
    )
    async def test_nothing_is_stored_and_the_event_has_failed(
        self, engine: Engine, handle_with: Handle, ending: str, is_caught: bool
    ) -> None:
        """A commit is refused, a rollback noticed, and the event comes again."""
        inbox = Inbox("billing")

        def handler(db: Any, record: Record) -> None:
            note_work(db, record)
            try:
                ENDINGS[ending](db)
            except TransactionEnded:
                if not is_caught:
                    raise

        for attempt in (1, 2):
            handling = await handle_with(inbox, handler)
            assert (handling.outcome, handling.attempts) == ("failed", attempt)
            assert handling.error is not None
            assert "begin_nested()" in handling.error
        assert count(engine, "kafka_inbox") == 0

        assert (await handle_with(inbox, note_work)).outcome == "handled"
        assert count(engine, "kafka_inbox") == 2
        assert count(engine, "kafka_inbox_failures") == 0

    @pytest.mark.parametrize("raises", [False, True])
    async def test_a_commit_past_sqlalchemy_makes_the_event_poison(
        self, engine: Engine, handle_with: Handle, raises: bool
    ) -> None:
        """The event is stored as known, with a part of the work. It is set aside at once, and never silently lost."""
        inbox = Inbox("billing")

        def handler(db: Any, record: Record) -> None:
            note_work(db, record)
            by_cursor(db, "COMMIT")
            if raises:
                raise ValueError("no such customer")

        handling = await handle_with(inbox, handler)

        assert (handling.outcome, handling.attempts) == ("poison", 1)
        assert "handler 'tests.outbox.test_inbox:" in str(handling.error)
        assert "what it had written up to there was committed" in str(handling.error)
        assert ("no such customer" in str(handling.error)) is raises
        assert (await handle_with(inbox, handler)).outcome == "known"
        with engine.begin() as db:
            (poison,) = inbox.poison(db)
            assert (poison.record, poison.last_error) == (EVENT, handling.error)
            assert inbox.release(db, "e-1")
        assert (await handle_with(inbox, lambda *_: None)).outcome == "handled"

    async def test_a_table_that_a_handler_makes_is_refused_where_it_would_commit(
        self, engine: Engine, handle_with: Handle
    ) -> None:
        """MariaDB and MySQL commit at a CREATE; the others make the table in the transaction."""
        name = f"made_{uuid.uuid4().hex[:8]}"

        def handler(db: Any, record: Record) -> None:
            note_work(db, record)
            db.execute(text(f"CREATE TABLE {name} (n INTEGER)"))

        handling = await handle_with(Inbox("billing"), handler)

        commits = engine.dialect.name in ("mysql", "mariadb")
        assert handling.outcome == ("failed" if commits else "handled")
        assert count(engine, "kafka_inbox") == (0 if commits else 2)

    async def test_an_error_of_a_flush_is_told_as_it_is(self, engine: Engine) -> None:
        """A session rolls back when a flush fails; the error is the reason, and decides whose fault it is."""
        mapped = registry()

        @mapped.mapped
        class Row:
            __table__ = Table("no_such_table", mapped.metadata, Column("n", Integer, primary_key=True))

        def handler(db: Session, _record: Record) -> None:
            db.add(Row(n=1))
            db.flush()

        handling = Inbox("billing").handle(sessionmaker(engine), EVENT, handler)

        assert handling.outcome == "failed"
        assert "no_such_table" in str(handling.error)

    async def test_savepoints_are_the_handlers_own(self, engine: Engine, handle_with: Handle) -> None:
        """A part of the work may be undone."""

        def handler(db: Any, record: Record) -> None:
            with db.begin_nested() as savepoint:
                note_work(db, record)
                savepoint.rollback()
            note_work(db, record)

        assert (await handle_with(Inbox("billing"), handler)).outcome == "handled"
        assert count(engine, "kafka_inbox") == 2


class TestFaultsOfTheDatabase:
    """L12: whatever the driver calls it, a fault of the database is no failure of the event, and a mistake is one."""

    async def test_a_deadlock_is_raised_and_costs_no_attempt(self, engine: Engine, any_driver: Handle) -> None:
        """The same rule for blocking and async drivers, though asyncpg calls a deadlock by another class."""
        if engine.dialect.name == "sqlite":
            pytest.skip("SQLite has one writer, and so no deadlocks")
        inbox = Inbox("billing", max_attempts=1)

        with pytest.raises(DBAPIError):
            await any_driver(inbox, DEADLOCK[engine.dialect.name])

        assert failures_of(engine) == [(0, 1, False)]
        assert (await any_driver(inbox, "SELECT 1")).outcome == "handled"

    async def test_a_lock_that_is_not_given_costs_no_attempt(self, engine: Engine, any_driver: Handle) -> None:
        """Somebody else has the row for longer than the handler may wait."""
        inbox = Inbox("billing", max_attempts=1)
        with engine.begin() as db:
            db.execute(text("INSERT INTO kafka_topic_info (topic, bucket) VALUES ('busy', 0)"))

        with engine.begin() as db:
            db.execute(text("UPDATE kafka_topic_info SET retries = 1 WHERE topic = 'busy'"))
            with pytest.raises(DBAPIError):
                await any_driver(inbox, *WAITING[engine.dialect.name])

        # SQLite's one writer is in the way of the inbox itself: the handler was not called, and nothing is counted.
        assert failures_of(engine) == ([] if engine.dialect.name == "sqlite" else [(0, 1, False)])

    async def test_a_statement_that_can_never_succeed_makes_its_event_poison(
        self, engine: Engine, any_driver: Handle
    ) -> None:
        """PyMySQL and sqlite3 call an unknown column an OperationalError, as they do a lost connection."""
        inbox = Inbox("billing", max_attempts=2)

        outcomes = [(await any_driver(inbox, "UPDATE kafka_inbox SET nosuch = 1")).outcome for _ in range(3)]

        assert outcomes == ["failed", "poison", "known"]

    async def test_an_event_that_always_makes_the_database_fail_is_given_up(
        self, engine: Engine, any_driver: Handle
    ) -> None:
        """A packet that is too large looks like a lost connection each time; the consumer goes on at last."""
        inbox = Inbox("billing", max_attempts=1, max_interruptions=3)
        for _ in range(2):
            with pytest.raises(OperationalError):
                await any_driver(inbox, LOST)

        assert (await any_driver(inbox, LOST)).outcome == "poison"
        with engine.begin() as db:
            (poison,) = inbox.poison(db)
        assert (poison.attempts, poison.interruptions, poison.record) == (0, 3, EVENT)

    def test_what_fails_before_the_handler_is_no_attempt(self, engine: Engine) -> None:
        """Tables that are missing, or a pool that is empty, are nobody's failure but the operator's."""
        inbox = Inbox("billing", max_attempts=1, table_prefix="nosuch_")

        with pytest.raises(DBAPIError):
            inbox.handle(engine, EVENT, failing(0))

        assert failures_of(engine) == []


Handle = Callable[..., Awaitable[Handling]]
LOST = "lost"
DEADLOCK = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
}
DEADLOCK["mariadb"] = DEADLOCK["mysql"]
TAKE_IT = "UPDATE kafka_topic_info SET retries = 2 WHERE topic = 'busy'"
WAITING = {
    "postgresql": ("SET LOCAL lock_timeout = '10ms'", TAKE_IT),
    "mysql": ("SET innodb_lock_wait_timeout = 1", TAKE_IT),
    "sqlite": (TAKE_IT,),
}
WAITING["mariadb"] = WAITING["mysql"]


@pytest_asyncio.fixture(params=["blocking", "async"])
async def any_driver(request: pytest.FixtureRequest, engine: Engine, database: URL) -> AsyncIterator[Handle]:
    """Have an inbox handle EVENT with a handler that runs statements, on the blocking or the async driver."""
    backend = "mariadb" if database.get_backend_name() in ("mysql", "mariadb") else database.get_backend_name()
    impatient = {"connect_args": {"timeout": 0.05}} if backend == "sqlite" else {}
    if request.param == "blocking":
        made = create_engine(database, **impatient)

        async def handle(inbox: Inbox, *statements: str) -> Handling:
            return inbox.handle(made, EVENT, lambda db, _: [_run(db, each) for each in statements])

        yield handle
        made.dispose()
        return
    made_async = create_async_engine(database.set(drivername=ASYNC_DRIVERS[backend]), **impatient)

    async def handle_async(inbox: Inbox, *statements: str) -> Handling:
        async def run(db: Any, _record: Record) -> None:
            for each in statements:
                await db.run_sync(_run, each)

        return await inbox.handle_async(made_async, EVENT, run)

    yield handle_async
    await made_async.dispose()


def _run(db: Any, statement: str) -> None:
    if statement == LOST:
        raise OperationalError("INSERT", {}, ConnectionResetError("gone away"), connection_invalidated=True)
    db.execute(text(statement))


@pytest.mark.parametrize(
    ("error", "is_passing"),
    [
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.errors.LockNotAvailable(), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.DiskFull(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.TransactionIntegrityConstraintViolation(), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.errors.UndefinedColumn(), False),
        (asyncpg.DeadlockDetectedError(), True),
        (asyncpg.ConnectionDoesNotExistError(), True),
        (asyncpg.DataError("a number is wanted"), False),
        (pymysql.err.OperationalError(1213, "Deadlock found"), True),
        (pymysql.err.OperationalError(2006, "gone away"), True),
        (pymysql.err.OperationalError(1054, "Unknown column"), False),
        (pymysql.err.DataError(1406, "Data too long"), False),
        (OperationalError("", {}, psycopg.OperationalError("connection failed")), True),
        (OperationalError("", {}, pymysql.err.OperationalError(1054, "Unknown column")), False),
        (InterfaceError("", {}, asyncpg.DataError("a number is wanted")), False),
        (PoolTimeout("QueuePool limit reached"), True),
        (ConnectionError("another service is away"), False),
        (ValueError(1213), False),
    ],
    ids=repr,
)
def test_the_code_decides_whose_fault_it_is(error: Exception, is_passing: bool) -> None:
    """L12: and an application's own error that was raised from it is judged alike."""
    assert is_transient(error) is is_passing
    wrapped = RuntimeError("charging failed")
    wrapped.__cause__ = error
    assert is_transient(wrapped) is is_passing


@pytest.mark.parametrize("kind", ["engine", "sessions"])
async def test_coroutines_handle_as_blocking_code_does(engine: Engine, database: URL, kind: str) -> None:
    """O8, L21: with an AsyncEngine or its sessions."""
    name = "mariadb" if database.get_backend_name() in ("mysql", "mariadb") else database.get_backend_name()
    made = create_async_engine(database.set(drivername=ASYNC_DRIVERS[name]))
    where: Any = made if kind == "engine" else async_sessionmaker(made, class_=AsyncSession)
    handler = failing(2)

    async def handle(db: Any, record: Record) -> None:
        handler(db, record)

    inbox = Inbox("billing", max_attempts=2)
    outcomes = [(await inbox.handle_async(where, EVENT, handle)).outcome for _ in range(3)]
    with engine.begin() as db:
        assert inbox.release(db, "e-1")
    outcomes.append((await inbox.handle_async(where, EVENT, handle)).outcome)
    await made.dispose()

    assert outcomes == ["failed", "poison", "known", "handled"]


def test_an_asynchronous_handler_is_refused_where_nobody_awaits_it(engine: Engine) -> None:
    """L21: an event whose handler never ran is not known; a handler that does not look asynchronous has failed."""

    async def handle(db: Any, record: Record) -> None: ...

    def generate(db: Any, record: Record) -> Iterator[int]:
        yield record.offset

    inbox = Inbox("billing")
    with pytest.raises(BadArgument, match="asynchronous and its engine is not"):
        inbox.handle(engine, EVENT, handle)
    with pytest.raises(BadArgument, match="generator"):
        inbox.handle(engine, EVENT, generate)
    failed = inbox.handle(engine, EVENT, lambda db, record: handle(db, record))
    assert (failed.outcome, failed.attempts) == ("failed", 1)
    assert "asynchronous and its engine is not" in str(failed.error)
    assert inbox.handle(engine, EVENT, failing(0)) == Handling("handled")


@pytest.mark.parametrize("bad", [0, -1, True, None, "5", 1.0])
def test_attempts_are_counted_in_whole_numbers(bad: Any) -> None:
    """The front door checks it."""
    with pytest.raises(BadArgument, match="max_attempts"):
        Inbox("billing", max_attempts=bad)
    with pytest.raises(BadArgument, match="max_interruptions"):
        Inbox("billing", max_interruptions=bad)


@pytest.mark.parametrize("asked", AUTOCOMMITS)
def test_an_inbox_without_transactions_is_refused(database: URL, asked: dict[str, Any]) -> None:
    """L21: with AUTOCOMMIT an event whose handler fails would be known all the same, and never be handled."""
    engine, inbox = create_engine(database, **asked), Inbox("billing")
    with engine.connect() as connection, pytest.raises(BadArgument, match="AUTOCOMMIT"):
        inbox.accept(connection, EVENT)
    for where in (engine, sessionmaker(engine)):
        with pytest.raises(BadArgument, match="AUTOCOMMIT"):
            inbox.handle(where, EVENT, failing(1))
    assert count(engine, "kafka_inbox") == count(engine, "kafka_inbox_failures") == 0
    engine.dispose()


def for_coroutines(database: URL) -> URL:
    backend = database.get_backend_name().replace("mysql", "mariadb")
    return database.set(drivername=ASYNC_DRIVERS[backend])


async def test_coroutines_without_transactions_are_refused(database: URL) -> None:
    """L21: the same for coroutines."""
    engine, inbox = create_async_engine(for_coroutines(database), isolation_level="AUTOCOMMIT"), Inbox("billing")
    async with engine.connect() as connection:
        with pytest.raises(BadArgument, match="AUTOCOMMIT"):
            await inbox.accept_async(connection, EVENT)
    await engine.dispose()


async def test_every_kind_of_session_and_connection_is_taken(engine: Engine, database: URL) -> None:
    """L21: what an outbox publishes through an inbox takes too: scoped sessions, and sessions wherever connections."""
    inbox, scoped = Inbox("billing", max_attempts=1), scoped_session(sessionmaker(engine))
    assert inbox.accept(scoped, EVENT)
    assert inbox.poison(scoped) == []
    scoped.commit()
    with Session(engine) as session, session.begin():
        assert not inbox.accept(session, EVENT)
        assert not inbox.release(session, "e-1")
        assert inbox.forget(session, older_than_s=3600) == 0
    scoped.remove()
    with pytest.raises(BadArgument, match="the session or connection of your transaction"):
        inbox.accept(engine, EVENT)  # type: ignore[arg-type]

    others = create_async_engine(for_coroutines(database))
    sessions = async_scoped_session(async_sessionmaker(others), scopefunc=lambda: 1)
    assert not await inbox.accept_async(sessions, EVENT)
    with pytest.raises(BadArgument, match="the AsyncSession or AsyncConnection of your transaction"):
        await inbox.accept_async(scoped, EVENT)  # type: ignore[arg-type]
    await sessions.remove()
    await others.dispose()


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "1", None, True, 1e30])
def test_an_age_that_is_none_forgets_nothing(engine: Engine, bad: Any) -> None:
    """L21: a wrong age is refused where it is given; an event that is forgotten could be handled twice."""
    inbox = Inbox("billing")
    with engine.begin() as db:
        assert inbox.accept(db, EVENT)
        with pytest.raises(BadArgument, match="older_than_s"):
            inbox.forget(db, older_than_s=bad)
        assert not inbox.accept(db, EVENT)


async def test_the_tables_that_a_connection_names_are_used_by_coroutines_too(sqlite_url: URL) -> None:
    """L21: the prefix of an engine's options counts alike for blocking code and for coroutines."""
    migrate(sqlite_url, table_prefix="shop_")
    engine = create_async_engine(
        sqlite_url.set(drivername="sqlite+aiosqlite"), execution_options={"headrace_table_prefix": "shop_"}
    )
    inbox = Inbox("billing")
    async with engine.begin() as connection:
        assert await inbox.accept_async(connection, EVENT)
        assert not await connection.run_sync(inbox.accept, EVENT)
    await engine.dispose()
