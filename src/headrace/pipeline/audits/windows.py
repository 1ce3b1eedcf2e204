"""What of the log can be compared with the store, walked through in slices of bounded size."""

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

    `stored` is the replicated offset as the store has it, `replicated` the same if it is of this partition's time.
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
    """A journal's part of the window: places from `first` to `last`. `is_whole`: nothing was before."""

    first: Place
    last: Place
    is_whole: bool

    def is_before(self, place: Place) -> bool:
        """Say whether a place lies below the window."""
        return place < self.first

    def is_ahead(self, place: Place) -> bool:
        """Say whether a place lies above it: replication is there, or somebody wrote it by hand."""
        return place > self.last and place >= self.first


@dataclass(frozen=True, slots=True)
class AuditWindow:
    """What a task reads. `log_times_ms` are the floors of log times, by generation, where views by tag set them."""

    layout: Layout
    at: TopicPartition
    stretches: dict[int, WindowStretch]
    log_times_ms: dict[int, int] = field(default_factory=dict)

    @property
    def home(self) -> WindowStretch:
        """The task's own partition."""
        return self.stretches[self.at.partition]

    def has_home_of(self, id_: str) -> bool:
        """Return True if a journal is judged in the task's partition; it is not any more where it moved away."""
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
        """Return a journal's window; while nothing of it is replicated it holds nothing."""
        if self.layout.generation == 0:
            home = self.home
            return KeyWindow(Place(home.generation, home.start), Place(home.generation, home.last), home.start == 0)
        return self._of_moved(id_)

    def _of_moved(self, id_: str) -> KeyWindow:
        """Go through the partitions that a journal was in; what lies before the last loss is unknown."""
        found: KeyWindow | None = None
        for stay in self.layout.stays(id_):
            stretch = self.stretches[stay.at.partition]
            start = max(stay.start, stretch.start)
            end = stretch.last if stay.end is None else min(stretch.last, stay.end - 1)
            last = Place(generation_at(self.layout, stay.at, end), end)
            # At the boundary itself nothing of the stay is there, and offsets of two partitions don't compare.
            if found is not None and (end < stay.start or last.generation <= found.last.generation):
                break
            if found is None or start > stay.start:
                is_whole = start == stay.start and not _was_made_anew(self.layout)
                found = KeyWindow(Place(generation_at(self.layout, stay.at, start), start), last, is_whole)
            else:
                found = KeyWindow(found.first, last, found.is_whole)
        if found is None:
            raise AssertionError("every key is somewhere")
        return found


class MovingWindow:
    """A window that is read several times. Replication may remove its start meanwhile, which the store has.

    Then it is opened again, from where the log begins by then.
    """

    def __init__(self, window: AuditWindow, reopen: Callable[[], Awaitable[AuditWindow]]) -> None:
        self.window = window
        self._reopen = reopen

    async def read(self, read: Callable[[AuditWindow], Awaitable[T]]) -> T:
        """Return what a reading of the whole window gives. Raises OffsetOutOfRange if the log has lost its end."""
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
    """Look at the log's bounds and at how far replication has come, of all partitions that matter."""
    floors = await _floors(store, at.topic)
    partitions = {at.partition}
    if layout.generation > 0:
        partitions |= set(range(layout.partitions))
    stretches = {
        partition: await _stretch(log, store, layout, TopicPartition(at.topic, partition)) for partition in partitions
    }
    return AuditWindow(layout, at, stretches, floors)


async def _stretch(log: Log, store: Store, layout: Layout, at: TopicPartition) -> WindowStretch:
    # The replicated offset first: what lies at or below it is in the log's bounds read after it, or gone from there.
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
    is_beyond: bool = False,
) -> AsyncIterator[Entry]:
    """Yield the entries of the task's journals whose keys are `wanted`, marks left out, partition by partition.

    `is_beyond`: those that are not replicated yet, too. A segment size of 0 is one that the log does not tell any more.
    """
    for stretch in window.stretches.values():
        end = _end(window, stretch, is_beyond=is_beyond)
        if end <= stretch.start:
            continue
        async for entry in _read(log, window, stretch, end, wanted, headers_only=headers_only):
            yield entry


