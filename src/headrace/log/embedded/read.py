"""Reads of one partition: a short read transaction for each batch, so that the file can be checkpointed in between.

Followers that have reached the end wait for a commit. One look at the file serves all of them: each commit wakes only
those whose partitions have something new.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.errors import OffsetOutOfRange, TimedOut, UnknownTopic, UnreadableRecord
from headrace.log.embedded.schema import MAX_OFFSET, offset_of, partition_row, place_of
from headrace.log.metrics import FETCHED, FETCHES
from headrace.model import Batch, Bounds, Headers, Record, TopicPartition
from headrace.sqlite import ChangeWatch, Readers

__all__ = ["BATCH_BYTES", "PartitionEnds", "PartitionReader", "fetch", "find_bounds", "find_offset_at"]

# A batch holds at most this many bytes of values, or one larger record: readers keep several batches in memory.
BATCH_BYTES = 1024 * 1024

_Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes | None]

_BYTES = frozenset({bytes, type(None)})
_decode_headers = msgspec.msgpack.Decoder(Headers).decode
_SCAN = "FROM records WHERE place >= ? AND place < ? ORDER BY place LIMIT ?"
_WHOLE = f"SELECT place, timestamp_ms, key, value, headers {_SCAN}"
_HEADERS_ONLY = f"SELECT place, timestamp_ms, key, NULL, headers {_SCAN}"


@dataclass(frozen=True, slots=True)
class Fetch:
    """The arguments of one fetch from a partition. `partition_id` is known after the first fetch."""

    at: TopicPartition
    start: int
    end: int
    max_records: int
    headers_only: bool
    partition_id: int | None


def find_bounds(db: sqlite3.Connection, at: TopicPartition) -> Bounds:
    """Return what a partition holds. Nothing uncommitted is ever in the file, so `end` is the high watermark."""
    _, start, end = partition_row(db, at)
    return Bounds(start, end, end)


def find_offset_at(db: sqlite3.Connection, at: TopicPartition, timestamp_ms: int) -> int | None:
    """Return the first offset stamped at or after the time."""
    partition_id, _, _ = partition_row(db, at)
    row = db.execute(
        "SELECT place FROM records WHERE place BETWEEN ? AND ? AND timestamp_ms >= ? ORDER BY place LIMIT 1",
        (place_of(partition_id, 0), place_of(partition_id, MAX_OFFSET), timestamp_ms),
    ).fetchone()
    return offset_of(row[0]) if row else None


class FetchedRows(NamedTuple):
    """The records from an offset on; `is_all` says that there are no more now."""

    partition_id: int
    batch: Batch
    is_all: bool


def fetch(db: sqlite3.Connection, ask: Fetch) -> FetchedRows:
    """Return the partition's records from `start` on. Raises OffsetOutOfRange."""
    partition_id, start, end = partition_row(db, ask.at)
    if ask.partition_id not in (None, partition_id):
        raise UnknownTopic(ask.at.topic)  # the topic was deleted and created again meanwhile: these are other records
    if not start <= ask.start <= end:
        raise OffsetOutOfRange(ask.at.topic, ask.at.partition, ask.start, start, end)
    limit = min(ask.end, end)
    bounds = (place_of(partition_id, ask.start), place_of(partition_id, limit), ask.max_records)
    with closing(db.execute(_HEADERS_ONLY if ask.headers_only else _WHOLE, bounds)) as rows:
        records, is_full = _some(ask.at, rows)
    is_full = is_full or len(records) == ask.max_records
    batch = Batch(records, records[-1].offset + 1 if is_full else max(limit, ask.start))
    return FetchedRows(partition_id, batch, batch.next_offset >= end)


def _some(at: TopicPartition, rows: Iterable[_Row]) -> tuple[list[Record], bool]:
    """Return records up to the size of a batch or an unreadable record, and True if more may follow.

    The unreadable record comes first in the next batch, where it raises UnreadableRecord.
    """
    records: list[Record] = []
    size_bytes = 0
    for row in rows:
        try:
            records.append(_record(at, row))
        except UnreadableRecord:
            if not records:
                raise
            return records, True
        value = row[3]
        if value is not None:
            size_bytes += len(value)
            if size_bytes >= BATCH_BYTES:
                return records, True
    return records, False


