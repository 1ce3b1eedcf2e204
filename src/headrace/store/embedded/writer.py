"""The write side of the embedded store: changes to the file as pieces of work for the group commit.

The writer's thread keeps a cache of journals: their numbers, and what was deleted of each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

from headrace.errors import HeadraceError
from headrace.runtime import Clock, crash_point
from headrace.sqlite import GroupCommit
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
from headrace.store.embedded.reader import number_of
from headrace.store.embedded.schema import ALL_SLOTS, MAX_SEQ_NR, written
from headrace.store.metrics import ROWS_WRITTEN
from headrace.store.plain_rows import PlainRows
from headrace.store.rows import (
    EventRow,
    JournalMeta,
    JournalWrite,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
)

__all__ = ["PUT_SNAPSHOT_DELETION", "EmbeddedWriter", "EventWriter", "Journals", "StoreCall", "StoreWork"]

_MOST_KNOWN = 20_000


class _Deletion(NamedTuple):
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

    def covers(self, other: _Deletion) -> bool:
        """Return True if this deletion removes all that the other one does."""
        is_within = self.segment <= other.segment and other.last_segment <= self.last_segment
        return is_within and self.last_seq_nr >= other.last_seq_nr and self.written >= other.written


@dataclass(slots=True)
class _KnownJournal:
    """One journal in the file."""

    number: int
    deletions: list[_Deletion] = field(default_factory=list)

    def accepts(self, event: Values) -> bool:
        """Return True if no deletion covers the event (its columns, as in EVENT)."""
        segment, seq_nr, _, place = event[:4]
        return not any(gone.removes(segment, seq_nr, place) for gone in self.deletions)


class Journals:
    """Caches journals until another process writes; used in the writer's thread only."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _KnownJournal] = {}
        self._version = -1

    def refresh(self, db: sqlite3.Connection) -> None:
        """Forget everything if another process has committed; call it inside the transaction."""
        version = int(db.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version or len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._version = version

    def forget(self) -> None:
        """Forget everything: a transaction failed."""
        self._known.clear()

    def find(self, db: sqlite3.Connection, topic: str, id_: str) -> _KnownJournal:
        """Return the journal, giving it a number if it has none."""
        known = self._known.get((topic, id_))
        if known is None:
            known = self._known[topic, id_] = _load_journal(db, topic, id_)
        return known


def _load_journal(db: sqlite3.Connection, topic: str, id_: str) -> _KnownJournal:
    number = number_of(db, topic, id_)
    if number is None:
        made = db.execute("INSERT INTO journals (topic, id) VALUES (?, ?)", (topic, id_))
        return _KnownJournal(int(made.lastrowid or 0))
    deletions = db.execute("SELECT segment, up_to, written FROM event_deletions WHERE journal = ?", (number,))
    return _KnownJournal(number, [_Deletion(*row) for row in deletions])


# One step of SQLite takes and gives back the interpreter's lock, so a busy event loop would slow down a
# statement per row; rows go in by the dozen.
_CHUNK = 50
_EVENT_KEY = ("journal", "segment", "seq_nr", "timestamp_ms")
_INSERT_ONE = upsert("events", _EVENT_KEY, ("journal", *EVENT))
_INSERT_CHUNK = upsert("events", _EVENT_KEY, ("journal", *EVENT), rows=_CHUNK)
_PUT_HEAD = upsert("heads", ("journal",), ("journal", *HEAD))
_PUT_REPLICATED = upsert("replicated", ("topic", "partition"), REPLICATED)
PUT_SNAPSHOT_DELETION = upsert("snapshot_deletions", ("journal", "slot"), ("journal", "slot", "written", "made_ms"))
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
class _WriteRows:
    """Events of one journal."""

    topic: str
    id: str
    rows: Sequence[EventRow]

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Gather them, without those that a deletion covers."""
        writer.gather(writer.journals.find(db, self.topic, self.id), self.rows)


@dataclass(frozen=True, slots=True)
class _WriteMeta:
    """A head, or a purge marker that expires at `expires_ms`."""

    meta: JournalMeta
    expires_ms: int | None

    def run(self, db: sqlite3.Connection, writer: EventWriter) -> None:
        """Write it unless a later one is there."""
        journal = writer.journals.find(db, self.meta.topic, self.meta.id)
        db.execute(_PUT_HEAD, (journal.number, *head_values(self.meta, self.expires_ms)))


@dataclass(frozen=True, slots=True)
class _WriteJournals:
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
class _DeleteRows:
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

    def _remember(self, db: sqlite3.Connection, journal: _KnownJournal, gone: _Deletion) -> None:
        """Keep only deletions that no other covers."""
        if any(other.covers(gone) for other in journal.deletions):
            return
        journal.deletions = [other for other in journal.deletions if not gone.covers(other)]
        journal.deletions.append(gone)
        db.execute(_DROP_COVERED, (journal.number, *_extent(gone)))
        db.execute(_PUT_DELETION, (journal.number, *gone, self.made_ms))


@dataclass(frozen=True, slots=True)
class _MoveReplicated:
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

    def gather(self, journal: _KnownJournal, rows: Sequence[EventRow]) -> None:
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


def _remembered(deletion: RowDeletion, place: int) -> _Deletion:
    segment, to, until = deletion
    if until is not None and until > segment:
        return _Deletion(segment, -until - 1, place)
    return _Deletion(segment, MAX_SEQ_NR if to is None else to, place)


def _extent(gone: _Deletion) -> tuple[int, int, int, int]:
    return gone.segment, gone.last_segment, gone.last_seq_nr, gone.written


class EmbeddedWriter:
    """The embedded store's StoreWriter."""

    def __init__(self, commits: GroupCommit[StoreWork], clock: Clock, *, marker_ttl_s: float) -> None:
        self._commits = commits
        self._clock = clock
        self._marker_ttl_ms = int(marker_ttl_s * 1000)
        self._rows_written = ROWS_WRITTEN.labels("embedded")

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        """Write rows of one journal."""
        await self._commits.submit(_WriteRows(topic, id_, rows))
        self._rows_written.inc(len(rows))

    async def write_gaps(self, topic: str, id_: str, gaps: Sequence[SegmentGap]) -> None:
        """Do nothing: the table's index finds the next segment."""

    async def write_meta(self, meta: JournalMeta) -> None:
        """Write a head or a purge marker."""
        expires_ms = self._clock.now_ms() + self._marker_ttl_ms if meta.is_purged else None
        await self._commits.submit(_WriteMeta(meta, expires_ms))

    async def write_journals(self, journals: Sequence[JournalWrite]) -> None:
        """Write rows and heads of many journals, in one transaction."""
        await self._commits.submit(_WriteJournals(journals, self._clock.now_ms() + self._marker_ttl_ms))
        self._rows_written.inc(sum(len(rows) for _, rows in journals))

    async def delete_rows(self, topic: str, id_: str, deletions: Sequence[RowDeletion], *, at: Place) -> None:
        """Remove rows of one journal."""
        await self._commits.submit(_DeleteRows(topic, id_, deletions, at, self._clock.now_ms()))

    async def delete_snapshots(self, topic: str, id_: str, *, at: Place) -> None:
        """Remove the snapshots at or below the place."""
        now_ms = self._clock.now_ms()
        await self._commits.submit(
            StoreCall(lambda db, journals: _drop_all_snapshots(db, journals, topic, id_, at, now_ms))
        )

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        """Move a partition's replicated offset forward."""
        await self._commits.submit(_MoveReplicated(offset))


def _drop_all_snapshots(
    db: sqlite3.Connection, journals: Journals, topic: str, id_: str, at: Place, now_ms: int
) -> None:
    """Remove every snapshot at or below the place, also those that are saved later."""
    number = journals.find(db, topic, id_).number
    db.execute("DELETE FROM snapshots WHERE journal = ? AND written <= ?", (number, written(at)))
    db.execute(PUT_SNAPSHOT_DELETION, (number, ALL_SLOTS, written(at), now_ms))
