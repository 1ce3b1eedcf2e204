"""A journal as it is at one place of the log: what the store has of it, and what the log adds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from headrace.errors import JournalHeld
from headrace.journal.actions import Append, Poison, Verdict
from headrace.journal.folding import Effect, Entry, exists, pointer_of, step
from headrace.journal.windows import Window
from headrace.model import TopicPartition
from headrace.store import EventRow, JournalMeta, Place, ReplicatedOffset

__all__ = ["FirstRows", "Known", "View", "first_of", "fold", "last_of", "view_of", "without_skipped"]


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Rows up to seq_nr `last` that were read before the journal's state, and are exactly those of that state."""

    rows: Sequence[EventRow]
    last: int


@dataclass(frozen=True, slots=True)
class Known:
    """What the store has of a journal: its state, and how far the partitions it was in are replicated."""

    replicated: Mapping[TopicPartition, ReplicatedOffset | None]
    stored: JournalMeta | None
    first_rows: FirstRows | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A journal as of a barrier: what the store had, what the log adds, and the state of both together.

    `appends` are the actions of the log, in order, whose events are (in part) alive.
    """

    stored: JournalMeta | None
    meta: JournalMeta | None
    windows: tuple[Window, ...]
    appends: tuple[Entry, ...]
    barrier: Place
    first_rows: FirstRows | None = None

    @property
    def is_stored(self) -> bool:
        """Whether rows of the store belong to the journal as it is now."""
        return exists(self.stored) and exists(self.meta) and self._record_id(self.stored) == self._record_id(self.meta)

    @staticmethod
    def _record_id(meta: JournalMeta | None) -> object:
        return meta.record_id if meta is not None else None


def view_of(id_: str, known: Known, windows: Sequence[Window], barrier: Place) -> View:
    """Fold what the log adds on what the store has. Raises JournalHeld."""
    meta, appends = fold(known.stored, (entry for window in windows for entry in window.entries))
    if meta is not None and meta.held_from is not None:
        kept = without_skipped([entry for window in windows for entry in window.entries])
        meta, appends = fold(known.stored, kept)
    if meta is not None and meta.held_from is not None:
        raise JournalHeld(id_, meta.topic, meta.partition, meta.held_from, "a record can't be decoded")
    return View(known.stored, meta, tuple(windows), tuple(appends), barrier, known.first_rows)


def fold(stored: JournalMeta | None, entries: Iterable[Entry]) -> tuple[JournalMeta | None, list[Entry]]:
    """Fold actions, in order, on the state; returns the new state and the appends whose events are alive.

    In a run of appends that all count, the last one leaves the same state as all of them: only that is applied.
    """
    meta, run = stored, None
    appends: list[Entry] = []
    is_open, pointer = _is_open(meta), pointer_of(meta)
    for entry in dropwhile(lambda entry: stored is not None and entry.place <= stored.place, entries):
        action = entry.action
        if (
            is_open
            and type(action) is Append
            and action.first > pointer
            and action.expected is None
            and action.since is None
        ):
            run, pointer = entry, action.last
            appends.append(entry)
            continue
        if run is not None:
            meta, run = step(meta, run).meta, None
        done = step(meta, entry)
        meta = done.meta
        is_open, pointer = _is_open(meta), pointer_of(meta)
        if done.effect is Effect.APPENDED:
            appends.append(entry)
        elif done.effect is Effect.PURGED:
            appends.clear()
    if run is not None:
        meta = step(meta, run).meta
    delete_to = meta.delete_to if meta is not None else 0
    return meta, [entry for entry in appends if last_of(entry) > delete_to] if delete_to else appends


def without_skipped(entries: Sequence[Entry]) -> list[Entry]:
    """Drop the records that can't be decoded and that somebody has decided to pass over.

    A journal is held from the first such record; the verdict on it comes later, and the next one holds it then.
    """
    waiting: deque[Place] = deque()
    skipped: set[Place] = set()
    for entry in entries:
        action = entry.action
        if isinstance(action, Poison):
            waiting.append(entry.place)
        elif isinstance(action, Verdict) and action.is_skip and waiting and action.is_about(waiting[0]):
            skipped.add(waiting.popleft())
    return [entry for entry in entries if not (isinstance(entry.action, Poison) and entry.place in skipped)]


def first_of(entry: Entry) -> int:
    """Return the first seq_nr of an append."""
    return entry.action.first if isinstance(entry.action, Append) else 0


def last_of(entry: Entry) -> int:
    """Return the last seq_nr of an append."""
    return entry.action.last if isinstance(entry.action, Append) else 0


def _is_open(meta: JournalMeta | None) -> bool:
    """Say whether an append that follows plainly changes nothing but the numbers of the state."""
    return meta is not None and not meta.is_purged and meta.held_from is None
