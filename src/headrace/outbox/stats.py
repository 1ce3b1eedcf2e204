"""Statistics of an outbox: what waits, for how long, and which worker holds which lane."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.engine import Connection

from headrace.outbox.dialects import dialect_of
from headrace.outbox.engines import execute
from headrace.outbox.metrics import PENDING_COUNT, PENDING_MAX_WAIT

__all__ = ["LaneStatus", "TopicPending", "is_empty", "pending", "show_pending", "status"]


@dataclass(frozen=True, slots=True)
class TopicPending:
    """How many messages of a topic wait, and the age of the oldest."""

    topic: str
    count: int
    max_wait_s: float


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One row of kafka_topic_info, with what waits and what is dead there. Times are by the database's clock."""

    topic: str
    bucket: int
    pending: int
    max_wait_s: float
    dead: int
    locked_by: str | None
    locked_for_s: float | None
    epoch: int
    error: bool
    retries: int
    retry_in_s: float | None
    last_error: str | None


def pending(db: Connection) -> list[TopicPending]:
    """Return what waits by topic; topics that were sent before and have nothing now are there with 0."""
    now = dialect_of(db.dialect.name).now_ms
    rows = execute(
        db,
        f"SELECT t.topic, COUNT(m.id), COALESCE({now} - MIN(m.created_at), 0) FROM "  # noqa: S608
        "(SELECT topic FROM kafka_topic_info UNION SELECT topic FROM kafka_messages) t "
        "LEFT JOIN kafka_messages m ON m.topic = t.topic GROUP BY t.topic ORDER BY t.topic",
    )
    return [TopicPending(topic, count, max(0.0, float(age_ms) / 1000)) for topic, count, age_ms in rows]


def is_empty(db: Connection) -> bool:
    """Return True if nothing waits, without counting."""
    return execute(db, "SELECT 1 FROM kafka_messages LIMIT 1").first() is None


def show_pending(found: list[TopicPending]) -> None:
    """Set the gauges."""
    for each in found:
        PENDING_COUNT.labels(each.topic).set(each.count)
        PENDING_MAX_WAIT.labels(each.topic).set(each.max_wait_s)


def status(db: Connection) -> list[LaneStatus]:
    """Return every lane that was ever used or has messages, in order."""
    now = dialect_of(db.dialect.name).now_ms
    grouped = "SELECT topic, bucket, COUNT(*) AS n, MIN(created_at) AS oldest FROM {} GROUP BY topic, bucket"
    rows = execute(
        db,
        "SELECT p.topic, p.bucket, COALESCE(m.n, 0), "  # noqa: S608
        f"COALESCE({now} - m.oldest, 0), COALESCE(d.n, 0), "
        f"i.locked_by, {now} - i.locked_at, COALESCE(i.epoch, 0), COALESCE(i.error, FALSE), COALESCE(i.retries, 0), "
        f"i.retry_at - {now}, i.last_error FROM "
        "(SELECT topic, bucket FROM kafka_topic_info UNION SELECT topic, bucket FROM kafka_messages "
        "UNION SELECT topic, bucket FROM kafka_dead_messages) p "
        "LEFT JOIN kafka_topic_info i ON i.topic = p.topic AND i.bucket = p.bucket "
        f"LEFT JOIN ({grouped.format('kafka_messages')}) m ON m.topic = p.topic AND m.bucket = p.bucket "
        f"LEFT JOIN ({grouped.format('kafka_dead_messages')}) d ON d.topic = p.topic AND d.bucket = p.bucket "
        "ORDER BY p.topic, p.bucket",
    )
    return [_status(*row) for row in rows]


def _status(
    topic: str,
    bucket: int,
    count: int,
    age_ms: float,
    dead: int,
    locked_by: str | None,
    locked_ms: float | None,
    epoch: int,
    error: bool,
    retries: int,
    retry_ms: float | None,
    last_error: str | None,
) -> LaneStatus:
    return LaneStatus(
        topic=topic,
        bucket=bucket,
        pending=count,
        max_wait_s=max(0.0, float(age_ms) / 1000),
        dead=dead,
        locked_by=locked_by,
        locked_for_s=None if locked_ms is None else float(locked_ms) / 1000,
        epoch=epoch,
        error=bool(error),
        retries=retries,
        retry_in_s=None if retry_ms is None else max(0.0, float(retry_ms) / 1000),
        last_error=last_error,
    )
