"""The consumer's side: each event once, in the consumer's own transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from headrace.errors import BadArgument
from headrace.model import Record
from headrace.outbox.databases import execute
from headrace.outbox.dialects import speech_of
from headrace.outbox.headers import event_id_of
from headrace.outbox.inbox_failures import Failures, Handling, PoisonEvent
from headrace.outbox.table_names import DEFAULT_PREFIX, checked_prefix, renamed

__all__ = ["Inbox"]

BlockingWhere: TypeAlias = Engine | sessionmaker[Session]
AsyncWhere: TypeAlias = AsyncEngine | async_sessionmaker[AsyncSession]

_MOST_CONSUMER = 100
_MOST_EVENT_ID = 400


class Inbox:
    """Remembers which events a consumer has handled, in the table kafka_inbox of the consumer's database.

    Promises: of all deliveries of an event to one consumer exactly one `accept` that is committed returned True.
    The consumer handles the event in the same transaction, and skips it when `accept` says False.
    """

    def __init__(self, consumer: str, *, max_attempts: int = 5, table_prefix: str = DEFAULT_PREFIX) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
            raise BadArgument("max_attempts", max_attempts, "an event is tried once at least")
        self.consumer = _checked_consumer(consumer)
        self._max_attempts = max_attempts
        self._table_prefix = checked_prefix(table_prefix)
        self._failures = Failures(self.consumer, table_prefix=self._table_prefix)

    def accept(self, where: Session | Connection, record: Record) -> bool:
        """Say whether this is the event's first time, and remember it with the transaction."""
        db = _connection(where)
        return execute(db, self._insert(db.dialect.name), self._row(record)).rowcount == 1

    async def accept_async(self, where: AsyncSession | AsyncConnection, record: Record) -> bool:
        """The same for coroutines."""
        db = await where.connection() if isinstance(where, AsyncSession) else where
        done = await db.execute(text(self._insert(db.dialect.name)), self._row(record))
        return done.rowcount == 1

    def handle(self, where: BlockingWhere, record: Record, handler: Callable[[Any, Record], object]) -> Handling:
        """Handle the record in a transaction of its own, once; count what the handler raises.

        `where` is an Engine or a sessionmaker; the handler gets its Connection or Session, and the record. After
        `max_attempts` failures the event is poison: it is set aside, whole, and counts as known from then on. What
        the database raises because it is away is no fault of the event, and is raised.
        """
        event_id = self._row(record)["event_id"]
        try:
            with where.begin() as db:
                if not self.accept(db, record):
                    return Handling("known")
                handler(db, record)
                self._failures.forget(_connection(db), event_id)
            return Handling("handled")
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            story = f"{type(error).__name__}: {error}"
        with where.begin() as db:
            return self._failed(_connection(db), record, story)

    async def handle_async(
        self, where: AsyncWhere, record: Record, handler: Callable[[Any, Record], Awaitable[object]]
    ) -> Handling:
        """The same for coroutines: `where` is an AsyncEngine or an async_sessionmaker."""
        event_id = self._row(record)["event_id"]
        try:
            async with where.begin() as db:
                if not await self.accept_async(db, record):
                    return Handling("known")
                await handler(db, record)
                await db.run_sync(lambda blocking: self._failures.forget(_connection(blocking), event_id))
            return Handling("handled")
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            story = f"{type(error).__name__}: {error}"
        async with where.begin() as db:
            return await db.run_sync(lambda blocking: self._failed(_connection(blocking), record, story))

    def poison(self, where: Session | Connection, *, limit: int = 1000) -> list[PoisonEvent]:
        """Return the events that were given up, the oldest first."""
        return self._failures.poison(_connection(where), limit=limit)

    def release(self, where: Session | Connection, event_id: str) -> bool:
        """Let a poison event be handled again, for which `handle` takes its record; returns whether it was there."""
        db = _connection(where)
        if not self._failures.forget(db, event_id):
            return False
        sql = renamed("DELETE FROM kafka_inbox WHERE consumer = :consumer AND event_id = :id", self._table_prefix)
        execute(db, sql, {"consumer": self.consumer, "id": event_id})
        return True

    def _failed(self, db: Connection, record: Record, error: str) -> Handling:
        event_id = self._row(record)["event_id"]
        attempts = self._failures.note(db, event_id, record, error, max_attempts=self._max_attempts)
        if attempts < self._max_attempts:
            return Handling("failed", attempts, error)
        if not self.accept(db, record):  # it was handled meanwhile, where it was delivered again
            self._failures.forget(db, event_id)
            return Handling("known")
        return Handling("poison", attempts, error)

    def forget(self, db: Connection, *, older_than_s: float) -> int:
        """Forget events that came longer ago than any duplicate could take; returns how many."""
        now = speech_of(db.dialect.name).now_ms
        sql = f"DELETE FROM kafka_inbox WHERE consumer = :consumer AND received_at < {now} - :age_ms"  # noqa: S608
        asked = {"consumer": self.consumer, "age_ms": int(older_than_s * 1000)}
        return execute(db, renamed(sql, self._table_prefix), asked).rowcount

    def _insert(self, dialect: str) -> str:
        sql = speech_of(dialect).insert_ignoring("kafka_inbox", ("consumer", "event_id"))
        return renamed(sql, self._table_prefix)

    def _row(self, record: Record) -> dict[str, str]:
        """An event from elsewhere has no id; its place in the log is as good, though not across a re-send."""
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        return {"consumer": self.consumer, "event_id": _storable(event_id_of(record.headers) or place)}


def _connection(where: Session | Connection) -> Connection:
    return where.connection() if isinstance(where, Session) else where


def _checked_consumer(consumer: object) -> str:
    rule = (
        f"a consumer's name is text of 1 to {_MOST_CONSUMER} characters that can be printed, without blanks at its ends"
    )
    if not isinstance(consumer, str) or not 1 <= len(consumer) <= _MOST_CONSUMER or not _is_storable(consumer):
        raise BadArgument("consumer", consumer, rule)
    return consumer


def _storable(event_id: str) -> str:
    """Return the id if every database keeps it apart from all others, else a digest of it.

    Ids from elsewhere may be of any length; MySQL would cut them, and takes a blank at the end for nothing.
    """
    if len(event_id) <= _MOST_EVENT_ID and _is_storable(event_id):
        return event_id
    return f"sha256:{hashlib.sha256(event_id.encode(errors='surrogatepass')).hexdigest()}"


def _is_storable(words: str) -> bool:
    return words == words.strip() and words.isprintable()
