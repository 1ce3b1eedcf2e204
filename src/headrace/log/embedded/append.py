"""Appends, and all other changes to the file, as pieces of work for the group commit.

The writer keeps a cache of topics and partitions between two commits.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.errors import BadArgument, HeadraceError, RecordTooLarge, TimestampTooFarAhead, UnknownPartition
from headrace.log.embedded.schema import load_topic, place_of
from headrace.log.metrics import APPENDED
from headrace.model import NewRecord, Position, Topic, partition_of, size_of
from headrace.runtime import Clock, crash_point

__all__ = ["AppendWork", "LogCall", "LogWork", "PartitionTail", "Placed", "RecordWriter", "savepoint"]

# One step of SQLite takes and gives back the interpreter's lock, so a busy event loop would slow down a
# statement per row; rows go in by the hundred.
_CHUNK = 100
_INSERT = "INSERT INTO records (place, timestamp_ms, key, value, headers) VALUES "
_INSERT_ONE = _INSERT + "(?, ?, ?, ?, ?)"
_INSERT_CHUNK = _INSERT + ", ".join(["(?, ?, ?, ?, ?)"] * _CHUNK)

_encode_headers = msgspec.msgpack.Encoder().encode

# Does what Position._make does, without a call of a Python function.
_position: Callable[[tuple[str, int, int, int]], Position] = functools.partial(tuple.__new__, Position)

Row = tuple[int, int, bytes | None, bytes | None, bytes | None]


@dataclass(slots=True)
class PartitionTail:
    """Where the next record of a partition goes."""

    id: int
    next_offset: int
    stored_offset: int
    first_place: int
    is_changed: bool = False


class _KnownTopic:
    """A topic and the tails of its partitions, in a form that is fast to use for each record."""

    __slots__ = ("max_record_bytes", "name", "needs_keys", "partitions", "tails", "timestamp_ahead_ms")

    def __init__(self, topic: Topic, tails: list[PartitionTail]) -> None:
        self.name = topic.name
        self.partitions = topic.partitions
        self.needs_keys = topic.config.cleanup.compacts
        self.max_record_bytes = topic.config.max_record_bytes
        self.timestamp_ahead_ms = topic.config.timestamp_ahead_ms
        self.tails = tails

    def tail(self, partition: int) -> PartitionTail:
        """Return the tail of one partition."""
        if not 0 <= partition < self.partitions:
            raise UnknownPartition(self.name, partition, self.partitions)
        return self.tails[partition]


class _Catalog:
    """Topics by name, up to date in the write transaction in which `refresh` was called."""

    def __init__(self) -> None:
        self._topics: dict[str, _KnownTopic] = {}
        self._version = -1

    def refresh(self, db: sqlite3.Connection) -> None:
        """Forget everything if another connection has written since."""
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Forget everything."""
        self._topics.clear()

    def find(self, db: sqlite3.Connection, name: str) -> _KnownTopic:
        """Return the topic. Raises UnknownTopic."""
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = self._load(db, name)
        return known

    def store_tails(self, db: sqlite3.Connection) -> None:
        """Write the next offsets that have changed."""
        for known in self._topics.values():
            for tail in known.tails:
                if tail.is_changed:
                    db.execute("UPDATE partitions SET next_offset = ? WHERE id = ?", (tail.next_offset, tail.id))
                    APPENDED.labels("embedded", known.name).inc(tail.next_offset - tail.stored_offset)
                    tail.stored_offset = tail.next_offset
                    tail.is_changed = False

    def _load(self, db: sqlite3.Connection, name: str) -> _KnownTopic:
        rows = db.execute("SELECT id, next_offset FROM partitions WHERE topic = ? ORDER BY partition", (name,))
        return _KnownTopic(
            load_topic(db, name), [PartitionTail(id_, offset, offset, place_of(id_, 0)) for id_, offset in rows]
        )


class Placed(NamedTuple):
    """A checked record that is ready to be written: it can't be refused any more."""

    record: NewRecord
    partition: int
    tail: PartitionTail
    timestamp_ms: int
    headers: bytes | None


class LogWork(Protocol):
    """A change to make inside a write transaction, all of it or nothing.

    If it raises, nothing was changed: it was refused before anything was written, or it ran in a savepoint.
    """

    def run(self, db: sqlite3.Connection, writer: RecordWriter) -> object:
        """Do it and return the result, or raise."""
        ...


@contextmanager
def savepoint(db: sqlite3.Connection) -> Iterator[None]:
    """Undo what the block changed in the file if it raises; the transaction around it goes on."""
    db.execute("SAVEPOINT work")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK TO work")
        raise
    finally:
        db.execute("RELEASE work")


@dataclass(frozen=True, slots=True)
class LogCall:
    """Any function of the connection, in a savepoint of its own: topics, groups, leases, retention."""

    function: Callable[[sqlite3.Connection], Any]

    def run(self, db: sqlite3.Connection, writer: RecordWriter) -> object:
        """Run it after the records that came before it."""
        writer.flush(db)
        try:
            with savepoint(db):
                return self.function(db)
        finally:
            writer.catalog.forget()


