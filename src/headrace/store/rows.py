"""What the eventual store holds, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.model import TopicPartition

__all__ = [
    "DEFAULT_SEGMENT_SIZE",
    "EventRow",
    "JournalMeta",
    "Place",
    "ReplicatedOffset",
    "RowDeletion",
    "SegmentGap",
    "SnapshotRow",
    "java_hash",
    "meta_segment",
    "segment_of",
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
    """The head of one journal. With `is_purged` it is a marker: clients see "missing", folds see its place.

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

    What a range of segments costs depends on those that hold rows, not on how many numbers it spans.
    """

    segment: int
    to: int | None
    until: int | None = None


class SegmentGap(NamedTuple):
    """A jump of a journal's numbers: the append at `place` left the segments between `after` and `next` empty."""

    after: int
    next: int
    place: Place


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
    """Return the write time of what a record caused: above any wall clock, and rising with the log."""
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
