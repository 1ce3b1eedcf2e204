"""Publishing while the commit itself is under way: from listeners of the session, the mapper and the connection."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session
from tests.outbox.setting import count, rows
from tests.outbox.test_publishing import ASYNC_DRIVERS

from headrace.errors import PublishedTooLate
from headrace.outbox import Outbox


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "staging_items"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[int] = mapped_column(default=0)


class Trail(Base):
    __tablename__ = "staging_trail"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture
def items(engine: Engine) -> Engine:
    """Two tables of the application's own beside the outbox."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def producer() -> Any:
    return Outbox().producer("items")


@pytest.fixture
def listening() -> Iterator[Callable[..., None]]:
    """Listen while the test runs."""
    heard: list[tuple[object, str, Callable[..., object]]] = []

    def listen(target: object, name: str, call: Callable[..., object]) -> None:
        event.listen(target, name, call)
        heard.append((target, name, call))

    yield listen
    for each in heard:
        event.remove(*each)


def payloads(engine: Engine) -> list[bytes]:
    return [row["message"] for row in rows(engine)]


def publish_for(producer: Any) -> Callable[..., None]:
    """Return a listener of the mapper that publishes each row it hears of, through the row's session."""

    def publish(_mapper: object, _connection: object, target: Item) -> None:
        producer.publish(object_session(target), b"%d" % target.id, key=str(target.id))

    return publish


MAPPER_EVENTS = ["before_insert", "after_insert"]
SESSION_EVENTS = ["before_commit", "before_flush", "after_flush", "after_flush_postexec"]


@pytest.mark.parametrize("name", MAPPER_EVENTS)
def test_a_listener_of_the_mapper_publishes_at_the_commits_own_flush(
    items: Engine, producer: Any, listening: Callable[..., None], name: str
) -> None:
    """FO1: nothing is published before commit() flushes; the message is committed with the row it is about."""
    listening(Item, name, publish_for(producer))
    with Session(items) as session:
        session.add_all([Item(id=1), Item(id=2)])
        session.commit()
        session.add(Item(id=3))
        session.commit()
        session.add(Item(id=4))
        session.flush()
        session.rollback()

    assert payloads(items) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["after_update", "after_delete"])
def test_changes_and_removals_publish_as_well(
    items: Engine, producer: Any, listening: Callable[..., None], name: str
) -> None:
    """FO1: the same for rows that change or go away, beside a message that was published before."""
    with Session(items) as session:
        session.add_all([Item(id=1), Item(id=2)])
        session.commit()
    listening(Item, name, publish_for(producer))
    with Session(items) as session:
        producer.publish(session, b"before")
        item = session.get_one(Item, 1)
        if name == "after_delete":
            session.delete(item)
        else:
            item.state = 7
        session.commit()

    assert payloads(items) == [b"before", b"1"]


@pytest.mark.parametrize("name", SESSION_EVENTS)
@pytest.mark.parametrize("target", ["session", "class"])
@pytest.mark.parametrize("used", [False, True])
def test_a_listener_of_the_session_publishes_at_the_commit(
    items: Engine, producer: Any, listening: Callable[..., None], name: str, target: str, used: bool
) -> None:
    """FO1: whether the session published before or not, and wherever the listener stands in the queue."""

    class ListenedSession(Session):
        pass

    with ListenedSession(items) as session:
        if used:
            producer.publish(session, b"first")
        once = iter([True])

        def publish(*_: object) -> None:
            if next(once, False):
                producer.publish(session, b"heard")

        listening(session if target == "session" else ListenedSession, name, publish)
        session.add(Item(id=1))
        session.commit()

    assert payloads(items) == ([b"first", b"heard"] if used else [b"heard"])


