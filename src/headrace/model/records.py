"""Records and their positions in the log; and records of one partition as columns, without an object for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import lt
from typing import NamedTuple, TypeAlias

import msgspec

__all__ = [
    "Batch",
    "Bounds",
    "Headers",
    "NewRecord",
    "Position",
    "Record",
    "RecordColumns",
    "TopicPartition",
    "size_of",
]

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


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of one partition, one list for each field; `record` returns one of them as an object.

    `lone_headers` has, for each record, its header if that is the only one, and None if it has another number of them.
    `headers` returns all the headers of a record by its index.
    """

    at: TopicPartition
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    lone_headers: Sequence[tuple[str, bytes | None] | None]
    headers: Callable[[int], Headers]

    @classmethod
    def of(cls, at: TopicPartition, records: Sequence[Record]) -> RecordColumns:
        """Return records as columns."""
        return cls(
            at,
            [record.offset for record in records],
            [record.timestamp_ms for record in records],
            [record.key for record in records],
            [record.value for record in records],
            [record.headers[0] if len(record.headers) == 1 else None for record in records],
            partial(_headers_of, records),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def record(self, index: int) -> Record:
        """Return one record."""
        return Record(
            *self.at,
            self.offsets[index],
            self.timestamps_ms[index],
            self.keys[index],
            self.values[index],
            self.headers(index),
        )

    def records(self) -> Iterator[Record]:
        """Yield all records."""
        return map(self.record, range(len(self)))

    def are_rising(self) -> bool:
        """Return True if each offset is above the one before it."""
        return all(map(lt, self.offsets, islice(self.offsets, 1, None)))

    def between(self, after: int, up_to: int) -> RecordColumns:
        """Return the records with offsets above `after` and up to `up_to`."""
        chosen = [index for index, offset in enumerate(self.offsets) if after < offset <= up_to]
        if len(chosen) == len(self):
            return self
        return RecordColumns(
            self.at,
            [self.offsets[index] for index in chosen],
            [self.timestamps_ms[index] for index in chosen],
            [self.keys[index] for index in chosen],
            [self.values[index] for index in chosen],
            [self.lone_headers[index] for index in chosen],
            lambda index: self.headers(chosen[index]),
        )


def _headers_of(records: Sequence[Record], index: int) -> Headers:
    return records[index].headers
