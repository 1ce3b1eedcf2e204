"""From the actions of one key in a batch to what must be written to the store, in pieces that purges separate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from headrace.journal.actions import Append, Delete, Poison, Purge
from headrace.journal.decoding import decode_append
from headrace.journal.durations import duration_of
from headrace.journal.folding import Effect, Entry, Step, exists, pointer_of, step
from headrace.journal.headers import user_headers
from headrace.journal.payloads import Payloads
from headrace.store import EventRow, JournalMeta, Place, RowDeletion, segment_of

__all__ = ["KeyFold", "KeyWrites", "VoidAction", "deletions_up_to", "fold_key", "metadata_text"]


@dataclass(slots=True)
class KeyWrites:
    """What to write, in this order: rows, meta, deletions. All before a later piece is begun."""

    rows: list[EventRow] = field(default_factory=list)
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


@dataclass(slots=True)
class KeyFold:
    """What a batch does to one key. `held` are the records behind one that can't be decoded, that one included."""

    meta: JournalMeta | None
    pieces: list[KeyWrites] = field(default_factory=list)
    void: list[VoidAction] = field(default_factory=list)
    held: list[Entry] = field(default_factory=list)


def fold_key(meta: JournalMeta | None, entries: Iterable[Entry]) -> KeyFold:
    """Fold the actions of one key, which come in the order of the log, on what the store has of it.

    What lies at or below the state was applied before; its deletions are issued again, because the writer may have
    died between the state and them.
    """
    fold = KeyFold(meta)
    piece = _Piece(meta)
    for given in entries:
        if fold.meta is not None and given.place <= fold.meta.place:
            piece.repeat(fold.meta, given)
            if piece.writes.purged_at is not None:  # before anything after the purge, as at the first time
                fold.pieces.append(piece.writes)
                piece = _Piece(fold.meta)
            continue
        decoded, entry = _decoded(given)
        done = step(fold.meta, entry, expire_after=decoded.expire_after if decoded else None)
        piece.take(entry, done, decoded)
        fold.meta = piece.meta_after(done)
        if done.effect is Effect.VOID:
            fold.void.append(VoidAction(entry, done.reason))
        elif done.effect is Effect.HELD:
            fold.held.append(entry)
        elif done.effect is Effect.PURGED:
            fold.pieces.append(piece.writes)
            piece = _Piece(fold.meta)
    if not piece.writes.is_empty:
        fold.pieces.append(piece.writes)
    return fold


class _Piece:
    """Gathers the writes up to the next purge.

    `_first` to `_last` are the numbers of which rows may be in the store: those it had, and those of this piece,
    because an earlier run may have written them and died before their state.
    """

    def __init__(self, stored: JournalMeta | None) -> None:
        self.writes = KeyWrites()
        self._first: int | None = None
        self._last = 0
        if stored is not None and not stored.is_purged:
            self._may_hold(min(stored.delete_to + 1, max(stored.seq_nr, 1)), pointer_of(stored))

    def take(self, entry: Entry, done: Step, decoded: Payloads | None) -> None:
        """Add what one step changes."""
        match done.effect:
            case Effect.APPENDED if decoded is not None and done.meta is not None:
                self.writes.rows += _rows(entry, done.meta, decoded)
                self._may_hold(decoded.events[0].seq_nr, decoded.events[-1].seq_nr)
            case Effect.DELETED if done.meta is not None:
                self._delete(done.meta, entry.place)
            case Effect.PURGED if done.meta is not None:
                self._purge(done.meta, entry.place)

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
            self.writes.deletions += [(deletion, place) for deletion in gone]
            self._first = to + 1

    def _purge(self, marker: JournalMeta, place: Place) -> None:
        self.writes.rows = []
        self.writes.purged_at = place
        first = self._first if self._first is not None else marker.seq_nr + 1
        self.writes.deletions += [(gone, place) for gone in _whole_segments(marker, first=first)]


def deletions_up_to(to: int, segment_size: int, *, after: int = 0) -> list[RowDeletion]:
    """Return what removes the events from `after` + 1 up to `to`: full segments whole, the last one by range."""
    if to <= after:
        return []
    last = segment_of(to, segment_size)
    is_full = to == (last + 1) * segment_size
    whole = [RowDeletion(segment, None) for segment in range(segment_of(after + 1, segment_size), last)]
    return [*whole, RowDeletion(last, None if is_full else to)]


def metadata_text(header: bytes | None, payload: bytes | None, expire_after: str | None) -> str | None:
    """Return the metadata column of a row: the record's own and the payloads', as one JSON object."""
    parts: dict[str, dict[str, object]] = {}
    if header is not None:
        parts["header"] = {"data": msgspec.Raw(header)}
    if payload is not None or expire_after is not None:
        written: dict[str, object] = {"expireAfter": expire_after} if expire_after is not None else {}
        parts["payload"] = {**written, **({"data": msgspec.Raw(payload)} if payload is not None else {})}
    return msgspec.json.encode(parts).decode() if parts else None


def _whole_segments(meta: JournalMeta, *, first: int) -> list[RowDeletion]:
    """Return what removes the segments of the numbers from `first`, and of those just deleted, to the last."""
    last = max(meta.seq_nr, meta.delete_to)
    if last == 0:
        return []
    lowest = min(first, max(meta.delete_to, 1), last)
    return [
        RowDeletion(segment, None)
        for segment in range(segment_of(lowest, meta.segment_size), segment_of(last, meta.segment_size) + 1)
    ]


def _decoded(entry: Entry) -> tuple[Payloads | None, Entry]:
    """Decode an append's events; what can't be decoded becomes poison."""
    if not isinstance(entry.action, Append) or entry.record is None:
        return None, entry
    try:
        return decode_append(entry.action, entry.record.value), entry
    except ValueError as error:
        return None, msgspec.structs.replace(entry, action=Poison(f"value: {error}"))


def _rows(entry: Entry, meta: JournalMeta, decoded: Payloads) -> list[EventRow]:
    append, record = entry.action, entry.record
    if not isinstance(append, Append) or record is None or meta.record_id is None:
        raise AssertionError("only appends with their record make rows")
    headers = user_headers(record)
    metadata = metadata_text(append.metadata, decoded.metadata, decoded.expire_after)
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
        return msgspec.structs.replace(meta, expire_on_ms=None)
    after_ms = duration_of(meta.expire_after) // timedelta(milliseconds=1)
    return msgspec.structs.replace(meta, expire_on_ms=meta.updated_ms + after_ms)
