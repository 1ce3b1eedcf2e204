"""The writes to the store that follow from the actions of one key in a batch, in pieces separated by purges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from headrace.model import Record
from headrace.protocol.actions import Append, Delete, Poison, Purge, Verdict, duration_of
from headrace.protocol.events import decode_append
from headrace.protocol.fold import Effect, Entry, Step, exists, pointer_of, reopened, step
from headrace.protocol.headers import decode_action, user_headers
from headrace.protocol.payloads import AppendValue
from headrace.store import EventRow, JournalMeta, Place, RowDeletion, SegmentGap, segment_of

__all__ = ["KeyFold", "KeyWrites", "Removal", "VoidAction", "deletions_up_to", "fold_key", "gaps_between", "rows_of"]


@dataclass(slots=True)
class KeyWrites:
    """One piece: rows, gaps, meta, deletions. They are written in this order, and all before the next piece."""

    rows: list[EventRow] = field(default_factory=list)
    gaps: list[SegmentGap] = field(default_factory=list)
    meta: JournalMeta | None = None
    deletions: list[tuple[RowDeletion, Place]] = field(default_factory=list)
    purged_at: Place | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.meta is None and not self.deletions


@dataclass(frozen=True, slots=True)
class VoidAction:
    """An action that changed nothing, and why."""

    entry: Entry
    reason: str


@dataclass(frozen=True, slots=True)
class Removal:
    """A delete or purge: it removes the events from `first` to `last` that were written before `place`."""

    place: Place
    first: int
    last: int


@dataclass(slots=True)
class KeyFold:
    """The effect of a batch on one key. `held` are the record that can't be decoded and those behind it.

    `tagged` are the rows with tags of all appends that count, also where a later action of the batch removes them.
    `reopened_at` is the place of the verdict that applied the held entries, now or in an earlier run of the batch;
    `stored` is the place of the state that the batch was folded on.
    """

    meta: JournalMeta | None
    pieces: list[KeyWrites] = field(default_factory=list)
    void: list[VoidAction] = field(default_factory=list)
    held: list[Entry] = field(default_factory=list)
    tagged: list[EventRow] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    reopened_at: Place | None = None
    stored: Place | None = None


def fold_key(meta: JournalMeta | None, entries: Iterable[Entry], held: Iterable[Entry] = ()) -> KeyFold:
    """Fold the actions of one key, in the order of the log, on the state that the store has.

    `held` are the entries that have waited since the journal is held: a verdict among the actions applies them.

    Actions at or below the state were applied before. Their deletions are issued again, because the writer may have
    died after it wrote the state and before it wrote them.
    """
    folder = _KeyFolder(meta, held)
    for entry in entries:
        folder.take(entry)
    return folder.done()


class _KeyFolder:
    """Applies the actions of one key one by one."""

    def __init__(self, meta: JournalMeta | None, held: Iterable[Entry]) -> None:
        self._fold = KeyFold(meta, stored=meta.place if meta is not None else None)
        self._piece = _Piece(meta)
        self._held_before = list(held)

    def take(self, entry: Entry) -> None:
        """Apply an action, or repeat its deletions if it was applied before."""
        fold = self._fold
        meta = fold.meta
        if meta is not None and (entry.generation, entry.offset) <= (meta.generation, meta.offset):
            self._repeat(meta, entry)
        elif isinstance(entry.action, Verdict) and (opened := self._opened_by(entry)):
            self._reopen(entry, entry.action, *opened)
        else:
            self._apply(entry)

    def done(self) -> KeyFold:
        """Return the result."""
        if not self._piece.writes.is_empty:
            self._fold.pieces.append(self._piece.writes)
        return self._fold

    def _repeat(self, meta: JournalMeta, entry: Entry) -> None:
        self._piece.repeat(meta, entry)
        if isinstance(entry.action, Verdict) and meta.held_from is None:
            self._fold.reopened_at = entry.place  # the writer may have died before it removed the held entries
        if self._piece.writes.purged_at is not None:  # before anything after the purge, as in the first run
            self._next_piece()

    def _opened_by(self, verdict: Entry) -> tuple[JournalMeta, list[Entry]] | None:
        return reopened(self._fold.meta, verdict, [*self._held_before, *self._fold.held])

    def _reopen(self, verdict: Entry, action: Verdict, meta: JournalMeta, again: list[Entry]) -> None:
        """Apply the held entries. The state moves to the verdict's place, unless the journal is held again."""
        fold = self._fold
        fold.meta, fold.held, self._held_before = meta, [], []
        tagged, removals, pieces = len(fold.tagged), len(fold.removals), len(fold.pieces)
        for entry in again:
            if fold.meta is not None and entry.place <= fold.meta.place:
                self._repeat(fold.meta, entry)
            else:
                self._apply(_read_again(entry))
        fold.reopened_at = verdict.place
        self._hold_until_written(fold.pieces[pieces:], action.held_from)
        # Views have passed the records' own places by now: the held entries count from the verdict on.
        at = {name: getattr(verdict, name) for name in ("generation", "partition", "offset", "log_time_ms")}
        fold.tagged[tagged:] = [msgspec.structs.replace(row, **at) for row in fold.tagged[tagged:]]
        fold.removals[removals:] = [Removal(verdict.place, gone.first, gone.last) for gone in fold.removals[removals:]]
        if fold.meta is not None and fold.meta.held_from is None:
            here = {name: at[name] for name in ("generation", "partition", "offset")}
            fold.meta = msgspec.structs.replace(fold.meta, **here)
            self._piece.writes.meta = fold.meta

    @staticmethod
    def _hold_until_written(pieces: Sequence[KeyWrites], held_from: int) -> None:
        """Keep the journal held until the last piece is written, so that a replay applies the verdict again."""
        for piece in pieces:
            if piece.meta is not None:
                piece.meta = msgspec.structs.replace(piece.meta, held_from=held_from)

    def _apply(self, given: Entry) -> None:
        fold = self._fold
        decoded, entry = _decoded(given)
        done = step(fold.meta, entry, expire_after=decoded.expire_after if decoded else None)
        rows = self._piece.take(fold.meta, entry, done, decoded)
        fold.tagged += [row for row in rows if row.tags]
        if done.effect in (Effect.DELETED, Effect.PURGED):
            fold.removals.append(_removal(fold.meta, done, entry.place))
        fold.meta = self._piece.meta_after(done)
        if done.effect is Effect.VOID:
            fold.void.append(VoidAction(entry, done.reason))
        elif done.effect is Effect.HELD:
            fold.held.append(entry)
        elif done.effect is Effect.PURGED:
            self._next_piece()

    def _next_piece(self) -> None:
        self._fold.pieces.append(self._piece.writes)
        self._piece = _Piece(self._fold.meta)