def _end(window: AuditWindow, stretch: WindowStretch, *, is_beyond: bool) -> int:
    end = stretch.end if is_beyond else stretch.last + 1
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
    """Say whether the record counts, and its journal lives in the task's partition now."""
    if layout.generation == 0:
        return True
    return layout.is_home(entry.id, entry.generation, at) and layout.route(entry.id) == home


def _was_made_anew(layout: Layout) -> bool:
    return any(not generation.boundaries for generation in layout.generations[1:])


EVENTS_AT_ONCE = 20_000
_HASHES_KEPT = 1 << 18
_EVENTS_OF_APPEND = 1000


class KeySet:
    """Which keys were seen, by a hash of each: eight bytes for a key."""

    def __init__(self) -> None:
        self._new: list[int] = []
        self._known = np.empty(0, np.uint64)

    def __contains__(self, id_: str) -> bool:
        self._settle()
        wanted = np.uint64(_hash(id_))
        place = int(np.searchsorted(self._known, wanted))
        return place < len(self._known) and bool(self._known[place] == wanted)

    def add(self, id_: str) -> None:
        """Remember a key."""
        self._new.append(_hash(id_))
        if len(self._new) >= _HASHES_KEPT:
            self._settle()

    def _settle(self) -> None:
        if self._new:
            self._known = np.union1d(self._known, np.array(self._new, np.uint64))
            self._new.clear()


class Survey:
    """How much there is in a window, and of which keys."""

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
    """Read the headers of a window."""
    found = Survey()
    async for entry in read_entries(log, window, lambda _: True, headers_only=True):
        found.add(entry)
    return found


async def slices(
    log: Log, moving: MovingWindow, found: Survey, *, events_at_once: int = EVENTS_AT_ONCE
) -> AsyncIterator[dict[str, list[Entry]]]:
    """Yield the window's entries by id, a slice of the keys at a time; `moving` has the window that they are of."""
    count = -(-found.events // max(1, events_at_once))
    for number in range(count):

        def wanted(key: bytes, number: int = number) -> bool:
            return zlib.crc32(key) % count == number

        yield await moving.read(lambda window, wanted=wanted: _gather(log, window, wanted))  # type: ignore[misc]


async def entries_of(log: Log, window: AuditWindow, ids: Collection[str]) -> dict[str, list[Entry]]:
    """Return the entries of some journals, those that are not replicated yet included."""
    keys = {id_.encode(errors="surrogateescape") for id_ in ids}
    found = await _gather(log, window, keys.__contains__, is_beyond=True)
    return {id_: found.get(id_, []) for id_ in ids}


async def ids_in(log: Log, at: TopicPartition, ids: Collection[str]) -> set[str]:
    """Return which of the journals have records in a partition, whoever wrote them there."""
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
            start = error.start  # removed meanwhile, by replication that has carried it into the store
        else:
            return found


async def _gather(
    log: Log, window: AuditWindow, wanted: Callable[[bytes], bool], *, is_beyond: bool = False
) -> dict[str, list[Entry]]:
    by_id: dict[str, list[Entry]] = {}
    async for entry in read_entries(log, window, wanted, is_beyond=is_beyond):
        by_id.setdefault(entry.id, []).append(entry)
    return by_id


def _most_events(append: Append) -> int:
    """Return how many events an append may hold: its numbers may jump by millions, so they say little."""
    return min(append.last - append.first + 1, _EVENTS_OF_APPEND)


def _hash(id_: str) -> int:
    return int.from_bytes(blake2b(id_.encode(errors="surrogateescape"), digest_size=8).digest())
