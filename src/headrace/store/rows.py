"""The values that the eventual store holds: heads, rows, snapshots, and rows of the views by tag with their order.

The `timestamp` of a row of a view is a timeuuid made of (log time, topic number, partition, offset). Cassandra's own
order of timeuuids is then the order of the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.errors import BadArgument
from headrace.model import TopicPartition

__all__ = [
    "DEFAULT_SEGMENT_SIZE",
    "EPOCH_TAG",
    "FIRST_TAG_TIME",
    "LAST_TAG_TIME",
    "EventRow",
    "HeadShare",
    "JournalMeta",
    "JournalWrite",
    "Place",
    "ReplicatedOffset",
    "RowDeletion",
    "SegmentGap",
    "SnapshotRow",
    "TagNumber",
    "TagRow",
    "TagTime",
    "java_hash",
    "meta_segment",
    "segment_of",
    "tag_time_of",
    "timeuuid",
    "write_time",
]

DEFAULT_SEGMENT_SIZE = 10_000
_FIRST_WRITE_TIME = 1 << 62
_GENERATION_BITS = 46


class Place(NamedTuple):
    """A record's place in the order of its key: later generations come later, then higher offsets."""

    generation: int
    offset: int


class EventRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event. `payload` is bytes as written: UTF-8 of the text or of the JSON, or the binary itself.

    `metadata` is JSON text with the record's header metadata and payload metadata.
    """

    segment: int
    seq_nr: int
    generation: int
    partition: int
    offset: int
    log_time_ms: int
    timestamp_ms: int
    record_id: UUID
    tags: tuple[str, ...] = ()
    payload_type: str | None = None
    payload: bytes | None = None
    metadata: str | None = None
    headers: Mapping[str, str] = {}
    origin: str | None = None
    version: str | None = None

    @property
    def place(self) -> Place:
        """The record that caused the row."""
        return Place(self.generation, self.offset)


class JournalMeta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The head of one journal. With `is_purged` it is a purge marker: clients find no journal, folds see its place.

    `delete_to` 0 means that nothing was deleted. `purged_at` is the place of the last purge, kept by the
    incarnations after it. `held_from` is the offset of a record that can't be decoded.
    """

    topic: str
    id: str
    generation: int
    partition: int
    offset: int
    seq_nr: int
    segment_size: int
    delete_to: int = 0
    last_append: Place | None = None
    is_purged: bool = False
    purged_at: Place | None = None
    held_from: int | None = None
    created_ms: int | None = None
    updated_ms: int | None = None
    expire_after: str | None = None
    expire_on_ms: int | None = None
    record_id: UUID | None = None
    origin: str | None = None
    properties: Mapping[str, str] = {}
    metadata: str | None = None

    @property
    def place(self) -> Place:
        """The last record that was applied."""
        return Place(self.generation, self.offset)


class HeadShare(NamedTuple):
    """One of `of` shares of a topic's heads, numbered from 0. Together they hold each head once."""

    number: int
    of: int


class ReplicatedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far replication of one partition has come: `offset` is the last one applied (inclusive).

    `log_time_ms` is the running maximum of record timestamps up to there; `segment_size` is what incarnations
    that begin after it use.
    """

    at: TopicPartition
    generation: int
    offset: int
    log_time_ms: int
    created_ms: int
    updated_ms: int
    segment_size: int = DEFAULT_SEGMENT_SIZE


class RowDeletion(NamedTuple):
    """Rows to remove: of one segment, all or those with seq_nr up to `to`; or all of the segments up to `until`.

    The cost of a range of segments depends on those that hold rows, not on how many numbers it spans.
    """

    segment: int
    to: int | None
    until: int | None = None


class SegmentGap(NamedTuple):
    """A gap in a journal's numbers: the append at `place` left the segments between `after` and `next` empty."""

    after: int
    next: int
    place: Place


class JournalWrite(NamedTuple):
    """What a batch adds to one journal: new rows, and the head that follows from them."""

    meta: JournalMeta
    rows: Sequence[EventRow]


class SnapshotRow(msgspec.Struct, frozen=True, kw_only=True):
    """A saved state: of one incarnation (`record_id`), covering all up to (generation, offset)."""

    slot: int
    seq_nr: int
    generation: int
    offset: int
    timestamp_ms: int
    record_id: UUID
    payload_type: str | None = None
    payload: bytes | None = None
    metadata: str | None = None
    origin: str | None = None
    version: str | None = None


def write_time(place: Place) -> int:
    """Return the write time of rows that a record caused: above any wall clock, and rising with the log."""
    return _FIRST_WRITE_TIME + (place.generation << _GENERATION_BITS) + place.offset


def segment_of(seq_nr: int, segment_size: int) -> int:
    """Return the segment of the journal table that holds the seq_nr."""
    return (seq_nr - 1) // segment_size


def meta_segment(id_: str, segments: int) -> int:
    """Return the segment of the metajournal table that holds the id; ids that differ in case share it."""
    value = java_hash(id_.lower())
    return abs(value) % segments


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, signed 32 bits."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


MAX_TOPICS = 10_000
MAX_PARTITION = (1 << 16) - 1
MAX_OFFSET = (1 << 48) - 1

_TICKS_PER_MS = 10_000
_UUID_EPOCH_TICKS = 0x01B21DD213814000  # from 1582 to 1970
_LAST_MS = ((1 << 60) - 1 - _UUID_EPOCH_TICKS) // _TICKS_PER_MS - 1
_LOW_BITS = (1 << 64) - 1
_SIGNED = 0x8080808080808080  # Cassandra compares the low bytes as signed ones


class TagTime(NamedTuple):
    """The position of a record in the order of tagged events."""

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
    """The last number of (pid, tag): `number` belongs to `seq_nr`, and was given by the record at the place.

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


# No event comes before the first or after the last.
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
    """Return the TagTime that a timeuuid was made from."""
    return _time_of(timestamp.int)


@lru_cache(maxsize=256)  # events of one record share it, and are adjacent
def _time_of(whole: int) -> TagTime:
    high = whole >> 64
    ticks = (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32
    log_time_ms, topic_number = divmod(ticks - _UUID_EPOCH_TICKS, _TICKS_PER_MS)
    low = whole & _LOW_BITS ^ _SIGNED
    return TagTime(log_time_ms, topic_number, low >> 48, low & MAX_OFFSET)
