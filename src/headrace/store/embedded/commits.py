"""Changes to the file as pieces of work for the group commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.runtime import crash_point
from headrace.store.embedded.columns import (
    EVENT,
    HEAD,
    REPLICATED,
    Values,
    event_values,
    head_values,
    plain_values,
    replicated_values,
    upsert,
)
from headrace.store.embedded.journals import Deletion, Journals, KnownJournal
from headrace.store.embedded.schema import MAX_SEQ_NR, written
from headrace.store.plain_rows import PlainRows
from headrace.store.rows import EventRow, JournalMeta, JournalWrite, Place, ReplicatedOffset, RowDeletion

__all__ = [
    "DeleteRows",
    "EventWriter",
    "MoveReplicated",
    "StoreCall",
    "StoreWork",
    "WriteJournals",
    "WriteMeta",
    "WriteRows",
]

# One step of SQLite takes and gives back the interpreter's lock, so a busy event loop would slow down a
# statement per row; rows go in by the dozen.
_CHUNK = 50
_EVENT_KEY = ("journal", "segment", "seq_nr", "timestamp_ms")
_INSERT_ONE = upsert("events", _EVENT_KEY, ("journal", *EVENT))
_INSERT_CHUNK = upsert("events", _EVENT_KEY, ("journal", *EVENT), rows=_CHUNK)
_PUT_HEAD = upsert("heads", ("journal",), ("journal", *HEAD))
_PUT_REPLICATED = upsert("replicated", ("topic", "partition"), REPLICATED)
_DELETE_EVENTS = "DELETE FROM events WHERE journal = ? AND segment BETWEEN ? AND ? AND seq_nr <= ? AND written <= ?"
_DROP_COVERED = f"""DELETE FROM event_deletions WHERE journal = ? AND segment >= ?
AND iif(up_to < 0, -up_to - 1, segment) <= ? AND iif(up_to < 0, {MAX_SEQ_NR}, up_to) <= ? AND written <= ?"""  # noqa: S608
_PUT_DELETION = "INSERT INTO event_deletions (journal, segment, up_to, written, made_ms) VALUES (?, ?, ?, ?, ?)"


class StoreWork(Protocol):
    """A change to make inside a write transaction."""

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> object:
        """Do it and return the result, or raise a HeadraceError before anything was written."""
        ...


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Any function of the connection and of the journals the writer knows."""

    function: Callable[[sqlite3.Connection, Journals], Any]

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> object:
        """Run it after the events that came before it."""
        writer.flush(db)
        return self.function(db, writer.journals)


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Events of one journal."""

    topic: str
    id: str
    rows: Sequence[EventRow]

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Gather them, without those that a deletion covers."""
        writer.gather(writer.journals.find(db, self.topic, self.id), self.rows)


@dataclass(frozen=True, slots=True)
class WriteMeta:
    """A head, or a purge marker that expires at `expires_ms`."""

    meta: JournalMeta
    expires_ms: int | None

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Write it unless a later one is there."""
        journal = writer.journals.find(db, self.meta.topic, self.meta.id)
        db.execute(_PUT_HEAD, (journal.number, *head_values(self.meta, self.expires_ms)))


@dataclass(frozen=True, slots=True)
class WriteJournals:
    """Events and heads of many journals; purge markers among them expire at `expires_ms`."""

    journals: Sequence[JournalWrite]
    expires_ms: int

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Gather the events, and write each head unless a later one is there."""
        heads: list[Values] = []
        for meta, rows in self.journals:
            journal = writer.journals.find(db, meta.topic, meta.id)
            if rows:
                writer.gather(journal, rows)
            heads.append((journal.number, *head_values(meta, self.expires_ms if meta.is_purged else None)))
        db.executemany(_PUT_HEAD, heads)


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Deletions in one journal, at one place."""

    topic: str
    id: str
    deletions: Sequence[RowDeletion]
    at: Place
    made_ms: int

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Remove the rows, and remember the deletion for rows that are written late."""
        writer.flush(db)
        journal = writer.journals.find(db, self.topic, self.id)
        for deletion in self.deletions:
            gone = _remembered(deletion, written(self.at))
            db.execute(_DELETE_EVENTS, (journal.number, *_extent(gone)))
            self._remember(db, journal, gone)

    def _remember(self, db: sqlite3.Connection, journal: KnownJournal, gone: Deletion) -> None:
        """Keep only deletions that no other covers."""
        if any(other.covers(gone) for other in journal.deletions):
            return
        journal.deletions = [other for other in journal.deletions if not gone.covers(other)]
        journal.deletions.append(gone)
        db.execute(_DROP_COVERED, (journal.number, *_extent(gone)))
        db.execute(_PUT_DELETION, (journal.number, *gone, self.made_ms))


@dataclass(frozen=True, slots=True)
class MoveReplicated:
    """A partition's replicated offset."""

    offset: ReplicatedOffset

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Move it forward."""
        writer.flush(db)
        crash_point("store.embedded.before-replicated")
        db.execute(_PUT_REPLICATED, replicated_values(self.offset))


class EventWriter:
    """Gathers the events of a group commit, to write many at a time; used in the writer's thread only."""

    def __init__(self) -> None:
        self.journals = Journals()
        self._rows: list[Values] = []

    def apply(self, db: sqlite3.Connection, works: Sequence[StoreWork]) -> list[object]:
        """Do all the works of a group, in order."""
        self.journals.refresh(db)
        self._rows.clear()
        outcomes: list[object] = []
        for work in works:
            try:
                outcomes.append(work.run(db, self))
            except HeadraceError as refusal:
                outcomes.append(refusal)
        self.flush(db)
        return outcomes

    def gather(self, journal: KnownJournal, rows: Sequence[EventRow]) -> None:
        """Take events for the next flush."""
        number = (journal.number,)
        events: Iterable[Values] = plain_values(rows) if isinstance(rows, PlainRows) else map(event_values, rows)
        if journal.deletions:
            events = filter(journal.accepts, events)
        self._rows.extend(number + event for event in events)

    def flush(self, db: sqlite3.Connection) -> None:
        """Write the events gathered so far to the file."""
        rows = iter(self._rows)
        for _ in range(len(self._rows) // _CHUNK):
            db.execute(_INSERT_CHUNK, list(chain.from_iterable(islice(rows, _CHUNK))))
        db.executemany(_INSERT_ONE, rows)
        self._rows.clear()


def _remembered(deletion: RowDeletion, place: int) -> Deletion:
    segment, to, until = deletion
    if until is not None and until > segment:
        return Deletion(segment, -until - 1, place)
    return Deletion(segment, MAX_SEQ_NR if to is None else to, place)


def _extent(gone: Deletion) -> tuple[int, int, int, int]:
    return gone.segment, gone.last_segment, gone.last_seq_nr, gone.written