class _Piece:
    """The writes up to the next purge, as they are gathered.

    Rows from `_first` to `_last` may be in the store: those it had, and those of this piece, because an earlier run
    may have written them and died before it wrote the state.
    """

    def __init__(self, stored: JournalMeta | None) -> None:
        self.writes = KeyWrites()
        self._first: int | None = None
        self._last = 0
        self._segments: set[int] = set()
        if stored is not None and not stored.is_purged:
            self._may_hold(min(stored.delete_to + 1, max(stored.seq_nr, 1)), pointer_of(stored))

    def take(self, before: JournalMeta | None, entry: Entry, done: Step, decoded: AppendValue | None) -> list[EventRow]:
        """Add what one step changes; return its new rows."""
        rows: list[EventRow] = []
        match done.effect:
            case Effect.APPENDED if decoded is not None and done.meta is not None and entry.record is not None:
                rows = rows_of(entry, entry.record, done.meta, decoded)
                self.writes.rows += rows
                self.writes.gaps += gaps_between(before, rows, done.meta.segment_size)
                self._segments |= {row.segment for row in rows}
                self._may_hold(decoded.events[0].seq_nr, decoded.events[-1].seq_nr)
            case Effect.DELETED if done.meta is not None:
                if not exists(before) and (first := segment_of(done.meta.seq_nr, done.meta.segment_size)) > 0:
                    self.writes.gaps.append(SegmentGap(-1, first, entry.place))
                self._delete(done.meta, entry.place)
            case Effect.PURGED if done.meta is not None:
                self._purge(done.meta, entry.place)
        return rows

    def meta_after(self, done: Step) -> JournalMeta | None:
        """Return the state after a step, and keep it for writing if it changed."""
        if done.effect in (Effect.NOTHING, Effect.VOID):
            return done.meta
        meta = _with_expiry(done.meta) if done.effect is Effect.APPENDED and done.meta else done.meta
        self.writes.meta = meta
        return meta

    def repeat(self, meta: JournalMeta, entry: Entry) -> None:
        """Issue again the deletions of an action that was applied before."""
        if isinstance(entry.action, Purge) and meta.is_purged and meta.place == entry.place:
            self.writes.deletions += [(gone, entry.place) for gone in _whole_segments(meta, first=1)]
            self.writes.purged_at = entry.place
        elif isinstance(entry.action, Delete) and exists(meta):
            to = min(entry.action.to, meta.delete_to)
            self.writes.deletions += [(gone, entry.place) for gone in deletions_up_to(to, meta.segment_size)]

    def _may_hold(self, first: int, last: int) -> None:
        self._first = first if self._first is None else min(self._first, first)
        self._last = max(self._last, last)

    def _delete(self, meta: JournalMeta, place: Place) -> None:
        self.writes.rows = [row for row in self.writes.rows if row.seq_nr > meta.delete_to]
        to = min(meta.delete_to, self._last)
        if self._first is not None and to >= self._first:
            gone = deletions_up_to(to, meta.segment_size, after=self._first - 1)
            self.writes.deletions += [(deletion, place) for deletion in self._with_own(gone)]
            self._first = to + 1

    def _purge(self, marker: JournalMeta, place: Place) -> None:
        self.writes.rows = []
        self.writes.purged_at = place
        first = self._first if self._first is not None else marker.seq_nr + 1
        gone = self._with_own(_whole_segments(marker, first=first))
        self.writes.deletions += [(deletion, place) for deletion in gone]

    def _with_own(self, deletions: list[RowDeletion]) -> list[RowDeletion]:
        """Add the segments of this piece's own rows: another replicator may still write rows there."""
        ranges = [(gone.segment, gone.until) for gone in deletions if gone.until is not None]
        own = [n for n in sorted(self._segments) if any(first <= n <= last for first, last in ranges)]
        return [*deletions, *(RowDeletion(segment, None) for segment in own)]


