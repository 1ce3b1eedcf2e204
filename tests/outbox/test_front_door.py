"""Whatever an application gives: it is stored as it was meant, or refused with an error of ours before anything is."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session
from tests.outbox.setting import count, rows

from headrace.errors import BadArgument, HeadraceError
from headrace.model import Record
from headrace.outbox import BytesSerializer, Inbox, JsonSerializer, Message, Outbox, OutboxSettings, migrate
from headrace.outbox.engines import engine_for

SURROGATE = "\ud800"
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.binary(max_size=20),
    st.binary(max_size=5).map(bytearray),
    st.text(max_size=20),
    st.sampled_from([SURROGATE, "\0", "a\0b", b"\xff\xfe", "", b"", object(), object, print, 2**70, -1, "x" * 3000]),
    st.uuids(),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3) | st.integers(), st.text(max_size=3) | st.floats(), max_size=3),
    st.tuples(st.text(max_size=3), st.binary(max_size=3)).map(lambda pair: [pair]),
    st.sets(st.integers(), max_size=3),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """One file for many examples."""
    url = f"sqlite:///{tmp_path_factory.mktemp('front') / 'app.db'}"
    migrate(url)
    return engine_for(url)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([BytesSerializer(), JsonSerializer(), None]), ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_what_can_be_published_is_stored_and_nothing_else_happens(
    engine: Engine, serializer: Any, payload: Any, key: Any, partition_key: Any, headers: Any, event_time: Any
) -> None:
    """FO4: any value for any argument is stored, or refused by an error of ours with nothing stored."""
    producer = Outbox(OutboxSettings(max_message_bytes=2000)).producer("orders", serializer=serializer)
    before = count(engine)
    with Session(engine) as session:
        try:
            producer.publish(
                session, payload, key=key, partition_key=partition_key, headers=headers, event_time=event_time
            )
            stored = 1
        except HeadraceError:
            stored = 0
        session.commit()

    assert count(engine) == before + stored


@settings(max_examples=100, deadline=None)
@given(ANYTHING | st.just("db") | st.just("kafka"), ANYTHING | st.lists(st.just(Message(b"x"))))
def test_backends_and_lists_are_checked(engine: Engine, backend: Any, messages: Any) -> None:
    """O2: a backend that is none, or a list of something else, is refused; no message is dropped in silence."""
    before = count(engine)
    with Session(engine) as session:
        try:
            Outbox().producer("orders").publish_list(session, messages, backend=backend)
        except BadArgument:
            assert count(engine) == before
        else:
            session.commit()
            assert backend in ("db", None) or not messages
            assert count(engine) == before + len(messages)


@given(ANYTHING)
def test_topics_and_serializers_are_checked(anything: Any) -> None:
    """O4: at once, when the producer is made."""
    for make in (
        lambda: Outbox().producer(anything),
        lambda: Outbox().producer("orders", serializer=anything),
        lambda: Outbox().async_producer("orders", key_serializer=anything),
    ):
        _raises_only_ours(make)


def _raises_only_ours(call: Callable[[], object]) -> None:
    try:
        call()
    except HeadraceError:
        return


def test_messages_may_come_from_a_generator(engine: Engine) -> None:
    """O6: they are taken once."""
    before = count(engine)
    with engine.begin() as db:
        Outbox().producer("orders").publish_list(db, (Message(b"%d" % n) for n in range(3)))  # type: ignore[arg-type]
    assert count(engine) == before + 3


def test_keys_of_bytes_are_bytes_whatever_holds_them() -> None:
    """O5: a bytearray or a memoryview is the key that bytes would be."""
    from headrace.outbox.messages import encode_key

    assert encode_key(bytearray(b"\x00k")) == encode_key(memoryview(b"\x00k")) == b"\x00k"


def test_a_serializer_that_makes_no_bytes_is_refused(engine: Engine) -> None:
    """O4: text would be stored as something else by one database or the other."""

    class Wrong:
        def serialize(self, value: object) -> str:
            return str(value)

    with engine.begin() as db, pytest.raises(BadArgument, match="Wrong made str"):
        Outbox().producer("orders", serializer=Wrong()).publish(db, 1)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(ANYTHING, st.binary(max_size=20) | st.binary(min_size=395, max_size=900))
def test_an_inbox_takes_any_event_id(engine: Engine, consumer: Any, event_id: bytes) -> None:
    """L21: each id once, whatever it is made of; a consumer's name is checked at once."""
    _raises_only_ours(lambda: Inbox(consumer))
    record = Record("t", 0, 1, 1, headers=(("headrace.event-id", event_id),))
    inbox = Inbox(f"c-{uuid.uuid4()}")
    with engine.begin() as db:
        assert inbox.accept(db, record)
        assert not inbox.accept(db, record)


LONG = "x" * 399
EVENT_IDS = [b"a", b"a ", b"A", "ä".encode(), b"\xe4", b"\xe5", f"{LONG}1".encode(), f"{LONG}12".encode(), b"n\0", b"n"]


def test_ids_that_differ_are_never_taken_for_one(engine_of_each: Engine) -> None:
    """L21: not by their length, their case, their letters, or a blank at the end; nor are consumers."""
    with engine_of_each.begin() as db:
        for event_id in EVENT_IDS:
            record = Record("t", 0, 1, 1, headers=(("headrace.event-id", event_id),))
            for consumer in ("müller", "muller", "y" * 99 + "1", "y" * 99 + "2"):
                assert Inbox(consumer).accept(db, record), (consumer, event_id)
                assert not Inbox(consumer).accept(db, record)
    for bad in ("", "x" * 101, " a", "a ", "a\0", SURROGATE, None, 5, b"a"):
        with pytest.raises(BadArgument, match="consumer"):
            Inbox(bad)  # type: ignore[arg-type]


@pytest.fixture
def engine_of_each(database: URL) -> Iterator[Engine]:
    """An engine of each database."""
    made = engine_for(database)
    yield made
    made.dispose()


AUTOCOMMITS: list[dict[str, Any]] = [
    {"isolation_level": "AUTOCOMMIT"},
    {"execution_options": {"isolation_level": "AUTOCOMMIT"}},
]


@pytest.mark.parametrize("asked", AUTOCOMMITS)
def test_an_engine_without_transactions_is_refused(database: URL, asked: dict[str, Any]) -> None:
    """O1: with AUTOCOMMIT a message would be sent whatever becomes of the work; the error says so."""
    engine = create_engine(database, **asked)
    producer = Outbox().producer("orders")
    with Session(engine) as session, pytest.raises(BadArgument, match="AUTOCOMMIT"):
        producer.publish(session, b"x")
    with engine.connect() as connection, pytest.raises(BadArgument, match="AUTOCOMMIT"):
        producer.publish(connection, b"x")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM kafka_messages")).scalar_one() == 0
    engine.dispose()


DRIVERS_OWN = {"sqlite": {"isolation_level": None}, "postgresql": {"autocommit": True}, "mysql": {"autocommit": True}}


def test_a_driver_without_transactions_is_refused(database: URL) -> None:
    """O1: the same when it is the driver that was told."""
    backend = database.get_backend_name().replace("mariadb", "mysql")
    engine = create_engine(database, connect_args=DRIVERS_OWN[backend])
    with engine.connect() as connection, pytest.raises(BadArgument, match="AUTOCOMMIT"):
        Outbox().producer("orders").publish(connection, b"x")
    engine.dispose()
    checked = engine_for(database)
    assert rows(checked) == []
    checked.dispose()
