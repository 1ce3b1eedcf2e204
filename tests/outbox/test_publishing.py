"""Publishing: in the caller's transaction or not at all, on every database and every kind of session."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL, Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from tests.outbox.setting import count, rows

from headrace.errors import BadArgument, RecordTooLarge
from headrace.log import Log
from headrace.model import TopicConfig, partition_of
from headrace.outbox import EVENT_ID, JsonSerializer, Message, Outbox, OutboxSettings, migrate
from headrace.outbox.messages import load_headers
from headrace.testing.conformance.log_setting import eventually, read_all

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "mariadb": "mysql+aiomysql"}


ORDERS = Outbox().producer("orders")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column()


Base.metadata.tables["shop_orders"].c.state.type.length = 40  # type: ignore[attr-defined]


@pytest.fixture
def orders(engine: Engine) -> Engine:
    """A table of the application's own beside the outbox."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    return engine


@pytest_asyncio.fixture
async def async_engine(database: URL) -> AsyncIterator[AsyncEngine]:
    """The async twin of the application's engine."""
    name = "mariadb" if database.get_backend_name() in ("mysql", "mariadb") else database.get_backend_name()
    made = create_async_engine(database.set(drivername=ASYNC_DRIVERS[name]))
    yield made
    await made.dispose()


def test_messages_are_committed_with_the_transaction_or_not_at_all(engine: Engine) -> None:
    """O1: a commit leaves the rows, a rollback none."""
    producer = Outbox().producer("orders")
    with Session(engine) as session:
        producer.publish_list(session, [Message(b"1"), Message(b"2")])
        session.commit()
    with Session(engine) as session:
        producer.publish(session, b"never")
        session.rollback()
    with Session(engine) as session:
        producer.publish(session, b"never either")  # closed without a commit
    with Session(engine) as session, contextlib.suppress(ZeroDivisionError), session.begin():
        producer.publish(session, b"nor this")
        raise ZeroDivisionError

    assert [row["message"] for row in rows(engine)] == [b"1", b"2"]


def test_a_savepoint_that_is_rolled_back_drops_just_its_messages(engine: Engine) -> None:
    """O1: what was published before, after, and in savepoints that were released stays, in order."""
    producer = Outbox().producer("orders")
    with Session(engine) as session:
        producer.publish(session, b"before")
        with session.begin_nested():
            producer.publish(session, b"released")
            inner = session.begin_nested()
            producer.publish(session, b"dropped")
            inner.rollback()
        outer = session.begin_nested()
        with session.begin_nested():
            producer.publish(session, b"released into one that is dropped")
        outer.rollback()
        producer.publish(session, b"after")
        session.commit()
        producer.publish(session, b"next transaction")
        session.commit()

    assert [row["message"] for row in rows(engine)] == [b"before", b"released", b"after", b"next transaction"]


def test_a_core_savepoint_that_is_rolled_back_drops_just_its_messages(engine: Engine) -> None:
    """O1, O8: on a Core connection the database does it."""
    producer = Outbox().producer("orders")
    with engine.begin() as connection:
        producer.publish(connection, b"before")
        savepoint = connection.begin_nested()
        producer.publish(connection, b"dropped")
        savepoint.rollback()
        producer.publish(connection, b"after")

    assert [row["message"] for row in rows(engine)] == [b"before", b"after"]


def test_rows_hold_all_that_was_given(engine: Engine) -> None:
    """O3: message, topic, key, headers, event time; a tombstone is NULL, and so is a missing key."""
    happened = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    messages = [
        Message(b"\x00\xff", key="a", headers={"text": "ü", "raw": b"\xfe", "none": None}, event_time=happened),
        Message(None, key=b"b", event_time=1_700_000_000_000),
        Message("text"),
    ]
    with engine.begin() as connection:
        Outbox().producer("orders").publish_list(connection, messages)

    first, second, third = rows(engine)
    assert (first["topic"], first["message"], first["key"]) == ("orders", b"\x00\xff", b"a")
    assert load_headers(first["headers"]) == (("text", "ü".encode()), ("raw", b"\xfe"), ("none", None))
    assert first["event_time"] == int(happened.timestamp() * 1000)
    assert (second["message"], second["key"], second["event_time"]) == (None, b"b", 1_700_000_000_000)
    assert (third["message"], third["key"], third["headers"], third["event_time"]) == (b"text", None, None, None)
    assert len({row["event_id"] for row in (first, second, third)}) == 3


