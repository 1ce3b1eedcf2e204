"""Sent messages that are kept for a while: listing them, and deleting the old ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from headrace.outbox.databases import execute
from headrace.outbox.dialects import dialect_of

__all__ = ["SentMessage", "forget_sent", "sent_messages"]


class SentMessage(NamedTuple):
    """A message that was sent, and when it was deleted from those to send."""

    id: int
    topic: str
    bucket: int
    key: bytes | None
    message: bytes | None
    headers: str | None
    event_id: str
    event_time: int | None
    created_at: int
    sent_at: int


def sent_messages(
    db: Connection, *, topic: str | None = None, event_id: str | None = None, limit: int = 1000
) -> list[SentMessage]:
    """Return kept messages, the last ones first."""
    asked: dict[str, Any] = {"topic": topic, "event_id": event_id}
    given = {name: value for name, value in asked.items() if value is not None}
    where = " AND ".join(["1 = 1", *(f"{name} = :{name}" for name in given)])
    key = dialect_of(db.dialect.name).key
    rows = execute(
        db,
        f"SELECT id, topic, bucket, {key}, message, headers, event_id, event_time, created_at, sent_at "  # noqa: S608
        f"FROM kafka_sent_messages WHERE {where} ORDER BY sent_at DESC, id DESC LIMIT :most",
        {**given, "most": limit},
    )
    return [SentMessage._make(row) for row in rows]


def forget_sent(db: Connection, *, older_than_s: float) -> int:
    """Delete messages that were sent longer ago; returns how many."""
    now = dialect_of(db.dialect.name).now_ms
    sql = f"DELETE FROM kafka_sent_messages WHERE sent_at < {now} - :age_ms"  # noqa: S608
    return execute(db, sql, {"age_ms": int(older_than_s * 1000)}).rowcount
