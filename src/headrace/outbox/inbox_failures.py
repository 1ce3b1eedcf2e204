"""Events that a consumer could not handle: how often it tried, why it failed, and which it has given up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy.engine import Connection

from headrace.model import Record
from headrace.outbox.databases import execute
from headrace.outbox.dialects import speech_of
from headrace.outbox.headers import dump_headers, load_headers
from headrace.outbox.stories import storable
from headrace.outbox.table_names import renamed

__all__ = ["FailureCounts", "FailureKind", "Failures", "Handling", "Limits", "Outcome", "PoisonEvent"]

Outcome: TypeAlias = Literal["handled", "known", "failed", "poison"]

FailureKind: TypeAlias = Literal["attempts", "interruptions"]
"""Tries that failed through the event or its handler, and tries that the database cut off."""

_OF_EVENT = "consumer = :consumer AND event_id = :event_id"


class Handling(NamedTuple):
    """What became of a record: handled now, known from before, failed (try again), or poison (given up, go on)."""

    outcome: Outcome
    attempts: int = 0
    error: str | None = None


class PoisonEvent(NamedTuple):
    """An event that was given up, whole, so that it can be handled later."""

    event_id: str
    record: Record
    attempts: int
    last_error: str
    failed_at: int
    interruptions: int = 0


class FailureCounts(NamedTuple):
    """How many tries of an event failed, and how many more the database cut off."""

    attempts: int
    interruptions: int


class Limits(NamedTuple):
    """How many failures of each kind make an event poison."""

    attempts: int
    interruptions: int

    def are_reached_by(self, failures: FailureCounts) -> bool:
        """Return True if the event is to be given up."""
        return failures.attempts >= self.attempts or failures.interruptions >= self.interruptions


class Failures:
    """The failures of one consumer."""

    def __init__(self, consumer: str, *, table_prefix: str) -> None:
        self._consumer = consumer
        self._table_prefix = table_prefix

    def note(
        self, db: Connection, event_id: str, record: Record, error: str, *, limits: Limits, kind: FailureKind
    ) -> FailureCounts:
        """Count a failure of the event; returns how many there are. The last that is allowed makes it poison."""
        now = speech_of(db.dialect.name).now_ms
        event = {"consumer": self._consumer, "event_id": event_id}
        told = {**event, "last_error": storable(error)}
        self._execute(db, self._insert(db), {**told, **_columns(record)})
        counted = f"{kind} = {kind} + 1, last_error = :last_error, failed_at = {now}"
        self._execute(db, f"UPDATE kafka_inbox_failures SET {counted} WHERE {_OF_EVENT}", told)  # noqa: S608
        asked = f"SELECT attempts, interruptions FROM kafka_inbox_failures WHERE {_OF_EVENT}"  # noqa: S608
        counts = FailureCounts._make(self._execute(db, asked, event).one())
        if limits.are_reached_by(counts):
            self._execute(db, f"UPDATE kafka_inbox_failures SET is_poison = TRUE WHERE {_OF_EVENT}", event)  # noqa: S608
        return counts

    def forget(self, db: Connection, event_id: str) -> bool:
        """Forget the failures of an event; returns whether there were any."""
        asked = {"consumer": self._consumer, "event_id": event_id}
        return bool(self._execute(db, f"DELETE FROM kafka_inbox_failures WHERE {_OF_EVENT}", asked).rowcount == 1)  # noqa: S608

    def poison(self, db: Connection, *, limit: int) -> list[PoisonEvent]:
        """Return events that were given up, the oldest first."""
        key = speech_of(db.dialect.name).key
        columns = f"event_id, topic, partition_nr, offset_nr, timestamp_ms, {key}, message, headers"
        rows = self._execute(
            db,
            f"SELECT {columns}, attempts, last_error, failed_at, interruptions FROM kafka_inbox_failures "  # noqa: S608
            "WHERE consumer = :consumer AND is_poison = TRUE ORDER BY failed_at, event_id LIMIT :most",
            {"consumer": self._consumer, "most": limit},
        )
        return [_poison(row) for row in rows]

    def _insert(self, db: Connection) -> str:
        speech = speech_of(db.dialect.name)
        before, after = speech.insert_or_ignore
        names = ("consumer", "event_id", "last_error", "attempts", *_COLUMNS)
        values = ", ".join("0" if name == "attempts" else f":{name}" for name in names)
        columns = ", ".join(speech.key if name == "key" else name for name in names)
        return f"{before} INTO kafka_inbox_failures ({columns}) VALUES ({values}) {after}"

    def _execute(self, db: Connection, sql: str, parameters: Mapping[str, Any]) -> Any:  # noqa: ANN401 - rows
        return execute(db, renamed(sql, self._table_prefix), parameters)


_COLUMNS = ("topic", "partition_nr", "offset_nr", "timestamp_ms", "key", "message", "headers")


def _columns(record: Record) -> dict[str, Any]:
    at = (record.topic, record.partition, record.offset, record.timestamp_ms)
    return dict(zip(_COLUMNS, (*at, record.key, record.value, dump_headers(record.headers)), strict=True))


def _poison(row: Any) -> PoisonEvent:  # noqa: ANN401 - a row
    event_id, topic, partition, offset, timestamp_ms, key, message, headers, *failures = row
    record = Record(topic, partition, offset, timestamp_ms, key, message, load_headers(headers))
    return PoisonEvent(event_id, record, *failures)