@pytest.mark.parametrize("bad", [object(), float("nan"), {"total": [float("inf")]}, "\ud800"])
def test_what_does_not_fit_fails_in_the_callers_transaction(engine: Engine, bad: Any) -> None:
    """O4: encoding comes first, for all messages of a call; a bad one leaves none of them. NaN is bad, too."""
    producer = Outbox().producer("orders", serializer=JsonSerializer())
    with Session(engine) as session:
        with pytest.raises(BadArgument, match="JSON can't hold it"):
            producer.publish_list(session, [Message({"fine": 1}), Message({"bad": bad})])
        producer.publish(session, {"fine": 2})
        session.commit()

    assert [row["message"] for row in rows(engine)] == [b'{"fine":2}']


def test_a_partition_key_decides_the_bucket(engine: Engine) -> None:
    """O5: messages with one partition key share a bucket whatever their keys; without one the key decides."""
    producer = Outbox(OutboxSettings(buckets_by_topic={"orders": 8})).producer("orders")
    with engine.begin() as connection:
        producer.publish_list(connection, [Message(b"x", key=f"k{n}", partition_key="customer") for n in range(20)])
        producer.publish_list(connection, [Message(b"x", key=f"k{n}") for n in range(20)])

    found = rows(engine)
    assert {row["bucket"] for row in found[:20]} == {partition_of(b"customer", 8)}
    assert [row["bucket"] for row in found[20:]] == [partition_of(b"k%d" % n, 8) for n in range(20)]
    assert {row["partition_key"] for row in found[20:]} == {None}


def test_ten_thousand_messages_in_one_call(engine: Engine) -> None:
    """O6: 500 to a statement at most, all of them there, in order."""
    inserts = []

    def watch(_connection: object, _cursor: object, statement: str, parameters: tuple[object, ...], *_: object) -> None:
        if statement.startswith("INSERT INTO kafka_messages"):
            inserts.append(len(parameters) // 8)

    event.listen(engine, "before_cursor_execute", watch)
    with engine.begin() as connection:
        Outbox().producer("orders").publish_list(connection, [Message(b"%d" % n) for n in range(10_000)])

    assert sum(inserts) == 10_000
    assert max(inserts) == 500
    with engine.connect() as connection:
        found = connection.execute(text("SELECT message FROM kafka_messages ORDER BY id")).scalars().all()
    assert found == [b"%d" % n for n in range(10_000)]


def test_twenty_megabytes_in_one_call(engine: Engine) -> None:
    """FO5, O6: statements are bounded by bytes too; MySQL and MariaDB take 16 MiB at once, and not more."""
    with engine.begin() as connection:
        Outbox().producer("orders").publish_list(connection, [Message(bytes([n]) * 1_000_000) for n in range(20)])
    with engine.begin() as connection:
        found = connection.execute(text("SELECT message FROM kafka_messages ORDER BY id")).scalars().all()
        connection.execute(text("DELETE FROM kafka_messages"))

    assert [(message[0], len(message)) for message in found] == [(n, 1_000_000) for n in range(20)]


def test_staged_messages_are_the_last_thing_before_the_commit(orders: Engine) -> None:
    """O7: the session's own changes are flushed first, even those made after the publish."""
    statements = []
    event.listen(orders, "before_cursor_execute", lambda *given: statements.append(given[2].split("(")[0].strip()))
    with Session(orders) as session:
        Outbox().producer("orders").publish(session, b"placed")
        session.add(Order(id=1, state="new"))
        session.flush()
        session.get_one(Order, 1).state = "placed"
        session.commit()

    changes = [each for each in statements if each.startswith(("INSERT", "UPDATE"))]
    assert [change.split()[0:3] for change in changes][-1] == ["INSERT", "INTO", "kafka_messages"]
    assert [change.split()[0] for change in changes] == ["INSERT", "UPDATE", "INSERT"]


def test_row_locks_come_before_ids(orders: Engine) -> None:
    """O7: two sessions that change one row publish in the order in which they get it, whoever published first."""
    if orders.dialect.name == "sqlite":
        return  # one writer at a time: nothing can interleave
    producer = Outbox().producer("orders")
    with Session(orders) as session:
        session.add(Order(id=1, state="new"))
        session.commit()
    with Session(orders) as early, Session(orders) as late:
        producer.publish(early, b"second")  # stages first, gets the row last
        late.execute(text("UPDATE shop_orders SET state = 'a' WHERE id = 1"))
        producer.publish(late, b"first")
        late.commit()
        early.execute(text("UPDATE shop_orders SET state = 'b' WHERE id = 1"))
        early.commit()

    assert [row["message"] for row in rows(orders)] == [b"first", b"second"]


@pytest.mark.parametrize("where", ["core", "session", "commit"])
def test_a_connection_that_is_lost_is_the_databases_own_error(engine: Engine, where: str) -> None:
    """An engine that has published rolls back a lost connection as any other does, and the first error is raised."""
    with engine.begin() as connection:
        ORDERS.publish(connection, b"before")
    with pytest.raises((DBAPIError, LostHere)):
        lose_while_publishing(engine, where)
    with Session(engine) as session:
        ORDERS.publish(session, b"after")
        session.commit()
    assert [row["message"] for row in rows(engine)] == [b"before", b"after"]


def lose_while_publishing(engine: Engine, where: str) -> None:
    """Lose the connection of a transaction that has published, and use it once more."""
    if where == "core":
        with engine.begin() as connection:
            ORDERS.publish(connection, b"lost")
            lose(connection)
            ORDERS.publish(connection, b"lost")
    with Session(engine) as session, session.begin():
        ORDERS.publish(session, b"lost")
        lose(session.connection())
        if where == "session":
            session.execute(text("SELECT 1"))


class LostHere(Exception):
    """SQLite has no server whose connections could be ended."""


def lose(connection: Connection) -> None:
    """End a connection at its server; on SQLite, do what SQLAlchemy does when it finds one lost."""
    kill = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}", "mariadb": "KILL {}"}
    me = {"postgresql": "SELECT pg_backend_pid()"}.get(connection.dialect.name, "SELECT CONNECTION_ID()")
    if connection.dialect.name == "sqlite":
        connection.invalidate()
        raise LostHere
    number = connection.execute(text(me)).scalar_one()
    with connection.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as other:
        other.execute(text(kill[connection.dialect.name].format(number)))


