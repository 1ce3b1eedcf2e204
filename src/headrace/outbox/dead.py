"""Dead letters: listing them, sending them again, deleting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from headrace.outbox.dialects import dialect_of
from headrace.outbox.engines import execute
from headrace.outbox.rows import message_columns

__all__ = ["DeadMessage", "dead_messages", "missing_ids", "purge", "replay"]


class DeadMessage(NamedTuple):
    """A message that could not be sent, and why."""

    id: int
    topic: str
    bucket: int
    key: bytes | None
    message: bytes | None
    event_id: str
    error: str
    attempts: int
    created_at: int
    dead_at: int


def dead_messages(db: Connection, *, topic: str | None = None, limit: int = 1000) -> list[DeadMessage]:
    """Return dead messages in id order."""
    key = dialect_of(db.dialect.name).key
    where, asked = _chosen(db, topic, None)
    rows = execute(
        db,
        f"SELECT id, topic, bucket, {key}, message, event_id, error, attempts, created_at, dead_at "  # noqa: S608
        f"FROM kafka_dead_messages WHERE {where} ORDER BY id LIMIT :most",
        {**asked, "most": limit},
    )
    return [DeadMessage._make(row) for row in rows]


def missing_ids(db: Connection, ids: Sequence[int], *, topic: str | None = None) -> list[int]:
    """Return those of the ids that no dead message has, or none of the topic."""
    where, asked = _chosen(db, topic, ids)
    rows = execute(db, f"SELECT id FROM kafka_dead_messages WHERE {where}", asked)  # noqa: S608
    return sorted(set(ids) - {found for (found,) in rows})


def replay(db: Connection, *, topic: str | None = None, ids: Sequence[int] | None = None) -> int:
    """Put dead messages back among those to send, in one transaction; returns how many.

    They keep their ids, so that what was held back behind them stays behind them. Where the table was emptied and
    counts from 1 again, another message may have the id: then the dead one gets a new id, behind all others.
    """
    where, asked = _chosen(db, topic, ids)
    lanes = _lock_lanes(db, where, asked)
    condition, parameters = _taken(db, where, asked)
    names = message_columns(dialect_of(db.dialect.name))
    for columns, rows in ((names, f"NOT ({condition})"), (names[1:], condition)):
        listed = ", ".join(columns)
        execute(
            db,
            f"INSERT INTO kafka_messages ({listed}) SELECT {listed} FROM kafka_dead_messages "  # noqa: S608
            f"WHERE {where} AND {rows} ORDER BY id",
            {**asked, **parameters},
        )
    count = execute(db, f"DELETE FROM kafka_dead_messages WHERE {where}", asked).rowcount  # noqa: S608
    _let_try_now(db, lanes)
    return count


def _taken(db: Connection, where: str, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the condition of those that were chosen whose ids other messages have."""
    chosen = f"SELECT id FROM kafka_dead_messages WHERE {where}"  # noqa: S608
    found = execute(db, f"SELECT m.id FROM kafka_messages m WHERE m.id IN ({chosen})", asked)  # noqa: S608
    condition, parameters = dialect_of(db.dialect.name).with_ids([id_ for (id_,) in found] or [-1])
    return condition.replace(":ids", ":taken"), {"taken": parameters["ids"]} if parameters else {}


def purge(db: Connection, *, topic: str | None = None, ids: Sequence[int] | None = None) -> int:
    """Delete dead messages, which frees what they held back; returns how many."""
    where, asked = _chosen(db, topic, ids)
    lanes = _lock_lanes(db, where, asked)
    count = execute(db, f"DELETE FROM kafka_dead_messages WHERE {where}", asked).rowcount  # noqa: S608
    _let_try_now(db, lanes)
    return count


def _chosen(db: Connection, topic: str | None, ids: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
    conditions, asked = ["1 = 1"], {}
    if topic is not None:
        conditions.append("topic = :topic")
        asked["topic"] = topic
    if ids is not None:
        condition, parameters = dialect_of(db.dialect.name).with_ids(list(ids) or [-1])
        conditions.append(condition)
        asked.update(parameters)
    return " AND ".join(conditions), asked


def _lock_lanes(db: Connection, where: str, asked: dict[str, Any]) -> list[tuple[str, int]]:
    """Lock the rows, so that two operators don't bring the same message back."""
    lock = dialect_of(db.dialect.name).lock_rows
    rows = execute(db, f"SELECT topic, bucket FROM kafka_dead_messages WHERE {where} {lock}", asked)  # noqa: S608
    return sorted({(topic, bucket) for topic, bucket in rows})


def _let_try_now(db: Connection, lanes: list[tuple[str, int]]) -> None:
    for topic, bucket in lanes:
        execute(
            db,
            "UPDATE kafka_topic_info SET retry_at = NULL WHERE topic = :topic AND bucket = :bucket",
            {"topic": topic, "bucket": bucket},
        )
