"""Records of one partition as columns: what a run of similar records is read from, without an object for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import lt

from headrace.model.records import Headers, Record, TopicPartition

__all__ = ["RecordColumns"]


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