def test_what_a_listener_changes_last_is_flushed_and_published(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1: the last listener before the commit adds a row, whose own listener publishes."""
    listening(Item, "after_insert", publish_for(producer))
    with Session(items) as session:
        producer.publish(session, b"first")
        listening(session, "before_commit", lambda session: session.add(Item(id=9)))
        session.commit()

    assert payloads(items) == [b"first", b"9"]


def test_flushes_and_messages_that_cause_one_another_all_arrive(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1: each row that is inserted publishes, and the next flush adds another row, ten times over."""

    def add_another(session: Session, _context: object) -> None:
        last = max((row.id for row in session.new if isinstance(row, Item)), default=0)
        if 0 < last < 10:
            session.add(Item(id=last + 1))

    listening(Item, "after_insert", publish_for(producer))
    with Session(items) as session:
        listening(session, "after_flush", add_another)
        session.add(Item(id=1))
        session.commit()

    assert payloads(items) == [b"%d" % n for n in range(1, 11)]


def test_row_locks_come_before_ids_in_the_commits_own_flush(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1, O7: a message published before its row is written is still inserted behind it."""
    said: list[str] = []
    listening(items, "before_cursor_execute", lambda *given: said.append(given[2]))
    listening(Item, "before_insert", publish_for(producer))
    with Session(items) as session:
        session.add(Item(id=1))
        session.commit()

    assert [sql.split()[2] for sql in said if sql.startswith("INSERT")] == ["staging_items", "kafka_messages"]


def test_savepoints_keep_and_drop_what_their_flushes_published(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1: a savepoint that is released keeps the messages of its flush, one that is rolled back drops them."""
    listening(Item, "after_insert", publish_for(producer))
    with Session(items) as session:
        with session.begin_nested():
            session.add(Item(id=1))
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            session.add(Item(id=2))
            session.flush()
            raise ZeroDivisionError
        with session.begin_nested():
            session.add(Item(id=3))
        session.commit()

    assert payloads(items) == [b"1", b"3"]


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint", "control_fully"])
@pytest.mark.parametrize("within_savepoint", [False, True])
def test_a_session_inside_of_somebody_elses_transaction(
    items: Engine, producer: Any, listening: Callable[..., None], mode: Any, within_savepoint: bool
) -> None:
    """FO1: messages of its flush are in the outer transaction when the session commits, and go or stay with it."""
    listening(Item, "after_insert", publish_for(producer))
    for outcome in ("commit", "rollback"):
        with items.connect() as connection:
            outer = connection.begin()
            inner = connection.begin_nested() if within_savepoint else None
            with Session(connection, join_transaction_mode=mode) as session:
                session.add(Item(id=len(outcome)))
                session.commit()
                seen = connection.execute(text("SELECT COUNT(*) FROM kafka_messages")).scalar_one()
                assert seen == (1 if outcome == "commit" else 2)
            if mode == "control_fully":
                return  # the session's commit was the outer one
            if inner is not None and inner.is_active:
                inner.commit()
            getattr(outer, outcome)()

    assert payloads(items) == [b"6"]


def test_savepoints_of_the_connection_keep_and_drop_what_was_published_in_them(items: Engine, producer: Any) -> None:
    """O1: a savepoint that the session knows nothing of takes its own messages along, and no others."""
    with Session(items) as session:
        connection = session.connection()
        producer.publish(session, b"1")
        dropped = connection.begin_nested()
        producer.publish(session, b"dropped")
        released = connection.begin_nested()
        producer.publish(session, b"dropped with the one around")
        released.commit()
        with session.begin_nested():
            producer.publish(session, b"dropped too")
        dropped.rollback()
        with connection.begin_nested(), connection.begin_nested():
            producer.publish(session, b"2")
        producer.publish(session, b"3")
        session.commit()

    assert payloads(items) == [b"1", b"2", b"3"]


def test_sessions_of_one_connection_keep_their_own_messages(items: Engine, producer: Any) -> None:
    """O1: what one publishes stays when a savepoint in which another has committed is rolled back."""
    with items.begin() as connection:
        one = Session(connection)
        producer.publish(one, b"one")
        savepoint = connection.begin_nested()
        other = Session(connection, join_transaction_mode="create_savepoint")
        producer.publish(other, b"other")
        other.commit()
        savepoint.rollback()
        one.commit()

    assert payloads(items) == [b"one"]


def test_a_publish_after_the_last_moment_fails_the_commit(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1: what can't be stored any more is an error, and nothing is committed; it is never dropped in silence."""
    with Session(items) as session:
        producer.publish(session, b"early")
        session.add(Item(id=1))
        listening(items, "commit", lambda _connection: producer.publish(session, b"late"))
        with pytest.raises(PublishedTooLate, match="items"):
            session.commit()
        session.rollback()

    assert payloads(items) == []
    assert count(items, "staging_items") == 0


def test_a_publish_after_the_commit_is_refused(items: Engine, producer: Any, listening: Callable[..., None]) -> None:
    """FO1: in after_commit the transaction is over; the error says so, and the next transaction is not touched."""
    with Session(items) as session:
        producer.publish(session, b"early")
        listening(session, "after_commit", lambda session: producer.publish(session, b"late"))
        with pytest.raises(PublishedTooLate, match="before"):
            session.commit()

    assert payloads(items) == [b"early"]


def test_a_listener_that_publishes_for_ever_fails_the_commit(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1: a message for each insert and a new row for each message never ends; it is refused, whole."""

    def publish_and_add(session: Session, _context: object) -> None:
        producer.publish(session, b"again")
        session.add(Trail(id=session.info.setdefault("n", 0)))
        session.info["n"] += 1

    with Session(items) as session:
        listening(session, "after_flush", publish_and_add)
        producer.publish(session, b"first")
        session.add(Item(id=1))
        with pytest.raises((PublishedTooLate, SQLAlchemyError)):
            session.commit()
        session.rollback()

    assert payloads(items) == []


def test_a_failed_commit_leaves_nothing_for_the_next(
    items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1: messages of a flush that failed go with the rollback; the next transaction has only its own."""
    with Session(items) as session:
        session.add(Item(id=1))
        session.commit()
    listening(Item, "before_insert", publish_for(producer))
    with Session(items) as session:
        session.add(Item(id=1))
        with pytest.raises(SQLAlchemyError):
            session.commit()
        session.rollback()
        session.add(Item(id=2))
        session.commit()

    assert payloads(items) == [b"2"]


def test_core_connections_of_mapper_events(items: Engine, producer: Any, listening: Callable[..., None]) -> None:
    """FO1, O8: the connection that a mapper event hands over takes the message at once, in the same transaction."""
    listening(Item, "after_insert", lambda _m, connection, target: producer.publish(connection, b"%d" % target.id))
    with Session(items) as session:
        session.add(Item(id=1))
        session.commit()
        session.add(Item(id=2))
        session.flush()
        session.rollback()

    assert payloads(items) == [b"1"]


@pytest_asyncio.fixture
async def async_items(database: URL, items: Engine) -> AsyncIterator[AsyncEngine]:
    """The async twin of the application's engine."""
    name = "mariadb" if database.get_backend_name() in ("mysql", "mariadb") else database.get_backend_name()
    made = create_async_engine(database.set(drivername=ASYNC_DRIVERS[name]))
    yield made
    await made.dispose()


async def test_listeners_of_async_sessions_publish_at_the_commits_own_flush(
    async_items: AsyncEngine, items: Engine, producer: Any, listening: Callable[..., None]
) -> None:
    """FO1, O8: listeners are blocking code with the session behind the async one, whose commit sends the messages."""
    listening(Item, "after_insert", publish_for(producer))
    async with AsyncSession(async_items) as session:
        listening(session.sync_session, "before_commit", lambda session: producer.publish(session, b"heard"))
        session.add(Item(id=1))
        await session.commit()
        session.add(Item(id=2))
        await session.flush()
        await session.rollback()
        async with session.begin_nested():
            session.add(Item(id=3))
        await session.commit()

    assert sorted(payloads(items)) == [b"1", b"3", *[b"heard"] * 3]  # a savepoint has a before_commit, too


def test_messages_of_savepoints_that_are_over_are_not_looked_at_again(engine: Engine) -> None:
    """O1: an import with a savepoint for each row would take hours for a hundred thousand of them."""
    producer = Outbox().producer("orders")
    with Session(engine) as session:
        for n in range(60):
            savepoint = session.begin_nested()
            producer.publish(session, b"%d" % n)
            (savepoint.rollback if n % 3 else savepoint.commit)()
        waiting = session.info["headrace.outbox"]
        assert (len(waiting.messages), len(waiting.in_savepoints)) == (20, 0)
        session.commit()

    assert [row["message"] for row in rows(engine)] == [b"%d" % n for n in range(0, 60, 3)]
