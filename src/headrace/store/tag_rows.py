"""What the views by tag hold, as values; and the order they are kept in.

A row's `timestamp` is a timeuuid made of (log time, topic number, partition, offset): Cassandra's own sort order of
timeuuids is then the order of the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.errors import BadArgument
from headrace.store.rows import Place

__all__ = ["EPOCH_TAG", "FIRST_TAG_TIME", "LAST_TAG_TIME", "TagNumber", "TagRow", "TagTime", "tag_time_of", "timeuuid"]

MAX_TOPICS = 10_000
MAX_PARTITION = (1 << 16) - 1
MAX_OFFSET = (1 << 48) - 1

_TICKS_PER_MS = 10_000
_UUID_EPOCH_TICKS = 0x01B21DD213814000  # from 1582 to 1970
_LAST_MS = ((1 << 60) - 1 - _UUID_EPOCH_TICKS) // _TICKS_PER_MS - 1
_LOW_BITS = (1 << 64) - 1
_SIGNED = 0x8080808080808080  # Cassandra compares the low bytes as signed ones


class TagTime(NamedTuple):
    """Where a record stands in the order of tagged events."""

    log_time_ms: int
    topic_number: int
    partition: int
    offset: int


class TagRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event under one tag. `number` counts the events of (pid, tag) from 1, without gaps.

    `bucket_ms` is the start of the bucket that holds it; `pid` is the journal's id, in `topic`.
    """

    tag: str
    bucket_ms: int
    timestamp: UUID
    pid: str
    number: int
    seq_nr: int
    topic: str
    generation: int
    partition: int
    offset: int
    timestamp_ms: int
    tags: tuple[str, ...] = ()
    payload_type: str | None = None
    payload: bytes | None = None
    metadata: str | None = None
    headers: Mapping[str, str] = {}
    origin: str | None = None
    version: str | None = None
    is_redacted: bool = False

    @property
    def place(self) -> Place:
        """The record that caused the row."""
        return Place(self.generation, self.offset)


class TagNumber(msgspec.Struct, frozen=True, kw_only=True):
    """How far the numbering of (pid, tag) has come: `number` was given to `seq_nr`, by the record at the place.

    Numbers below `first` have no rows: an operator removed them, or they were lost. Writing a number leaves it.
    """

    topic: str
    pid: str
    tag: str
    seq_nr: int
    number: int
    generation: int
    offset: int
    first: int = 1

    @property
    def place(self) -> Place:
        """The last record that was numbered."""
        return Place(self.generation, self.offset)


# No event comes before the one or after the other.
FIRST_TAG_TIME = TagTime(0, 0, 0, 0)
LAST_TAG_TIME = TagTime(_LAST_MS, MAX_TOPICS - 1, MAX_PARTITION, MAX_OFFSET)

# The tag, or pid, of the rows that carry a table's epoch.
EPOCH_TAG = "\x00epoch"


def timeuuid(at: TagTime) -> UUID:
    """Return the timeuuid of a record: Cassandra sorts them as the tuples sort."""
    if not (0 <= at.log_time_ms <= _LAST_MS and 0 <= at.topic_number < MAX_TOPICS):
        raise BadArgument("log time and topic", at, f"a timeuuid holds {MAX_TOPICS} topics from 1970 to 5236")
    if not (0 <= at.partition <= MAX_PARTITION and 0 <= at.offset <= MAX_OFFSET):
        raise BadArgument("partition and offset", at, "a timeuuid holds 16 bits of the one and 48 of the other")
    ticks = _UUID_EPOCH_TICKS + at.log_time_ms * _TICKS_PER_MS + at.topic_number
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48
    return UUID(int=high << 64 | (at.partition << 48 | at.offset) ^ _SIGNED)


def tag_time_of(timestamp: UUID) -> TagTime:
    """Do the reverse."""
    return _time_of(timestamp.int)


@lru_cache(maxsize=256)  # events of one record share it, and stand together
def _time_of(whole: int) -> TagTime:
    high = whole >> 64
    ticks = (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32
    log_time_ms, topic_number = divmod(ticks - _UUID_EPOCH_TICKS, _TICKS_PER_MS)
    low = whole & _LOW_BITS ^ _SIGNED
    return TagTime(log_time_ms, topic_number, low >> 48, low & MAX_OFFSET)
