"""The consumer's side: each event once, in the consumer's own transaction."""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from headrace.errors import BadArgument
from headrace.model import Record
from headrace.outbox.databases import execute
from headrace.outbox.dialects import speech_of
from headrace.outbox.headers import event_id_of
from headrace.outbox.table_names import DEFAULT_PREFIX, checked_prefix, renamed

__all__ = ["Inbox"]

_MOST_CONSUMER = 100
_MOST_EVENT_ID = 400


class Inbox:
    """Remembers which events a consumer has handled, in the table kafka_inbox of the consumer's database.

    Promises: of all deliveries of an event to one consumer exactly one `accept` that is committed returned True.
    The consumer handles the event in the same transaction, and skips it when `accept` says False.
    """

    def __init__(self, consumer: str, *, table_prefix: str = DEFAULT_PREFIX) -> None:
        self.consumer = _checked_consumer(consumer)
        self._table_prefix = checked_prefix(table_prefix)

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
