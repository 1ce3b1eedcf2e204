"""The window of an audit: the records that the log still has and that are replicated, read in bounded slices.

A task judges the journals whose keys belong to its partition. A journal that moved when its topic grew has older
records in another partition, below the boundary, and those are read too. If the log has removed records, a journal's
window begins behind them, and the state before is unknown.

The first pass reads headers only: it counts, and keeps a hash of each key. Then the log is read once for each slice
of the keys. Slices hold about the same number of events, so memory does not grow with the log; only the records of
one journal are always in one slice.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar

import msgspec
import numpy as np

from headrace.errors import OffsetOutOfRange
from headrace.journal import Layout
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.protocol import Append, Entry, Mark, entry_of, next_generation
from headrace.store import DEFAULT_SEGMENT_SIZE, Place, ReplicatedOffset, Store
from headrace.tags import REGISTRY_KEY, TagFacts

__all__ = [
    "AuditWindow",
    "KeySet",
    "KeyWindow",
    "MovingWindow",
    "Survey",
    "WindowStretch",
    "entries_of",
    "generation_at",
    "ids_in",
    "open_window",
    "read_entries",
    "slices",
    "survey",
]

T = TypeVar("T")

_REOPENED_AT_MOST = 20
_decode_registry = msgspec.json.Decoder(TagFacts).decode


@dataclass(frozen=True, slots=True)
class WindowStretch:
    """Records of one partition: from `start` up to `last` (inclusive), which is replicated; the log ends at `end`.

    `stored` is the replicated offset as the store has it; `replicated` is the same, or None if it is of an earlier
    topic of the same name.
    """

    at: TopicPartition
    start: int
    last: int
    end: int
    generation: int
    replicated: ReplicatedOffset | None
    stored: ReplicatedOffset | None = None


@dataclass(frozen=True, slots=True)
class KeyWindow:
    """A journal's part of the window: places from `first` to `last`. `is_whole`: the log holds nothing earlier."""

    first: Place
    last: Place
    is_whole: bool

    def is_before(self, place: Place) -> bool:
        """Return True if a place is below the window."""
        return place < self.first

    def is_ahead(self, place: Place) -> bool:
        """Return True if a place is above the window: replication wrote it since, or it was written by hand."""
        return place > self.last and place >= self.first


@dataclass(frozen=True, slots=True)
class AuditWindow:
    """The window of a task. `log_times_ms` are the lowest log times by generation, if views by tag set them."""

    layout: Layout
    at: TopicPartition
    stretches: dict[int, WindowStretch]
    log_times_ms: dict[int, int] = field(default_factory=dict)

    @property
    def home(self) -> WindowStretch:
        """The task's own partition."""
        return self.stretches[self.at.partition]

    def has_home_of(self, id_: str) -> bool:
        """Return True if the task judges the journal; not if the journal has moved to another partition."""
        return self.layout.generation == 0 or self.layout.route(id_) == self.at

    @property
    def is_log_time_exact(self) -> bool:
        """Whether the log times of rows can be computed from what the log still has."""
        return not self.log_times_ms and all(stretch.start == 0 for stretch in self.stretches.values())

    @property
    def highest_log_time_ms(self) -> int:
        """The highest log time that a row can have."""
        known = [stretch.replicated.log_time_ms for stretch in self.stretches.values() if stretch.replicated]
        return max([*known, *self.log_times_ms.values(), 0])

    def of_key(self, id_: str) -> KeyWindow:
        """Return a journal's window; it is empty while nothing of the journal is replicated."""
        if self.layout.generation == 0:
            home = self.home
            return KeyWindow(Place(home.generation, home.start), Place(home.generation, home.last), home.start == 0)
        return self._of_moved(id_)

    def _of_moved(self, id_: str) -> KeyWindow:
        """Go through the partitions that held the journal; what was before the last removed start is unknown."""
        found: KeyWindow | None = None
        for stay in self.layout.stays(id_):
            stretch = self.stretches[stay.at.partition]
            start = max(stay.start, stretch.start)
            end = stretch.last if stay.end is None else min(stretch.last, stay.end - 1)
            last = Place(generation_at(self.layout, stay.at, end), end)
            # At the boundary itself the stay is empty, and offsets of two partitions can't be compared.
            if found is not None and (end < stay.start or last.generation <= found.last.generation):
                break
            if found is None or start > stay.start:
                is_whole = start == stay.start and not _was_recreated(self.layout)
                found = KeyWindow(Place(generation_at(self.layout, stay.at, start), start), last, is_whole)
            else:
                found = KeyWindow(found.first, last, found.is_whole)
        if found is None:
            raise AssertionError("every key has a partition")
        return found


