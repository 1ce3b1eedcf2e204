"""The writer's cache of journals: their numbers, and what was deleted of each."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.store.embedded.columns import Values
from headrace.store.embedded.schema import MAX_SEQ_NR

__all__ = ["Deletion", "Journals", "KnownJournal", "number_of"]

_MOST = 20_000


class Deletion(NamedTuple):
    """Rows of a segment with seq_nr up to `up_to`, of that place or below, are gone for good.

    An `up_to` below 0 stands for a range: all rows of the segments from `segment` to -`up_to` - 1.
    """

    segment: int
    up_to: int
    written: int

    @property
    def last_segment(self) -> int:
        """The last segment that it covers."""
        return self.segment if self.up_to >= 0 else -self.up_to - 1

    @property
    def last_seq_nr(self) -> int:
        """The highest number that it removes."""
        return self.up_to if self.up_to >= 0 else MAX_SEQ_NR

    def removes(self, segment: int, seq_nr: int, written: int) -> bool:
        """Return True if a row is gone for good."""
        is_there = self.segment <= segment <= self.last_segment and seq_nr <= self.last_seq_nr
        return is_there and written <= self.written

    def covers(self, other: Deletion) -> bool:
        """Return True if this deletion removes all that the other one does."""
        is_within = self.segment <= other.segment and other.last_segment <= self.last_segment
        return is_within and self.last_seq_nr >= other.last_seq_nr and self.written >= other.written


@dataclass(slots=True)
class KnownJournal:
    """One journal in the file."""

    number: int
    deletions: list[Deletion] = field(default_factory=list)

    def accepts(self, event: Values) -> bool:
        """Return True if no deletion covers the event (its columns, as in EVENT)."""
        segment, seq_nr, _, place = event[:4]
        return not any(gone.removes(segment, seq_nr, place) for gone in self.deletions)


class Journals:
    """Caches journals until another process writes; used in the writer's thread only."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], KnownJournal] = {}
        self._version = -1

    def refresh(self, db: sqlite3.Connection) -> None:
        """Forget everything if another process has committed; call it inside the transaction."""
        version = int(db.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version or len(self._known) > _MOST:
            self._known.clear()
        self._version = version

    def forget(self) -> None:
        """Forget everything: a transaction failed."""
        self._known.clear()

    def find(self, db: sqlite3.Connection, topic: str, id_: str) -> KnownJournal:
        """Return the journal, giving it a number if it has none."""
        known = self._known.get((topic, id_))
        if known is None:
            known = self._known[topic, id_] = _load(db, topic, id_)
        return known


def number_of(db: sqlite3.Connection, topic: str, id_: str) -> int | None:
    """Return a journal's number, if it has one."""
    row = db.execute("SELECT number FROM journals WHERE topic = ? AND id = ?", (topic, id_)).fetchone()
    return None if row is None else int(row[0])


def _load(db: sqlite3.Connection, topic: str, id_: str) -> KnownJournal:
    number = number_of(db, topic, id_)
    if number is None:
        made = db.execute("INSERT INTO journals (topic, id) VALUES (?, ?)", (topic, id_))
        return KnownJournal(int(made.lastrowid or 0))
    deletions = db.execute("SELECT segment, up_to, written FROM event_deletions WHERE journal = ?", (number,))
    return KnownJournal(number, [Deletion(*row) for row in deletions])
