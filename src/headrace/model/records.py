"""Records and their positions in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

__all__ = ["Batch", "Bounds", "Headers", "NewRecord", "Position", "Record", "TopicPartition", "size_of"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

# What a record costs beyond its own bytes, in Kafka's worst case: batch header, lengths and deltas.
RECORD_OVERHEAD_BYTES = 96
HEADER_OVERHEAD_BYTES = 10


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into the log.

    Without `partition` the key decides (Kafka's default partitioner); without a key too, the log spreads.
    Without `timestamp_ms` the producer's clock is used at the append.
    """

    topic: str
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as the log holds it. In a header-only read `value` is None whatever the log holds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


class SoundRecords(tuple[NewRecord, ...]):
    """Records that every log can take, as whoever made them vouches: they are not checked once more, one by one."""

    __slots__ = ()


class Position(NamedTuple):
    """The position of a written record, and its timestamp in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Bounds(NamedTuple):
    """What a partition holds: offsets from `start` up to, not including, `end`.

    A reader sees committed records, so it can get as far as `end` (Kafka's last stable offset).
    `high_watermark` is above it while a transaction is open.
    """

    start: int
    end: int
    high_watermark: int


class Batch(msgspec.Struct, frozen=True):
    """Some records of one partition, in order, and the offset to go on from.

    `next_offset` can lie well past the last record, and a batch can hold no record at all: aborted records,
    transaction markers and compacted records take offsets that readers never see.
    """

    records: Sequence[Record]
    next_offset: int


def size_of(record: NewRecord) -> int:
    """Return the bytes the record takes on the wire, at most."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    if record.headers:
        for name, value in record.headers:
            size += len(name.encode()) + len(value or b"") + HEADER_OVERHEAD_BYTES
    return size