class MovingWindow:
    """A window that is read several times. Replication may meanwhile remove records at its start from the log.

    Then the window is opened again, from the log's new start.
    """

    def __init__(self, window: AuditWindow, reopen: Callable[[], Awaitable[AuditWindow]]) -> None:
        self.window = window
        self._reopen = reopen

    async def read(self, read: Callable[[AuditWindow], Awaitable[T]]) -> T:
        """Return the result of reading the whole window. Raises OffsetOutOfRange if the log has lost its end."""
        for _ in range(_REOPENED_AT_MOST):
            try:
                return await read(self.window)
            except OffsetOutOfRange as error:
                if error.offset >= error.start:
                    raise
                self.window = await self._reopen()
        return await read(self.window)


def generation_at(layout: Layout, at: TopicPartition, offset: int) -> int:
    """Return the generation of a record; a boundary itself belongs to the generation before it."""
    return layout.generation_at(at.partition, offset)


async def open_window(log: Log, store: Store, layout: Layout, at: TopicPartition) -> AuditWindow:
    """Open the window of a partition, from the log's bounds and the replicated offsets of all partitions involved."""
    floors = await _floors(store, at.topic)
    partitions = {at.partition}
    if layout.generation > 0:
        partitions |= set(range(layout.partitions))
    stretches = {
        partition: await _stretch(log, store, layout, TopicPartition(at.topic, partition)) for partition in partitions
    }
    return AuditWindow(layout, at, stretches, floors)


async def _stretch(log: Log, store: Store, layout: Layout, at: TopicPartition) -> WindowStretch:
    # The replicated offset is read first, so records up to it are within the bounds read later, or were removed.
    replicated = await store.reader.replicated(at)
    bounds = await log.bounds(at)
    is_begun = replicated is not None and replicated.generation >= layout.first_generation(at.partition)
    last = min(replicated.offset, bounds.end - 1) if replicated is not None and is_begun else bounds.start - 1
    generation = generation_at(layout, at, bounds.start)
    return WindowStretch(at, bounds.start, last, bounds.end, generation, replicated if is_begun else None, replicated)


async def _floors(store: Store, topic: str) -> dict[int, int]:
    stored = await store.settings.get(REGISTRY_KEY)
    entry = _decode_registry(stored).topics.get(topic) if stored is not None else None
    if entry is None or entry.floor_ms is None:
        return {}
    return {0: entry.floor_ms, **{int(number): floor_ms for number, floor_ms in entry.generations.items()}}


async def read_entries(
    log: Log,
    window: AuditWindow,
    wanted: Callable[[bytes], bool],
    *,
    headers_only: bool = False,
    with_unreplicated: bool = False,
) -> AsyncIterator[Entry]:
    """Yield the entries of the task's journals whose keys are `wanted`, without Marks, partition by partition.

    `with_unreplicated` includes those that are not replicated yet. A segment size of 0 means that it is unknown.
    """
    for stretch in window.stretches.values():
        end = _end(window, stretch, with_unreplicated=with_unreplicated)
        if end <= stretch.start:
            continue
        async for entry in _read(log, window, stretch, end, wanted, headers_only=headers_only):
            yield entry


def _end(window: AuditWindow, stretch: WindowStretch, *, with_unreplicated: bool) -> int:
    end = stretch.end if with_unreplicated else stretch.last + 1
    if stretch.at == window.at:
        return end
    boundary = window.layout.generations[-1].boundaries.get(stretch.at.partition)
    return stretch.start if boundary is None else min(end, boundary)


async def _read(
    log: Log,
    window: AuditWindow,
    stretch: WindowStretch,
    end: int,
    wanted: Callable[[bytes], bool],
    *,
    headers_only: bool,
) -> AsyncIterator[Entry]:
    layout = window.layout
    generation, log_time_ms = stretch.generation, window.log_times_ms.get(stretch.generation, 0)
    segment_size = DEFAULT_SEGMENT_SIZE if stretch.start == 0 else 0
    async for batch in log.read(stretch.at, stretch.start, end, headers_only=headers_only):
        for record in batch.records:
            log_time_ms = max(log_time_ms, record.timestamp_ms)
            entry = entry_of(record, generation, log_time_ms=log_time_ms, segment_size=segment_size)
            if entry is None:
                continue
            if isinstance(entry.action, Mark):
                generation = next_generation(generation, entry.action)
                log_time_ms = max(log_time_ms, window.log_times_ms.get(generation, 0))
                segment_size = entry.action.segment_size or segment_size
            elif wanted(record.key or b"") and _is_ours(layout, window.at, stretch.at, entry):
                yield entry