class AppendWork(msgspec.Struct, frozen=True, gc=False):
    """Records outside any transaction."""

    records: Sequence[NewRecord]

    def run(self, db: sqlite3.Connection, writer: RecordWriter) -> list[Position]:
        """Write them all or, if one is refused, none."""
        if len(self.records) == 1:
            return [writer.write_one(db, self.records[0])]
        return writer.write(writer.check(db, self.records))


class RecordWriter:
    """Assigns offsets and gathers rows; used in the writer's thread only."""

    def __init__(self, clock: Clock) -> None:
        self.catalog = _Catalog()
        self._clock = clock
        self._rows: list[Row] = []
        self._spread = 0

    def apply(self, db: sqlite3.Connection, works: Sequence[LogWork]) -> list[object]:
        """Do all the works of a group, in order."""
        self.catalog.refresh(db)
        self._rows.clear()
        outcomes: list[object] = []
        for work in works:
            try:
                outcomes.append(work.run(db, self))
            except sqlite3.Error:
                raise  # the file itself failed, so all work of the group fails
            except Exception as refusal:  # only its own caller gets the error; other work of the group goes on
                outcomes.append(refusal)
        self.flush(db)
        return outcomes

    def check(self, db: sqlite3.Connection, records: Iterable[NewRecord]) -> list[Placed]:
        """Return the records with all that writing them needs, or raise."""
        now_ms = self._clock.now_ms()
        find = self.catalog.find
        placed: list[Placed] = []
        for record in records:
            known = find(db, record.topic)
            _refuse(record, known, now_ms)
            partition = self._partition(record, known)
            headers = _encode_headers(record.headers) if record.headers else None
            timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            placed.append(Placed(record, partition, known.tail(partition), timestamp_ms, headers))
        return placed

    def refuse(self, db: sqlite3.Connection, records: Iterable[NewRecord]) -> None:
        """Raise for records that `check` would raise for, and do nothing else."""
        now_ms = self._clock.now_ms()
        for record in records:
            known = self.catalog.find(db, record.topic)
            _refuse(record, known, now_ms)
            known.tail(self._partition(record, known))

    def write(self, placed: Iterable[Placed]) -> list[Position]:
        """Give each record the next offset of its partition."""
        positions: list[Position] = []
        for record, partition, tail, timestamp_ms, headers in placed:
            offset = tail.next_offset
            tail.next_offset = offset + 1
            tail.is_changed = True
            self._rows.append((tail.first_place + offset, timestamp_ms, record.key, record.value, headers))
            positions.append(_position((record.topic, partition, offset, timestamp_ms)))
        return positions

    def write_one(self, db: sqlite3.Connection, record: NewRecord) -> Position:
        """Check and write one record, as `check` and `write` do; most appends are of this kind."""
        now_ms = self._clock.now_ms()
        known = self.catalog.find(db, record.topic)
        _refuse(record, known, now_ms)
        partition = self._partition(record, known)
        tail = known.tail(partition)
        headers = _encode_headers(record.headers) if record.headers else None
        timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        offset = tail.next_offset
        tail.next_offset = offset + 1
        tail.is_changed = True
        self._rows.append((tail.first_place + offset, timestamp_ms, record.key, record.value, headers))
        return _position((record.topic, partition, offset, timestamp_ms))

    def flush(self, db: sqlite3.Connection) -> None:
        """Write the rows gathered so far to the file."""
        rows = iter(self._rows)
        for _ in range(len(self._rows) // _CHUNK):
            db.execute(_INSERT_CHUNK, [value for row in islice(rows, _CHUNK) for value in row])
        db.executemany(_INSERT_ONE, rows)
        self._rows.clear()
        crash_point("log.embedded.before-tails")
        self.catalog.store_tails(db)

    def _partition(self, record: NewRecord, known: _KnownTopic) -> int:
        if record.key is None and known.needs_keys:
            raise BadArgument("key", None, f"records of the compacted topic {record.topic!r} need a key")
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            return partition_of(record.key, known.partitions)
        self._spread += 1
        return self._spread % known.partitions


def _refuse(record: NewRecord, known: _KnownTopic, now_ms: int) -> None:
    """Raise for a record that its topic does not take."""
    timestamp_ms, size_bytes = record.timestamp_ms, size_of(record)
    if timestamp_ms is not None and not 0 <= timestamp_ms <= now_ms + known.timestamp_ahead_ms:
        raise _refused_timestamp(record, timestamp_ms, known.timestamp_ahead_ms)
    if size_bytes > known.max_record_bytes:
        raise RecordTooLarge(record.topic, size_bytes, known.max_record_bytes)


def _refused_timestamp(record: NewRecord, timestamp_ms: int, bound_ms: int) -> HeadraceError:
    if timestamp_ms < 0:
        return BadArgument("timestamp_ms", timestamp_ms, "a timestamp is milliseconds since 1970, 0 or more")
    return TimestampTooFarAhead(record.topic, timestamp_ms, bound_ms)
