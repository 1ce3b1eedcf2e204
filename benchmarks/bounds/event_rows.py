"""Plain sqlite3 on the embedded store's own table: executemany of rows that are made, in groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from headrace.store.embedded.columns import EVENT, Values, event_values
from headrace.store.embedded.schema import TABLES
from headrace.store.rows import EventRow

__all__ = ["EventRows"]

INSERT = f"INSERT INTO events (journal, {', '.join(EVENT)}) VALUES ({', '.join('?' * (len(EVENT) + 1))})"


class EventRows:
    """One file in WAL mode, fsynced at every commit."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16384", "temp_store = MEMORY"):
            self._db.execute(f"PRAGMA {statement}")
        self._db.executescript(TABLES)

    @staticmethod
    def values(rows: Sequence[tuple[int, EventRow]]) -> list[Values]:
        """Return rows of journals by number as the table has them."""
        return [(journal, *event_values(row)) for journal, row in rows]

    def insert(self, values: Sequence[Values], *, group_size: int) -> None:
        """Insert all, `group_size` to a transaction."""
        for start in range(0, len(values), group_size):
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(INSERT, values[start : start + group_size])
            self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()