def _is_ours(layout: Layout, home: TopicPartition, at: TopicPartition, entry: Entry) -> bool:
    """Return True if the record counts and its journal belongs to the task's partition now."""
    if layout.generation == 0:
        return True
    return layout.is_home(entry.id, entry.generation, at) and layout.route(entry.id) == home


def _was_recreated(layout: Layout) -> bool:
    return any(not generation.boundaries for generation in layout.generations[1:])


EVENTS_AT_ONCE = 20_000
_HASHES_KEPT = 1 << 18
_EVENTS_OF_APPEND = 1000


class KeySet:
    """A set of keys that keeps only an eight-byte hash of each."""

    def __init__(self) -> None:
        self._new: list[int] = []
        self._known = np.empty(0, np.uint64)

    def __contains__(self, id_: str) -> bool:
        self._merge()
        wanted = np.uint64(_hash(id_))
        place = int(np.searchsorted(self._known, wanted))
        return place < len(self._known) and bool(self._known[place] == wanted)

    def add(self, id_: str) -> None:
        """Add a key."""
        self._new.append(_hash(id_))
        if len(self._new) >= _HASHES_KEPT:
            self._merge()

    def _merge(self) -> None:
        if self._new:
            self._known = np.union1d(self._known, np.array(self._new, np.uint64))
            self._new.clear()


class Survey:
    """The size of a window, and the keys in it."""

    def __init__(self) -> None:
        self.records = 0
        self.events = 0
        self._keys = KeySet()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._keys

    def add(self, entry: Entry) -> None:
        """Count an entry."""
        self.records += 1
        self.events += _most_events(entry.action) if isinstance(entry.action, Append) else 1
        self._keys.add(entry.id)


async def survey(log: Log, window: AuditWindow) -> Survey:
    """Count the records, events and keys of a window, from headers only."""
    found = Survey()
    async for entry in read_entries(log, window, lambda _: True, headers_only=True):
        found.add(entry)
    return found


async def slices(
    log: Log, moving: MovingWindow, found: Survey, *, events_at_once: int = EVENTS_AT_ONCE
) -> AsyncIterator[dict[str, list[Entry]]]:
    """Yield the window's entries by id, one slice of the keys at a time; `moving.window` is their window."""
    count = -(-found.events // max(1, events_at_once))
    for number in range(count):

        def wanted(key: bytes, number: int = number) -> bool:
            return zlib.crc32(key) % count == number

        yield await moving.read(lambda window, wanted=wanted: _gather(log, window, wanted))  # type: ignore[misc]


async def entries_of(log: Log, window: AuditWindow, ids: Collection[str]) -> dict[str, list[Entry]]:
    """Return the entries of some journals, including those that are not replicated yet."""
    keys = {id_.encode(errors="surrogateescape") for id_ in ids}
    found = await _gather(log, window, keys.__contains__, with_unreplicated=True)
    return {id_: found.get(id_, []) for id_ in ids}


async def ids_in(log: Log, at: TopicPartition, ids: Collection[str]) -> set[str]:
    """Return the journals that have records in a partition, even if they don't belong there."""
    keys = {id_.encode(errors="surrogateescape"): id_ for id_ in ids}
    start, found = 0, set[str]()
    while True:
        bounds = await log.bounds(at)
        start = max(start, bounds.start)
        if start >= bounds.end:
            return found
        try:
            async for batch in log.read(at, start, bounds.end, headers_only=True):
                found |= {keys[record.key] for record in batch.records if record.key in keys}
                start = batch.next_offset
        except OffsetOutOfRange as error:
            if error.offset >= error.start:
                raise
            start = error.start  # replicated and removed meanwhile
        else:
            return found


async def _gather(
    log: Log, window: AuditWindow, wanted: Callable[[bytes], bool], *, with_unreplicated: bool = False
) -> dict[str, list[Entry]]:
    by_id: dict[str, list[Entry]] = {}
    async for entry in read_entries(log, window, wanted, with_unreplicated=with_unreplicated):
        by_id.setdefault(entry.id, []).append(entry)
    return by_id


def _most_events(append: Append) -> int:
    """Return the most events that an append may hold. Its numbers may have gaps of millions, so the count is capped."""
    return min(append.last - append.first + 1, _EVENTS_OF_APPEND)


def _hash(id_: str) -> int:
    return int.from_bytes(blake2b(id_.encode(errors="surrogateescape"), digest_size=8).digest())