def test_a_session_that_has_not_begun_says_so(engine: Engine) -> None:
    """Without autobegin there is no transaction yet: SQLAlchemy's own error says what to do."""
    with Session(engine, autobegin=False) as session:
        with pytest.raises(InvalidRequestError, match="Autobegin is disabled"):
            ORDERS.publish(session, b"1")
        with session.begin():
            ORDERS.publish(session, b"2")
    assert [row["message"] for row in rows(engine)] == [b"2"]


def test_a_scoped_session_is_a_session(engine: Engine) -> None:
    """O8: the registry that web frameworks hand around."""
    registry = scoped_session(sessionmaker(engine))
    Outbox().producer("orders").publish(registry, b"1")
    registry.commit()
    registry.remove()

    assert count(engine) == 1


async def test_async_sessions_and_connections(async_engine: AsyncEngine, engine: Engine) -> None:
    """O1, O8: the async twins commit, roll back and nest as the blocking ones."""
    producer = Outbox().async_producer("orders")
    async with AsyncSession(async_engine) as session:
        await producer.publish(session, b"session")
        nested = await session.begin_nested()
        await producer.publish(session, b"dropped")
        await nested.rollback()
        await session.commit()
        await producer.publish(session, b"dropped too")
        await session.rollback()
    async with async_engine.begin() as connection:
        await producer.publish_list(connection, [Message(b"connection", key="k")])
    async with async_engine.connect() as connection:
        await producer.publish(connection, b"dropped as well")
        await connection.rollback()

    assert [row["message"] for row in rows(engine)] == [b"session", b"connection"]


def test_a_message_over_the_limit_is_refused_with_both_sizes(engine: Engine) -> None:
    """O9: before it is stored, by the topic's own limit where it has one."""
    settings = OutboxSettings(max_message_bytes_by_topic={"small": 1000})
    with Session(engine) as session:
        with pytest.raises(RecordTooLarge) as refused:
            Outbox(settings).producer("small").publish(session, b"x" * 2000, key="k")
        Outbox(settings).producer("large").publish(session, b"x" * 2000)
        session.commit()

    assert refused.value.limit_bytes == 1000
    assert refused.value.size_bytes > 2000
    assert str(refused.value.size_bytes) in str(refused.value)
    assert "1000" in str(refused.value)
    assert count(engine) == 1


