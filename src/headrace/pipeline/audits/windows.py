"""The window of an audit: the records that the log still has and that are replicated.

A journal belongs to the partition that its key belongs to. A journal that moved when its topic grew has older records
in another partition, below the boundary, and those count too. If the log has removed records, a journal's window begins
behind them, and the state before is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import msgspec

from headrace.errors import OffsetOutOfRange
from headrace.journal import Layout, Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.protocol import Entry, Mark, entry_of, next_generation
from headrace.store import Place, ReplicatedOffset, Store
from headrace.tags import REGISTRY_KEY, TagFacts

__all__ = [
    "AuditWindow",
    "KeyWindow",
    "MovingWindow",
    "RunningState",
    "TopicWindow",
    "WindowStretch",
    "first_time_ms",
    "generation_at",
    "layout_of",
    "open_topic_window",
    "open_window",
    "read_entries",
    "reopened_window",
]

T = TypeVar("T")

_REOPENED_AT_MOST = 20
_AT_ONCE = 32
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


@dataclass(frozen=True, slots=True)
class TopicWindow:
    """The windows of all partitions of a topic, as they were at one time. It travels to the tasks of a job."""

    layout: Layout
    stretches: Mapping[int, WindowStretch]
    log_times_ms: dict[int, int] = field(default_factory=dict)

    def of_partition(self, partition: int) -> AuditWindow:
        """Return the window of the journals that belong to a partition."""
        at = TopicPartition(self.layout.topic, partition)
        return AuditWindow(self.layout, at, _involved(self.layout, partition, self.stretches), self.log_times_ms)

    def only(self, partitions: Iterable[int]) -> TopicWindow:
        """Return the window of some partitions. In a topic that has never grown they hold all of their journals."""
        return replace(self, stretches={number: self.stretches[number] for number in partitions})

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """The first offsets of the log, by partition."""
        return {stretch.at: stretch.start for stretch in self.stretches.values()}

    def ends(self, *, with_unreplicated: bool) -> dict[TopicPartition, int]:
        """Return where to stop reading (exclusive): behind the window, or at the log's end."""
        return {
            each.at: max(each.start, each.end if with_unreplicated else each.last + 1)
            for each in self.stretches.values()
        }


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


async def layout_of(log: Log, store: Store, topic: str) -> Layout:
    """Return a topic's layout without writing anything."""
    return await Topology(log, store.settings, topic, is_reader=True).layout()


async def open_window(log: Log, store: Store, layout: Layout, at: TopicPartition) -> AuditWindow:
    """Open the window of a partition, from the log's bounds and the replicated offsets of all partitions involved."""
    floors = await _floors(store, at.topic)
    partitions = [at.partition] if layout.generation == 0 else range(layout.partitions)
    return AuditWindow(layout, at, await _stretches(log, store, layout, partitions), floors)


async def open_topic_window(log: Log, store: Store, layout: Layout) -> TopicWindow:
    """Open the windows of all partitions of a topic."""
    floors = await _floors(store, layout.topic)
    return TopicWindow(layout, await _stretches(log, store, layout, range(layout.partitions)), floors)


async def reopened_window(log: Log, window: TopicWindow) -> TopicWindow:
    """Return a window after the log has been read: with the start and the end that the log has now.

    Records may have been removed while they were read. What was removed by now does not count, so that nothing counts
    as absent because it was removed before it was read.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(stretch: WindowStretch) -> WindowStretch:
        async with limit:
            bounds = await log.bounds(stretch.at)
        generation = generation_at(window.layout, stretch.at, bounds.start)
        return replace(stretch, start=bounds.start, end=bounds.end, generation=generation)

    found = await asyncio.gather(*map(one, window.stretches.values()))
    return replace(window, stretches={stretch.at.partition: stretch for stretch in found})


def _involved(layout: Layout, partition: int, stretches: Mapping[int, WindowStretch]) -> dict[int, WindowStretch]:
    return {partition: stretches[partition]} if layout.generation == 0 else dict(stretches)


async def _stretches(log: Log, store: Store, layout: Layout, partitions: Iterable[int]) -> dict[int, WindowStretch]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(partition: int) -> WindowStretch:
        async with limit:
            return await _stretch(log, store, layout, TopicPartition(layout.topic, partition))

    return {stretch.at.partition: stretch for stretch in await asyncio.gather(*map(one, partitions))}


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


async def first_time_ms(log: Log, windows: Sequence[TopicWindow]) -> int:
    """Return a time that is not after the log time of any record in the windows; 0 if the logs are whole.

    A record's log time is at least the timestamp of the first record of its partition.
    """
    if any(stretch.start == 0 for window in windows for stretch in window.stretches.values()):
        return 0
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(at: TopicPartition) -> int:
        async with limit:
            return await _first_timestamp_ms(log, at)

    found = await asyncio.gather(*(one(at) for window in windows for at in window.starts))
    return min(found, default=0)


async def _first_timestamp_ms(log: Log, at: TopicPartition) -> int:
    """Return the timestamp of the first record that the log has, or 0."""
    bounds = await log.bounds(at)
    try:
        async for batch in log.read(at, bounds.start, bounds.end, headers_only=True, max_records=1):
            for record in batch.records:
                return record.timestamp_ms
    except OffsetOutOfRange as error:
        if error.offset >= error.start:
            raise
        # Records were removed in this moment. A time of 0 is never wrong: more is read than needed.
    return 0


class RunningState(NamedTuple):
    """What the earlier records of a partition decide about the next one. A segment size of 0 is unknown."""

    generation: int
    log_time_ms: int
    segment_size: int


async def read_entries(
    log: Log, window: AuditWindow, start: int, before: RunningState, wanted: Callable[[bytes], bool]
) -> AsyncIterator[Entry]:
    """Yield the entries of the window's own partition from `start` to the log's end, without Marks."""
    generation, log_time_ms, segment_size = before
    async for batch in log.read(window.at, start, window.home.end):
        for record in batch.records:
            log_time_ms = max(log_time_ms, record.timestamp_ms)
            entry = entry_of(record, generation, log_time_ms=log_time_ms, segment_size=segment_size)
            if entry is None:
                continue
            if isinstance(entry.action, Mark):
                generation = next_generation(generation, entry.action)
                log_time_ms = max(log_time_ms, window.log_times_ms.get(generation, 0))
                segment_size = entry.action.segment_size or segment_size
            elif wanted(record.key or b""):
                yield entry


def _was_recreated(layout: Layout) -> bool:
    return any(not generation.boundaries for generation in layout.generations[1:])