def gaps_between(before: JournalMeta | None, rows: Sequence[EventRow], segment_size: int) -> list[SegmentGap]:
    """Return where the numbers of an append's rows jump over segments, also before the first row of a journal."""
    last = segment_of(pointer_of(before), segment_size) if before is not None and pointer_of(before) else -1
    if rows[-1].segment - last <= 1:
        return []
    gaps = []
    for row in rows:
        if row.segment - last > 1:
            gaps.append(SegmentGap(last, row.segment, row.place))
        last = row.segment
    return gaps


def deletions_up_to(to: int, segment_size: int, *, after: int = 0) -> list[RowDeletion]:
    """Return the deletions of the events from `after` + 1 up to `to`: full segments, and a range of the last one."""
    if to <= after:
        return []
    first, last = segment_of(after + 1, segment_size), segment_of(to, segment_size)
    if to == (last + 1) * segment_size:
        return _segments(first, last)
    return [*_segments(first, last - 1), RowDeletion(last, to)]


def _segments(first: int, last: int) -> list[RowDeletion]:
    """Return the deletions of whole segments."""
    if last < first:
        return []
    return [RowDeletion(first, None, last if last > first else None)]


def _metadata_text(header: bytes | None, payload: bytes | None, expire_after: str | None) -> str | None:
    """Return the metadata column of a row: the record's own and the payloads', as one JSON object."""
    parts: dict[str, dict[str, object]] = {}
    if header is not None:
        parts["header"] = {"data": msgspec.Raw(header)}
    if payload is not None or expire_after is not None:
        written: dict[str, object] = {"expireAfter": expire_after} if expire_after is not None else {}
        parts["payload"] = {**written, **({"data": msgspec.Raw(payload)} if payload is not None else {})}
    return msgspec.json.encode(parts).decode() if parts else None


def _whole_segments(meta: JournalMeta, *, first: int) -> list[RowDeletion]:
    """Return the deletions of all segments from that of `first`, or of the events just deleted, to the last."""
    last = max(meta.seq_nr, meta.delete_to)
    if last == 0:
        return []
    lowest = min(first, max(meta.delete_to, 1), last)
    return _segments(segment_of(lowest, meta.segment_size), segment_of(last, meta.segment_size))


def _decoded(entry: Entry) -> tuple[AppendValue | None, Entry]:
    """Decode an append's events; what can't be decoded becomes poison."""
    if not isinstance(entry.action, Append) or entry.record is None:
        return None, entry
    try:
        return decode_append(entry.action, entry.record.value), entry
    except ValueError as error:
        return None, msgspec.structs.replace(entry, action=Poison(f"value: {error}"))


def _removal(before: JournalMeta | None, done: Step, place: Place) -> Removal:
    if before is None or done.meta is None or not exists(before):
        return Removal(place, 1, 0)
    last = pointer_of(before) if done.effect is Effect.PURGED else done.meta.delete_to
    return Removal(place, before.delete_to + 1, last)


def _read_again(entry: Entry) -> Entry:
    """Decode an entry from its record again: this version may read what an older one could not."""
    action = decode_action(entry.record) if entry.record is not None else None
    return entry if action is None else msgspec.structs.replace(entry, action=action)


def rows_of(entry: Entry, record: Record, meta: JournalMeta, decoded: AppendValue) -> list[EventRow]:
    """Return the rows of an append's events; `meta` is the state that it belongs to."""
    append = entry.action
    if not isinstance(append, Append) or meta.record_id is None:
        raise AssertionError("only appends to a journal make rows")
    headers = user_headers(record)
    metadata = _metadata_text(append.metadata, decoded.metadata, decoded.expire_after)
    return [
        EventRow(
            segment=segment_of(event.seq_nr, meta.segment_size),
            seq_nr=event.seq_nr,
            generation=entry.generation,
            partition=entry.partition,
            offset=entry.offset,
            log_time_ms=entry.log_time_ms,
            timestamp_ms=entry.timestamp_ms,
            record_id=meta.record_id,
            tags=event.tags,
            payload_type=event.payload_type,
            payload=event.payload,
            metadata=metadata,
            headers=headers,
            origin=append.origin,
            version=append.version,
        )
        for event in decoded.events
    ]


def _with_expiry(meta: JournalMeta) -> JournalMeta:
    if meta.expire_after is None or meta.updated_ms is None:
        return meta if meta.expire_on_ms is None else msgspec.structs.replace(meta, expire_on_ms=None)
    after_ms = duration_of(meta.expire_after) // timedelta(milliseconds=1)
    return msgspec.structs.replace(meta, expire_on_ms=meta.updated_ms + after_ms)
