"""Messages: as the application gives them, as they are stored, as the relay reads them back."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headrace.errors import BadArgument
from headrace.model import NewRecord
from headrace.outbox.headers import EVENT_ID, GivenHeaders, with_event_id

__all__ = ["EncodedMessage", "Message", "PendingMessage", "Place", "event_time_ms", "record_of"]


_LAST_MS = 253_402_300_799_999


class Place(NamedTuple):
    """One topic's bucket: what a lease is about."""

    topic: str
    bucket: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.bucket}"


class Message(msgspec.Struct, frozen=True):
    """A message as the application gives it.

    `payload` None is a tombstone. `partition_key`, when given, decides partition and bucket instead of the key.
    `event_time` says when it happened: a datetime with a time zone, or milliseconds since 1970.
    """

    payload: Any
    key: Any = None
    partition_key: Any = None
    headers: GivenHeaders = ()
    event_time: datetime | int | None = None


class EncodedMessage(NamedTuple):
    """A row to be: the columns of kafka_messages that are given, in their order."""

    topic: str
    message: bytes | None
    key: bytes | None
    partition_key: bytes | None
    headers: str | None
    event_id: str
    bucket: int
    event_time: int | None


class PendingMessage(NamedTuple):
    """A row of kafka_messages as the relay reads it, in the order of its select."""

    id: int
    message: bytes | None
    key: bytes | None
    partition_key: bytes | None
    headers: str | None
    event_id: str
    event_time: int | None
    created_at: int

    @property
    def order_key(self) -> bytes | None:
        """What the message's order is kept by."""
        return self.key if self.partition_key is None else self.partition_key


def event_time_ms(given: datetime | int | None) -> int | None:
    """Return the event time in milliseconds."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise BadArgument("event_time", given, "it needs a time zone, such as datetime.UTC")
        given = int(given.timestamp() * 1000)
    if isinstance(given, bool) or not isinstance(given, int):
        raise BadArgument("event_time", given, "it is a datetime with a time zone, or whole milliseconds since 1970")
    if not 1 <= given <= _LAST_MS:
        raise BadArgument("event_time", given, "it lies after 1970 and before the year 10000")
    return given


def record_of(topic: str, row: PendingMessage, *, partition: int | None, now_ms: int) -> NewRecord:
    """Return the record to send. Its timestamp is the event time, but never later than the sender's clock.

    The log refuses timestamps ahead of its own time, and the database's clock may be ahead of the sender's.
    """
    _, message, key, _, headers, event_id, event_time, created_at = row
    timestamp_ms = created_at if event_time is None else event_time
    return NewRecord(
        topic,
        key,
        message,
        with_event_id(headers, event_id) if headers else ((EVENT_ID, event_id.encode()),),
        partition,
        timestamp_ms if timestamp_ms < now_ms else now_ms,
    )
