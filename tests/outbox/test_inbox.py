"""A consumer that fails: its event is tried again, counted, and set aside when it is hopeless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.outbox.setting import count
from tests.outbox.test_publishing import ASYNC_DRIVERS

from headrace.errors import BadArgument
from headrace.model import Record
from headrace.outbox import Handling, Inbox

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

    class Slow:
        """The engine, with another delivery before the second transaction begins."""

        times = 0

        def begin(self) -> Any:
            self.times += 1
            if self.times == 2:
                assert inbox.handle(engine, EVENT, failing(0)) == Handling("handled")
            return engine.begin()

    slow: Any = Slow()

    assert inbox.handle(slow, EVENT, failing(1)) == Handling("known")
    with engine.begin() as db:
        assert inbox.poison(db) == []
        assert not inbox.release(db, "e-1")


def test_a_database_that_is_away_is_no_fault_of_the_event(engine: Engine) -> None:
    """L12: its error is raised, and no attempt is spent."""

    def lose_the_database(_db: object, _record: Record) -> None:
        raise OperationalError("SELECT", {}, ConnectionError("gone"))

    with pytest.raises(OperationalError):
        Inbox("billing", max_attempts=1).handle(engine, EVENT, lose_the_database)

    assert count(engine, "kafka_inbox_failures") == 0
    assert Inbox("billing").handle(engine, EVENT, failing(0)) == Handling("handled")


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


@pytest.mark.parametrize("bad", [0, -1, True, None, "5", 1.0])
def test_attempts_are_counted_in_whole_numbers(bad: Any) -> None:
    """The front door checks it."""
    with pytest.raises(BadArgument, match="max_attempts"):
        Inbox("billing", max_attempts=bad)
