"""The consumer's side: each event once, in the consumer's own transaction."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from headrace.model import Record
from headrace.outbox.databases import execute
from headrace.outbox.dialects import speech_of
from headrace.outbox.headers import event_id_of

__all__ = ["Inbox"]


class Inbox:
    """Remembers which events a consumer has handled, in the table kafka_inbox of the consumer's database.

    Promises: of all deliveries of an event to one consumer exactly one `accept` that is committed returned True.
    The consumer handles the event in the same transaction, and skips it when `accept` says False.
    """

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer

    def accept(self, where: Session | Connection, record: Record) -> bool:
        """Say whether this is the event's first time, and remember it with the transaction."""
        db = where.connection() if isinstance(where, Session) else where
        return execute(db, self._insert(db.dialect.name), self._row(record)).rowcount == 1

    async def accept_async(self, where: AsyncSession | AsyncConnection, record: Record) -> bool:
        """The same for coroutines."""
        db = await where.connection() if isinstance(where, AsyncSession) else where
        done = await db.execute(text(self._insert(db.dialect.name)), self._row(record))
        return done.rowcount == 1

    def forget(self, db: Connection, *, older_than_s: float) -> int:
        """Forget events that came longer ago than any duplicate could take; returns how many."""
        now = speech_of(db.dialect.name).now_ms
        return execute(
            db,
            f"DELETE FROM kafka_inbox WHERE consumer = :consumer AND received_at < {now} - :age_ms",  # noqa: S608
            {"consumer": self.consumer, "age_ms": int(older_than_s * 1000)},
        ).rowcount

    def _insert(self, dialect: str) -> str:
        return speech_of(dialect).insert_ignoring("kafka_inbox", ("consumer", "event_id"))

    def _row(self, record: Record) -> dict[str, str]:
        """An event from elsewhere has no id; its place in the log is as good, though not across a re-send."""
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        return {"consumer": self.consumer, "event_id": event_id_of(record.headers) or place}
