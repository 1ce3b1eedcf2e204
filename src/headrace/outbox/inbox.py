"""The consumer's side: each event once, in the consumer's own transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from headrace.errors import BadArgument
from headrace.model import Record
from headrace.outbox.database_faults import is_transient
from headrace.outbox.databases import execute
from headrace.outbox.dialects import speech_of
from headrace.outbox.headers import event_id_of
from headrace.outbox.inbox_failures import FailureKind, Failures, Handling, Limits, PoisonEvent
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

    def __init__(
        self,
        consumer: str,
        *,
        max_attempts: int = 5,
        max_interruptions: int = 100,
        table_prefix: str = DEFAULT_PREFIX,
    ) -> None:
        self.consumer = _checked_consumer(consumer)
        self._limits = Limits(
            _checked_limit("max_attempts", max_attempts), _checked_limit("max_interruptions", max_interruptions)
        )
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
        the database raises through its own fault (see `is_transient`) is raised, and is no failure of the event; but
        after `max_interruptions` of them, by a database that is there to count them, the event is poison too. Whatever
        happens before the handler is called is raised and not counted.
        """
        tried = _Try()
        try:
            with where.begin() as db:
                if not self.accept(db, record):
                    return Handling("known")
                tried.has_begun = True
                handler(db, record)
                self._failures.forget(_connection(db), self._event_id(record))
            return Handling("handled")
        except Exception as error:
            tried.failed(error)
            with where.begin() as db:
                handling = self._failed(_connection(db), record, tried)
            if handling is None:
                raise
        return handling

    async def handle_async(
        self, where: AsyncWhere, record: Record, handler: Callable[[Any, Record], Awaitable[object]]
    ) -> Handling:
        """The same for coroutines: `where` is an AsyncEngine or an async_sessionmaker."""
        tried = _Try()
        try:
            async with where.begin() as db:
                if not await self.accept_async(db, record):
                    return Handling("known")
                tried.has_begun = True
                await handler(db, record)
                await db.run_sync(lambda own: self._failures.forget(_connection(own), self._event_id(record)))
            return Handling("handled")
        except Exception as error:
            tried.failed(error)
            async with where.begin() as db:
                handling = await db.run_sync(lambda own: self._failed(_connection(own), record, tried))
            if handling is None:
                raise
        return handling

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

    def _failed(self, db: Connection, record: Record, tried: _Try) -> Handling | None:
        """Count the failure, and give the event up if it was the last that is allowed; None for an interruption."""
        event_id = self._event_id(record)
        failures = self._failures.note(db, event_id, record, tried.story, limits=self._limits, kind=tried.kind)
        if not self._limits.are_reached_by(failures):
            return Handling("failed", failures.attempts, tried.story) if tried.kind == "attempts" else None
        if not self.accept(db, record):  # it was handled meanwhile, where it was delivered again
            self._failures.forget(db, event_id)
            return Handling("known")
        return Handling("poison", failures.attempts, tried.story)

    def forget(self, db: Connection, *, older_than_s: float) -> int:
        """Forget events that came longer ago than any duplicate could take; returns how many."""
        now = speech_of(db.dialect.name).now_ms
        sql = f"DELETE FROM kafka_inbox WHERE consumer = :consumer AND received_at < {now} - :age_ms"  # noqa: S608
        asked = {"consumer": self.consumer, "age_ms": int(older_than_s * 1000)}
        return execute(db, renamed(sql, self._table_prefix), asked).rowcount

    def _insert(self, dialect: str) -> str:
        sql = speech_of(dialect).insert_ignoring("kafka_inbox", ("consumer", "event_id"))
        return renamed(sql, self._table_prefix)

    def _event_id(self, record: Record) -> str:
        return self._row(record)["event_id"]

    def _row(self, record: Record) -> dict[str, str]:
        """An event from elsewhere has no id; its place in the log is as good, though not across a re-send."""
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        return {"consumer": self.consumer, "event_id": _storable(event_id_of(record.headers) or place)}


class _Try:
    """One try of a handler: whether it came to be called, and how it failed."""

    has_begun = False
    kind: FailureKind = "attempts"
    story = ""

    def failed(self, error: Exception) -> None:
        """Tell whose fault it was. Raises the error if the handler was not even called."""
        if not self.has_begun:
            raise error
        self.kind = "interruptions" if is_transient(error) else "attempts"
        self.story = f"{type(error).__name__}: {error}"


def _checked_limit(name: str, limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadArgument(name, limit, "an event is tried once at least")
    return limit


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
