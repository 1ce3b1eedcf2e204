"""The relay's reads and deletes: batches in id order, and deletes of exactly the acknowledged ids, fenced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy.engine import Connection

from headrace.outbox.databases import Database, execute
from headrace.outbox.dialects import Speech
from headrace.outbox.leases import Lease, confirm
from headrace.outbox.messages import PendingMessage, Place
from headrace.outbox.ports import PoisonPolicy
from headrace.runtime import crash_point

__all__ = ["Rows", "message_columns"]

# Blocked is a key, or a topic, with a dead message; whatever came behind it stays where it is.
_KEY_IS_FREE = (
    "AND NOT EXISTS (SELECT 1 FROM kafka_dead_messages d WHERE d.topic = m.topic AND d.bucket = m.bucket "
    "AND COALESCE(d.partition_key, d.{key}) = COALESCE(m.partition_key, m.{key}))"
)
_TOPIC_IS_FREE = "AND NOT EXISTS (SELECT 1 FROM kafka_dead_messages d WHERE d.topic = m.topic)"


class Rows:
    """The rows of kafka_messages as the relay uses them."""

    def __init__(self, database: Database, *, batch_size: int) -> None:
        self._database = database
        self._speech = database.speech
        self._batch_size = batch_size

    async def read(self, place: Place, policy: PoisonPolicy, *, after: int = 0) -> list[PendingMessage]:
        """Return the next batch in id order, from the lowest id on unless told."""
        sql = self._select(policy)
        asked = {"topic": place.topic, "bucket": place.bucket, "after": after, "most": self._batch_size}
        return await self._database.read(lambda db: _fetch(db, sql, asked))

    async def settle(
        self,
        lease: Lease,
        sent: Sequence[int],
        refused: Mapping[int, str],
        *,
        progress_offset: int | None = None,
    ) -> int:
        """Delete what was sent and bury what was refused, if the lease is still ours. Raises LeaseLost.

        Returns how many rows went away. One transaction: the lease's row is locked in it, so that the fence holds
        until the commit.
        """
        return await self._database.write(lambda db: self._settle(db, lease, sent, refused, progress_offset))

    def _settle(
        self,
        db: Connection,
        lease: Lease,
        sent: Sequence[int],
        refused: Mapping[int, str],
        progress_offset: int | None,
    ) -> int:
        confirm(db, self._speech, lease, progress_offset=progress_offset)
        for id_, reason in refused.items():
            self._bury(db, id_, reason)
        ids = [*sent, *refused]
        if not ids:
            return 0
        condition, parameters = self._speech.with_ids(ids)
        gone = execute(db, self._speech.delete_messages + condition, parameters).rowcount
        crash_point("outbox.before-delete-commit")
        return gone

    def _bury(self, db: Connection, id_: int, reason: str) -> None:
        columns = (
            f"id, topic, message, {self._speech.key}, partition_key, headers, event_id, bucket, event_time, created_at"
        )
        execute(
            db,
            f"INSERT INTO kafka_dead_messages ({columns}, error, attempts) "  # noqa: S608
            f"SELECT {columns}, :reason, 1 FROM kafka_messages WHERE id = :id",
            {"id": id_, "reason": reason},
        )

    def _select(self, policy: PoisonPolicy) -> str:
        key = self._speech.key
        unblocked = {"skip": "", "block_key": _KEY_IS_FREE.format(key=key), "block_topic": _TOPIC_IS_FREE}[policy]
        return (
            f"SELECT m.id, m.message, m.{key}, m.partition_key, m.headers, m.event_id, m.event_time, m.created_at "  # noqa: S608
            "FROM kafka_messages m WHERE m.topic = :topic AND m.bucket = :bucket AND m.id > :after "
            f"{unblocked} ORDER BY m.id LIMIT :most"
        )


def _fetch(db: Connection, sql: str, asked: Mapping[str, object]) -> list[PendingMessage]:
    # Straight from the driver's cursor: SQLAlchemy's rows cost as much again as the driver's.
    return [PendingMessage._make(row) for row in cast("Any", execute(db, sql, asked)).cursor.fetchall()]


def message_columns(speech: Speech) -> tuple[str, ...]:
    """Return the columns that kafka_messages and kafka_dead_messages share, as the database writes them."""
    given = ("topic", "message", speech.key, "partition_key", "headers", "event_id", "bucket", "event_time")
    return ("id", *given, "created_at")