class PartitionReader:
    """Follows one partition from an offset on. With `ends` it is woken by what happens to its own partition only."""

    def __init__(
        self,
        readers: Readers,
        changes: ChangeWatch,
        at: TopicPartition,
        start: int,
        ends: PartitionEnds | None = None,
    ) -> None:
        self._ends = ends
        self._readers = readers
        self._changes = changes
        self._at = at
        self._partition_id: int | None = None
        self._unreadable: int | None = None
        self._has_all = False
        self.position = start

    def expect_same(self, other: PartitionReader) -> None:
        """Read only the partition that the other reader reads, not one of a topic that was created again."""
        self._partition_id = other._partition_id

    async def next_batch(self, *, end: int = MAX_OFFSET, max_records: int = 1000, headers_only: bool = False) -> Batch:
        """Return the records that are there now, without waiting; the position moves."""
        ask = Fetch(self._at, self.position, end, max_records, headers_only, self._partition_id)
        try:
            self._partition_id, batch, self._has_all = await self._readers.run(lambda db: fetch(db, ask))
        except UnreadableRecord as error:
            self._unreadable = error.offset
            raise
        self.position = batch.next_offset
        FETCHES.labels("embedded", self._at.topic).inc()
        FETCHED.labels("embedded", self._at.topic).inc(len(batch.records))
        return batch

    def leave_out_unreadable(self, *, below: int) -> None:
        """Continue at `below` if the unreadable record is before it: a commit has skipped that record."""
        if self._unreadable is not None and self._unreadable < below:
            self._unreadable, self.position = None, below

    async def _wait(self, version: int) -> None:
        """Return when there may be more than at a version of the file."""
        if self._ends is None or self._partition_id is None:
            await self._changes.wait(since=version)
        else:
            await self._ends.wait(self._partition_id, self.position, since=version)

    async def batches(
        self, end: int | None, *, headers_only: bool, max_records: int, timeout_s: float
    ) -> AsyncGenerator[Batch, None]:
        """Yield batches until `end`, waiting for what is not there yet."""
        loop = asyncio.get_running_loop()
        is_first, moved_at_s = True, loop.time()
        while end is None or self.position < end or is_first:
            version, before = self._changes.version, self.position
            limit = MAX_OFFSET if end is None else max(end, before)
            batch = await self.next_batch(end=limit, max_records=max_records, headers_only=headers_only)
            is_first = False
            if self.position > before:
                yield batch
                moved_at_s = loop.time()
            if end is None:
                if self._has_all:  # there is more when the file has another version
                    await self._wait(version)
            elif self.position == before < end:
                # Commits to other partitions of the file wake this reader too; they are no progress.
                left_s = moved_at_s + timeout_s - loop.time()
                if left_s <= 0 or not await self._changes.wait(since=version, timeout_s=left_s):
                    raise TimedOut(f"reading {self._at} from {before} to {end}", timeout_s)


def _record(at: TopicPartition, row: _Row) -> Record:
    """Return a row as a record. Raises UnreadableRecord for a row that no append can have written."""
    place, timestamp_ms, key, value, headers = row
    if type(key) not in _BYTES or type(value) not in _BYTES or type(timestamp_ms) is not int:
        kinds = ", ".join(type(column).__name__ for column in (timestamp_ms, key, value))
        raise UnreadableRecord(at.topic, at.partition, offset_of(place), f"time, key and value are {kinds}")
    try:
        decoded = _decode_headers(headers) if headers else ()
    except (ValueError, TypeError) as error:
        raise UnreadableRecord(at.topic, at.partition, offset_of(place), f"headers: {error}") from error
    return Record(at.topic, at.partition, offset_of(place), timestamp_ms, key, value, decoded)


_ENDS = "SELECT id, start_offset, next_offset FROM partitions WHERE id IN (SELECT value FROM json_each(?))"


class _Place(NamedTuple):
    """Where a follower is: at the end of its partition, as it was when it looked."""

    partition_id: int
    position: int


class PartitionEnds:
    """Waits for followers that have reached the ends of their partitions.

    A file has many partitions, and most commits are to few of them. A follower that read its own partition after each
    commit would find nothing most of the time, and each read changes the thread twice.
    """

    def __init__(self, readers: Readers, changes: ChangeWatch) -> None:
        self._readers = readers
        self._changes = changes
        self._waiting: dict[asyncio.Future[None], _Place] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def wait(self, partition_id: int, position: int, *, since: int) -> None:
        """Return when a partition no longer ends at a position, as it did at a version of the file; or a little before.

        It no longer does so either if the topic is gone, or if the partition begins behind the position.
        """
        if self._changes.version != since:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = _Place(partition_id, position)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(since), name="headrace-log-ends")
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def close(self) -> None:
        """Stop looking."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    async def _watch(self, version: int) -> None:
        """Look after each commit, while somebody waits. Who waits knows the file as of `version`, or a later one."""
        try:
            while self._waiting:
                await self._changes.wait(since=version)
                version = self._changes.version
                asked = dict(self._waiting)
                ids = {place.partition_id for place in asked.values()}
                ends = await self._readers.run(partial(_ends_of, ids=ids))
                for waiter, place in asked.items():
                    if not waiter.done() and ends.get(place.partition_id) != place.position:
                        waiter.set_result(None)
                        self._waiting.pop(waiter, None)
        except Exception as error:  # a reader of the partition would get it, too
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(error)


def _ends_of(db: sqlite3.Connection, ids: Iterable[int]) -> Mapping[int, int | None]:
    """Return the ends of partitions by id; None for one that begins behind its end."""
    rows = db.execute(_ENDS, (msgspec.json.encode(sorted(ids)).decode(),))
    return {partition_id: end if start <= end else None for partition_id, start, end in rows}