def test_ids_are_never_given_twice(engine: Engine) -> None:
    """L23: not after the table was emptied, on SQLite either."""
    producer = Outbox().producer("orders")
    seen: list[int] = []
    for _ in range(3):
        with engine.begin() as connection:
            producer.publish_list(connection, [Message(b"x")] * 3)
        seen += [row["id"] for row in rows(engine)]
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM kafka_messages"))

    assert seen == sorted(set(seen))
    assert len(seen) == 9


def test_publishing_needs_a_place_to_publish_to(engine: Engine) -> None:
    """The backend db says what it wants when it is given something else, and a topic's name is checked at once."""
    with pytest.raises(BadArgument, match="Session or Connection"):
        Outbox().producer("orders").publish(engine, b"x")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="a topic name is"):
        Outbox().producer("no good name")
    with Session(engine) as session, pytest.raises(BadArgument, match="the outbox sets it"):
        Outbox().producer("orders").publish(session, b"x", headers={EVENT_ID: "mine"})


class TestBackends:
    """O2 on a log: the embedded one, and Kafka."""

    @pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
    async def log(self, request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[str], Awaitable[Log]]) -> Log:
        embedded = f"embedded:{tmp_path / 'log'}"
        return await opened(embedded if request.param == "embedded" else request.getfixturevalue("kafka").url)

    @pytest.fixture
    async def topic(self, log: Log) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        await log.admin.create(name, partitions=4, config=TopicConfig())
        return name

    async def test_one_setting_switches_and_one_call_overrides(self, log: Log, topic: str, sqlite_url: URL) -> None:
        """O2: the same code stores, sends and waits, or sends without waiting."""
        async_url = sqlite_url.set(drivername="sqlite+aiosqlite")
        migrate(sqlite_url)
        made = create_async_engine(async_url)

        async def place_order(outbox: Outbox, payload: bytes, **override: object) -> None:
            producer = outbox.async_producer(topic)
            async with AsyncSession(made) as session:
                await producer.publish(session, payload, key="k", partition_key="p", **override)  # type: ignore[arg-type]
                await session.commit()

        partition = partition_of(b"p", 4)
        sent = Outbox(OutboxSettings(backend="kafka"), log=log)
        await place_order(sent, b"waited")
        assert [r.value for r in await read_all(log, topic, partition)] == [b"waited"]
        later = Outbox(OutboxSettings(backend="kafka_async"), log=log)
        await place_order(later, b"soon")
        await later.flush()
        assert [r.value for r in await read_all(log, topic, partition)] == [b"waited", b"soon"]
        await place_order(sent, b"stored", backend="db")
        await made.dispose()

        assert len(await read_all(log, topic, partition)) == 2
        from headrace.outbox.engines import engine_for

        engine = engine_for(sqlite_url)
        assert [row["message"] for row in rows(engine)] == [b"stored"]
        engine.dispose()
        record = (await read_all(log, topic, partition))[0]
        assert [name for name, _ in record.headers] == [EVENT_ID]

    async def test_blocking_code_sends_from_its_thread(self, log: Log, topic: str) -> None:
        """O2: a blocking producer waits for the acknowledgement; on the log's own loop it would wait for itself."""
        outbox = Outbox(OutboxSettings(backend="kafka"), log=log)
        await asyncio.to_thread(outbox.producer(topic).publish, None, b"1", partition_key="p")
        assert len(await read_all(log, topic, partition_of(b"p", 4))) == 1
        with pytest.raises(BadArgument, match="async_producer"):
            outbox.producer(topic).publish(None, b"2")

    async def test_what_is_sent_without_waiting_is_counted_when_it_fails(self, log: Log) -> None:
        """O2: kafka_async to a topic that is not there raises nothing and is counted."""
        from headrace.outbox.metrics import ASYNC_FAILURES

        missing = f"missing-{uuid.uuid4().hex[:8]}"
        outbox = Outbox(OutboxSettings(backend="kafka_async"), log=log)
        outbox.producer(missing).publish(None, b"lost")

        async def is_counted() -> bool:
            return bool(ASYNC_FAILURES.labels(missing)._value.get() == 1)

        await eventually(is_counted)

    def test_sending_needs_a_log(self) -> None:
        """O2: without one the error says where to give it."""
        with pytest.raises(BadArgument, match="log=log"):
            Outbox(OutboxSettings(backend="kafka")).producer("t").publish(None, b"x")
