"""Plain sqlite3: a table of the embedded log's kind, executemany in groups, a paged select."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import msgspec

from benchmarks.workloads import Event
from headrace.model import Record, partition_of

__all__ = ["RecordTable", "Row"]

Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes | None]

# A place is partition and offset in one integer, as in the embedded log: a partition is one range of the B-tree.
OFFSET_BITS = 40
TIMESTAMP_MS = 1_700_000_000_000
TABLE = """
CREATE TABLE records (place INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB)
"""
INSERT = "INSERT INTO records (place, timestamp_ms, key, value, headers) VALUES (?, ?, ?, ?, ?)"
SELECT = "SELECT * FROM records WHERE place >= ? AND place < ? ORDER BY place LIMIT ?"


class RecordTable:
    """One file in WAL mode, fsynced at every commit."""

    def __init__(self, path: Path, *, partitions: int) -> None:
        self._offsets = [0] * partitions
        self._db = sqlite3.connect(path, isolation_level=None)
        for statement in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16384", "temp_store = MEMORY"):
            self._db.execute(f"PRAGMA {statement}")
        self._db.execute(TABLE)

    def rows(self, events: Iterable[Event]) -> list[Row]:
        """Return the events as rows, each at the next offset of its key's partition."""
        return [(self._place(event.key), TIMESTAMP_MS, event.key, event.value, None) for event in events]

    def rows_of(self, records: Iterable[Record]) -> list[Row]:
        """Return records of a log as rows, with their headers, each at the next offset of its key's partition."""
        return [
            (
                self._place(each.key or b""),
                each.timestamp_ms,
                each.key,
                each.value,
                msgspec.msgpack.encode(each.headers),
            )
            for each in records
        ]

    def insert(self, rows: Sequence[Row], *, group_size: int) -> None:
        """Insert all rows, `group_size` to a transaction."""
        waiting = iter(rows)
        while group := list(islice(waiting, group_size)):
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(INSERT, group)
            self._db.execute("COMMIT")

    def pages(self, partition: int, *, page_size: int) -> Iterator[list[Row]]:
        """Yield one partition's rows in pages, each by a select of its own."""
        start, end = partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS
        while page := self._db.execute(SELECT, (start, end, page_size)).fetchall():
            yield page
            start = page[-1][0] + 1

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _place(self, key: bytes) -> int:
        partition = partition_of(key, len(self._offsets))
        offset = self._offsets[partition]
        self._offsets[partition] = offset + 1
        return partition << OFFSET_BITS | offset
