"""The window of a key, which is its actions that are not replicated, and the view of a journal that includes it.

It comes from the head cache where that knows it, else from one pass over the log. That pass keeps the records of the
key, so that the events need no second one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

import msgspec

from headrace.errors import HeadraceError, JournalHeld, OffsetOutOfRange, RecordsLost, TimedOut
from headrace.journal.head_cache import HeadCache
from headrace.journal.metrics import HEAD_ANSWERS
from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.protocol import (
    Append,
    Effect,
    Entry,
    EntryScanner,
    HeadAnswer,
    HeadKind,
    Mark,
    Poison,
    Verdict,
    exists,
    pointer_of,
    step,
)
from headrace.store import EventRow, JournalMeta, Place, ReplicatedOffset

__all__ = [
    "FirstRows",
    "KeyScan",
    "KnownJournalState",
    "View",
    "Window",
    "Windows",
    "first_of",
    "fold",
    "last_of",
    "view_of",
    "without_skipped",
]

_CHUNK = 100
_CLOSE_BY = 500
_MOST_RUNS = 20
_KEEP_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Window:
    """A key's actions, in order. `records` are those that could be kept, by offset.

    `generation` is the partition's at the end of the window, or a later one.
    """

    at: TopicPartition
    entries: list[Entry]
    records: Mapping[int, Record] = field(default_factory=dict)
    is_behind: bool = False
    generation: int = 0


class Windows:
    """Finds windows, and reads their records."""

    def __init__(self, log: Log, cache: HeadCache | None, *, timeout_s: float) -> None:
        self._log = log
        self._cache = cache
        self._timeout_s = timeout_s

    async def find(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window:
        """Return the key's actions in (after, up_to]."""
        try:
            answer = await self._ask(at, generation, id_, after=after, up_to=up_to)
        except OffsetOutOfRange as error:
            raise _lost(at, error) from error
        return answer or await self.scan(at, generation, id_, after=after, up_to=up_to)

    async def scan(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window:
        """Return the same as `find`, from the log itself."""
        try:
            return await self._scan(at, generation, id_, after=after, up_to=up_to)
        except OffsetOutOfRange as error:
            raise _lost(at, error) from error

    async def check_end(self, at: TopicPartition, replicated: int) -> None:
        """Raise OffsetOutOfRange if an offset lies beyond the log's end: the log lost records, or is another log."""
        bounds = await self._log.bounds(at)
        if replicated >= bounds.high_watermark:
            raise OffsetOutOfRange(at.topic, at.partition, replicated, bounds.start, bounds.high_watermark)

    async def records(self, window: Window, offsets: Sequence[int]) -> AsyncIterator[list[Record]]:
        """Yield the records at these ascending offsets, in batches; those that the window has are not read again."""
        missing = [offset for offset in offsets if offset not in window.records]
        first_missing = bisect_left(offsets, missing[0]) if missing else len(offsets)
        for at in range(0, first_missing, _CHUNK):
            yield [window.records[offset] for offset in offsets[at : min(at + _CHUNK, first_missing)]]
        if not missing:
            return
        try:
            async for some in self._fetched(window, offsets[first_missing:], missing):
                yield some
        except OffsetOutOfRange as error:
            raise _lost(window.at, error) from error

    async def _fetched(
        self, window: Window, offsets: Sequence[int], missing: Sequence[int]
    ) -> AsyncIterator[list[Record]]:
        """Yield records from the log, from the first offset that the window lacks to the last."""
        done, end = 0, missing[-1] + 1
        async for batch in self._log.read(window.at, missing[0], end, timeout_s=self._timeout_s):
            found = {record.offset: record for record in batch.records}
            passed = bisect_left(offsets, batch.next_offset)
            if batch.next_offset >= end:
                passed = len(offsets)  # the window has what follows
            for at in range(done, passed, _CHUNK):
                yield [_pick(window, found, offset) for offset in offsets[at : min(at + _CHUNK, passed)]]
            done = max(done, passed)
        if done < len(offsets):
            raise RecordsLost(window.at.topic, window.at.partition, offsets[done], offsets[done])

    async def _ask(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window | None:
        if self._cache is None:
            return None
        try:
            answer = await self._cache.ask(at, generation, id_, after=after, up_to=up_to, timeout_s=self._timeout_s / 2)
        except TimedOut:
            HEAD_ANSWERS.labels(at.topic, "timed_out").inc()
            return None
        except OffsetOutOfRange:  # the head may have begun before `after`, for another read: the log itself knows
            return None
        if answer.kind is HeadKind.UNKNOWN:
            return None
        if answer.kind is HeadKind.INDEXED:
            return await self._look_up(at, id_, answer)
        is_behind = answer.kind is HeadKind.BEHIND
        return Window(at, list(answer.entries), answer.records, is_behind=is_behind, generation=answer.generation)

    async def _look_up(self, at: TopicPartition, id_: str, answer: HeadAnswer) -> Window | None:
        """Read the records of which the head has only the offsets; None if a scan of the log is faster."""
        runs = _runs(answer.offsets)
        if len(runs) > _MOST_RUNS:
            return None
        scan = KeyScan(at, id_.encode(), answer.generation, answer.offsets[0] - 1)
        for first, last in runs:
            async for batch in self._log.read(at, first, last + 1, timeout_s=self._timeout_s):
                for record in batch.records:
                    if record.key == scan.keys[0]:
                        scan.take(record)
        scan.add(answer.entries, answer.records)
        return scan.window

    async def _scan(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window:
        """Scan the log once; of other keys' records only the key is looked at."""
        scan = KeyScan(at, id_.encode(), generation, after)
        async for batch in self._log.read(at, after + 1, up_to + 1, timeout_s=self._timeout_s):
            for record in batch.records:
                if record.key in scan.keys:
                    scan.take(record)
        return scan.window


class KeyScan:
    """The entries of a key, and the last generation, that one scan of the log has found."""

    def __init__(self, at: TopicPartition, key: bytes, generation: int, after: int) -> None:
        self._scanner = EntryScanner(key.decode(), generation, after=after)
        self.keys = self._scanner.keys
        self._records: dict[int, Record] = {}
        self.window = Window(at, [], self._records, generation=generation)
        self.size_bytes = 0

    def add(self, entries: Sequence[Entry], records: Mapping[int, Record]) -> None:
        """Add entries that are known already and lie behind all that was seen."""
        self.window.entries.extend(entries)
        self._records.update(records)

    def take(self, record: Record) -> None:
        """Add a record, unless it was seen before."""
        entry = self._scanner.take(record)
        self.window.generation = self._scanner.generation
        if entry is not None and not isinstance(entry.action, Mark):
            # The values of a long window would fill the memory: entries keep none, and `records` only some.
            self.window.entries.append(msgspec.structs.replace(entry, record=None))
            self._keep(record)

    def _keep(self, record: Record) -> None:
        self.size_bytes += len(record.value or b"")
        if self.size_bytes <= _KEEP_BYTES:
            self._records[record.offset] = record


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Group ascending offsets that lie close together; return the first and last of each run."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and offset - runs[-1][1] <= _CLOSE_BY:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs


def _pick(window: Window, found: Mapping[int, Record], offset: int) -> Record:
    record = window.records.get(offset) or found.get(offset)
    if record is None:
        raise RecordsLost(window.at.topic, window.at.partition, offset, offset)
    return record


def _lost(at: TopicPartition, error: OffsetOutOfRange) -> HeadraceError:
    """Return the error for records that neither the store nor the log has."""
    return RecordsLost(at.topic, at.partition, error.offset, error.start - 1) if error.offset < error.start else error


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Rows up to seq_nr `last` that were read before the journal's state and are exactly the rows of that state."""

    rows: Sequence[EventRow]
    last: int


@dataclass(frozen=True, slots=True)
class KnownJournalState:
    """What the store has of a journal: its state, and the replicated offsets of the partitions it was in."""

    replicated: Mapping[TopicPartition, ReplicatedOffset | None]
    stored: JournalMeta | None
    first_rows: FirstRows | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A journal as of a barrier: what the store had, what the log adds, and the state that results from both.

    `appends` are the actions in the log, in order, whose events are at least partly alive.
    """

    stored: JournalMeta | None
    meta: JournalMeta | None
    windows: tuple[Window, ...]
    appends: tuple[Entry, ...]
    barrier: Place
    first_rows: FirstRows | None = None

    @property
    def is_stored(self) -> bool:
        """True if rows in the store belong to the journal as it is now."""
        return exists(self.stored) and exists(self.meta) and self._record_id(self.stored) == self._record_id(self.meta)

    @staticmethod
    def _record_id(meta: JournalMeta | None) -> object:
        return meta.record_id if meta is not None else None


def view_of(id_: str, known: KnownJournalState, windows: Sequence[Window], barrier: Place) -> View:
    """Fold the windows on what the store has. Raises JournalHeld."""
    meta, appends = fold(known.stored, (entry for window in windows for entry in window.entries))
    if meta is not None and meta.held_from is not None:
        kept = without_skipped([entry for window in windows for entry in window.entries])
        meta, appends = fold(known.stored, kept)
    if meta is not None and meta.held_from is not None:
        raise JournalHeld(id_, meta.topic, meta.partition, meta.held_from, "a record can't be decoded")
    return View(known.stored, meta, tuple(windows), tuple(appends), barrier, known.first_rows)


def fold(stored: JournalMeta | None, entries: Iterable[Entry]) -> tuple[JournalMeta | None, list[Entry]]:
    """Fold actions, in order, on the state; return the new state and the appends whose events are alive.

    In a run of appends that all count, only the last one is applied: it leaves the same state as all of them.
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
    """Drop the records that can't be decoded and that a verdict skips.

    A journal is held from its first such record. The verdict on it comes later; then the next such record holds it.
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
    """Return True if an append that simply follows would change nothing but the numbers of this state."""
    return meta is not None and not meta.is_purged and meta.held_from is None
