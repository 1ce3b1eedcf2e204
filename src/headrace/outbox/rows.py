"""The rows of messages: batches in id order, fenced deletes of the acknowledged ones, and sent ones that are kept.

A batch is the lowest ids that are committed and not in hand, all from one snapshot of the database. That keeps the
order of a key whose transactions wait for one another: the later one gets its ids, and commits, when the earlier one
has committed, so a snapshot with the later one's messages has the earlier one's too, with lower ids. To read on from
the last id instead would pass by a lower id that is committed meanwhile. A slow transaction holds up no other:
whatever of its key is committed with a higher id did not wait for it, and has no order with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol, cast

from sqlalchemy.engine import Connection

from headrace.outbox.dialects import Dialect, dialect_of
from headrace.outbox.engines import Database, execute, storable
from headrace.outbox.leases import LaneLease, confirm
from headrace.outbox.messages import Lane, PendingMessage
from headrace.outbox.ports import PoisonPolicy
from headrace.runtime import crash_point

__all__ = [
    "MessageRows",
    "RowBatch",
    "SentMessage",
    "Settled",
    "forget_sent",
    "message_columns",
    "parts_of",
    "sent_messages",
]

# As many messages as one statement copies or deletes; a restored database may have more than a batch to catch up with.
_MOST_AT_ONCE = 5000

# Blocked is a key, or a topic, with a dead message; whatever came behind it stays where it is.
_KEY_IS_FREE = (
    "AND NOT EXISTS (SELECT 1 FROM kafka_dead_messages d WHERE d.topic = m.topic AND d.bucket = m.bucket "
    "AND COALESCE(d.partition_key, d.{key}) = COALESCE(m.partition_key, m.{key}))"
)
_TOPIC_IS_FREE = "AND NOT EXISTS (SELECT 1 FROM kafka_dead_messages d WHERE d.topic = m.topic)"


class RowBatch(NamedTuple):
    """Messages in id order; a full batch was cut, by their number or their bytes, so that more may follow."""

    rows: list[PendingMessage]
    is_full: bool


class Settled(Protocol):
    """What became of messages: those that are in the log, and those that can't be sent, each with the reason.

    `event_ids` has the event id of each of them, `superseded` those for which a later message was sent.
    """

    @property
    def ids(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def refused(self) -> Mapping[int, str]: ...  # noqa: D102

    @property
    def event_ids(self) -> Mapping[int, str]: ...  # noqa: D102

    @property
    def superseded(self) -> AbstractSet[int]: ...  # noqa: D102

    @property
    def progress_offset(self) -> int | None: ...  # noqa: D102


class MessageRows:
    """The rows of kafka_messages as the relay uses them."""

    def __init__(
        self,
        database: Database,
        *,
        batch_size: int,
        batch_bytes: int,
        keeps_sent: Callable[[str], bool] = lambda _topic: False,
    ) -> None:
        self._database = database
        self._keeps_sent = keeps_sent
        self._dialect = database.dialect
        self._batch_size = batch_size
        self._batch_bytes = batch_bytes
        key = self._dialect.key
        self._columns = f"m.id, m.message, m.{key}, m.partition_key, m.headers, m.event_id, m.event_time, m.created_at"

    async def read(self, lane: Lane, policy: PoisonPolicy, *, in_hand: Sequence[int] = ()) -> RowBatch:
        """Return the lowest ids that are not in hand, in order: a batch of one snapshot."""
        without, parameters = self._dialect.without_ids(in_hand) if in_hand else ("", {})
        sql = self._select(policy, without)
        asked = {"topic": lane.topic, "bucket": lane.bucket, "most": self._batch_size, "bytes": self._batch_bytes}
        return await self._database.read(lambda db: self._fetch(db, sql, {**asked, **parameters}))

    async def of(self, lane: Lane, ids: Sequence[int]) -> list[PendingMessage]:
        """Return those of the ids that the lane has, in order."""
        if not ids:
            return []
        condition, parameters = self._dialect.with_ids(ids)
        sql = (
            f"SELECT {self._columns} FROM kafka_messages m "  # noqa: S608
            f"WHERE m.topic = :topic AND m.bucket = :bucket AND m.{condition} ORDER BY m.id"
        )
        asked = {"topic": lane.topic, "bucket": lane.bucket, **parameters}
        return await self._database.read(lambda db: [PendingMessage._make(row) for row in execute(db, sql, asked)])

    async def still_there(self, event_ids: Mapping[int, str]) -> dict[int, str]:
        """Return those of the messages, by id and event id, that the table has."""
        return await self._database.read(lambda db: self._still_there(db, event_ids)) if event_ids else {}

    def _still_there(self, db: Connection, event_ids: Mapping[int, str]) -> dict[int, str]:
        found: dict[int, str] = {}
        for chosen in parts_of(event_ids):
            condition, parameters = self._dialect.with_messages(chosen)
            rows = execute(db, f"SELECT id, event_id FROM kafka_messages WHERE {condition}", parameters)  # noqa: S608
            found.update((id_, event_id) for id_, event_id in rows if chosen[id_] == event_id)
        return found

    async def settle(self, lease: LaneLease, settled: Settled) -> int:
        """Delete what was sent and bury what was refused, if the lease is still ours. Raises LeaseLost.

        Returns how many rows went away. One transaction: the lease's row is locked in it, so that the fence holds
        until the commit.
        """
        return await self._database.write(lambda db: self._settle(db, lease, settled))

    def _settle(self, db: Connection, lease: LaneLease, settled: Settled) -> int:
        confirm(db, self._dialect, lease, progress_offset=settled.progress_offset)
        for id_, reason in settled.refused.items():
            self._bury(db, id_, settled.event_ids[id_], reason)
        if self._keeps_sent(lease.lane.topic):
            self._keep(db, {id_: settled.event_ids[id_] for id_ in settled.ids if id_ not in settled.superseded})
        gone, ids = 0, [*settled.ids, *settled.refused]
        for chosen in parts_of({id_: settled.event_ids[id_] for id_ in ids}):
            condition, parameters = self._dialect.with_messages(chosen)
            gone += execute(db, self._dialect.delete_messages + condition, parameters).rowcount
        crash_point("outbox.before-delete-commit")
        return gone

    def _keep(self, db: Connection, sent: Mapping[int, str]) -> None:
        """Copy messages to where sent ones are kept; one that is there already was sent twice."""
        before, after = self._dialect.insert_or_ignore
        columns = ", ".join(message_columns(self._dialect))
        for chosen in parts_of(sent):
            condition, parameters = self._dialect.with_messages(chosen)
            execute(
                db,
                f"{before} INTO kafka_sent_messages ({columns}) "  # noqa: S608
                f"SELECT {columns} FROM kafka_messages WHERE {condition} {after}",
                parameters,
            )

    def _bury(self, db: Connection, id_: int, event_id: str, reason: str) -> None:
        """Copy a message to the dead ones, under its id unless a dead message of an earlier table has that."""
        taken_by = execute(db, "SELECT event_id FROM kafka_dead_messages WHERE id = :id", {"id": id_}).scalar()
        if taken_by == event_id:
            return
        dead_id = id_ if taken_by is None else _next_dead_id(db)
        columns = message_columns(self._dialect)[1:]
        execute(
            db,
            f"INSERT INTO kafka_dead_messages (id, {', '.join(columns)}, error, attempts) "  # noqa: S608
            f"SELECT :dead_id, {', '.join(columns)}, :reason, 1 FROM kafka_messages "
            "WHERE id = :id AND event_id = :event_id",
            {"id": id_, "event_id": event_id, "reason": storable(reason), "dead_id": dead_id},
        )

    def _select(self, policy: PoisonPolicy, without: str) -> str:
        """Return one statement, and so one snapshot: the first ids and their sizes, then the rows that fit."""
        key = self._dialect.key
        unblocked = {"skip": "", "block_key": _KEY_IS_FREE.format(key=key), "block_topic": _TOPIC_IS_FREE}[policy]
        first = (
            f"SELECT m.id, {self._dialect.row_bytes} AS size FROM kafka_messages m "  # noqa: S608
            f"WHERE m.topic = :topic AND m.bucket = :bucket {f'AND {without} ' if without else ''}{unblocked} "
            "ORDER BY m.id LIMIT :most"
        )
        measured = (
            f"SELECT f.id, SUM(f.size) OVER (ORDER BY f.id) - f.size AS ahead, COUNT(*) OVER () AS found "  # noqa: S608
            f"FROM ({first}) f"
        )
        return (
            f"SELECT {self._columns}, s.found FROM ({measured}) s JOIN kafka_messages m ON m.id = s.id "  # noqa: S608
            "WHERE s.ahead < :bytes ORDER BY m.id"
        )

    def _fetch(self, db: Connection, sql: str, asked: Mapping[str, object]) -> RowBatch:
        # Straight from the driver's cursor: SQLAlchemy's rows cost as much again as the driver's.
        fetched = cast("Any", execute(db, sql, asked)).cursor.fetchall()
        rows = [PendingMessage._make(row[:-1]) for row in fetched]
        return RowBatch(rows, bool(rows) and (len(rows) == self._batch_size or len(rows) < fetched[0][-1]))


def _next_dead_id(db: Connection) -> int:
    return int(execute(db, "SELECT MAX(id) + 1 FROM kafka_dead_messages").scalar_one())


def parts_of(event_ids: Mapping[int, str]) -> Iterator[dict[int, str]]:
    """Yield the ids with their event ids in parts that fit a statement."""
    pairs = list(event_ids.items())
    for start in range(0, len(pairs), _MOST_AT_ONCE):
        yield dict(pairs[start : start + _MOST_AT_ONCE])


def message_columns(dialect: Dialect) -> tuple[str, ...]:
    """Return the columns that kafka_messages and kafka_dead_messages share, as the database writes them."""
    given = ("topic", "message", dialect.key, "partition_key", "headers", "event_id", "bucket", "event_time")
    return ("id", *given, "created_at")


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
