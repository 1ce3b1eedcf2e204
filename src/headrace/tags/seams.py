"""The seam between views and log: how far replication has come in every partition of every topic, read in one go.

At or below it the views give events, above it the log does. Topics and layouts are looked at after the offsets; if they
are not what was asked about, all is read again, so that no partition is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.errors import UnknownTopic
from headrace.journal import Layout, layout_key
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import Place, Store, TagRow, TagTime
from headrace.tags.announcements import SharedLook
from headrace.tags.events import TagOffset
from headrace.tags.floors import Floors, decode_layout, read_layout
from headrace.tags.registry import TagFacts, TagRegistry

__all__ = ["KnownSeam", "Seam", "SeamOutdated", "SeamReader"]

_LATELY_S = 1.0


class SeamOutdated(Exception):
    """The views hold events of a topic that the seam does not know. Caught within this room."""


@dataclass(frozen=True, slots=True)
class KnownSeam:
    """What the views hold of a partition: all up to `place` (offset -1: nothing yet), which has that log time."""

    at: TopicPartition
    topic_number: int
    place: Place
    log_time_ms: int

    @property
    def next(self) -> TagTime:
        """The lowest place that an event which the views don't hold can have."""
        return TagTime(self.log_time_ms, self.topic_number, self.at.partition, self.place.offset + 1)


@dataclass(frozen=True, slots=True)
class Seam:
    """What the views hold, and the layouts of the topics. Topics that are gone from the log get no more events."""

    partitions: Mapping[TopicPartition, KnownSeam]
    layouts: Mapping[str, Layout]
    registry: TagFacts
    gone: frozenset[str] = frozenset()

    @property
    def live(self) -> list[KnownSeam]:
        """The partitions that the log goes on with."""
        return [known for known in self.partitions.values() if known.at.topic not in self.gone]

    @property
    def horizon(self) -> TagTime | None:
        """Below it nothing can be added any more; None: there is no partition that could."""
        return min((known.next for known in self.live), default=None)

    @property
    def highest_ms(self) -> int:
        """The highest log time that the views hold."""
        return max((known.log_time_ms for known in self.partitions.values()), default=0)

    def place_of(self, offset: TagOffset) -> TopicPartition | None:
        """Return the partition that an offset names; None if no topic has that number."""
        numbers = {entry.number: topic for topic, entry in self.registry.topics.items() if topic in self.layouts}
        topic = numbers.get(offset.topic_number)
        return None if topic is None else TopicPartition(topic, offset.partition)

    def covers(self, row: TagRow) -> bool:
        """Say whether the row lies at or below the seam: others are the log's to give."""
        # Plain tuples equal the named ones, and are made for every row.
        known = self.partitions.get((row.topic, row.partition))  # type: ignore[call-overload]
        return known is not None and (row.generation, row.offset) <= known.place


class SeamReader:
    """Reads seams, and opens topics that journals use and nobody has opened yet."""

    def __init__(self, log: Log, store: Store, registry: TagRegistry, floors: Floors) -> None:
        self._log = log
        self._store = store
        self._registry = registry
        self._floors = floors
        self._reading = SharedLook(self._read)
        self._discovering = SharedLook(self._discover)
        self._listing = SharedLook(self._topics)
        self._ends: dict[TopicPartition, SharedLook[int | None]] = {}

    async def read(self) -> Seam:
        """Return the seam as of now, read once for all queries that begin at the same time."""
        return await self._reading.now()

    async def discover(self) -> TagFacts:
        """Open all topics that have journals; returns the facts."""
        return await self._discovering.now()

    async def discovered(self) -> TagFacts:
        """Return the same, as somebody found it a moment ago."""
        return await self._discovering.lately(_LATELY_S)

    async def announced(self) -> TagFacts:
        """Return the facts as of now, with all that is announced in them opened."""
        return await self.opened(await self._registry.read(), ())

    async def topics(self) -> frozenset[str]:
        """Return the topics that the log had a moment ago."""
        return await self._listing.lately(_LATELY_S)

    async def end(self, at: TopicPartition) -> int | None:
        """Return where a partition ends now; None if its topic is gone."""
        look = self._ends.get(at)
        if look is None:
            look = self._ends[at] = SharedLook(lambda: self._end(at))
        return await look.now()

    async def _topics(self) -> frozenset[str]:
        return frozenset(await self._log.admin.topics())

    async def _end(self, at: TopicPartition) -> int | None:
        try:
            return (await self._log.bounds(at)).end
        except UnknownTopic:
            return None

    async def _read(self) -> Seam:
        await self._registry.open()
        registry = await self._discover()
        while True:
            layouts = await self._layouts(registry)
            found = await asyncio.gather(*(self._known(registry, layout) for layout in layouts.values()))
            partitions = [known for of_topic in found for known in of_topic]
            again = await self._registry.read()
            if _order_of(again) == _order_of(registry) and await self._layouts(again) == layouts:
                gone = await self._gone(layouts.values())
                return Seam({known.at: known for known in partitions}, layouts, again, gone)
            registry = again

    async def _discover(self) -> TagFacts:
        registry = await self._registry.read()
        prefix = layout_key("")
        stored = await self._store.settings.all(prefix)
        registry = await self.opened(registry, [key.removeprefix(prefix) for key in stored])
        for layout in map(decode_layout, stored.values()):
            if layout.is_recreated and registry.floor_ms(layout.topic, layout.generation) is None:
                registry, _ = await self._floors.generation(registry, layout, layout.generation)
        return registry

    async def layout(self, topic: str) -> Layout | None:
        """Return a topic's layout."""
        return await read_layout(self._store, topic)

    async def opened(self, registry: TagFacts, topics: Iterable[str]) -> TagFacts:
        """Open what is announced and what is named here; returns the facts."""
        for topic in {*topics, *registry.topics}:
            entry = registry.topics.get(topic)
            if entry is None or entry.floor_ms is None:
                registry = await self._floors.open_topic(topic)
            elif not entry.is_open and (layout := await read_layout(self._store, topic)) is not None:
                registry, _ = await self._floors.generation(registry, layout, entry.announced)
        return registry

    async def is_there(self, layout: Layout) -> bool:
        """Say whether the log has the topic that the layout is of, and not another one of that name, or none."""
        try:
            topic = await self._log.admin.describe(layout.topic)
        except UnknownTopic:
            return False
        return topic.topic_id == layout.topic_id

    async def note_gone(self, topic: str, last_ms: int) -> None:
        """Note how far a topic was read that is gone."""
        await self._floors.note_gone(topic, last_ms)

    async def _gone(self, layouts: Iterable[Layout]) -> frozenset[str]:
        there = await self._topics()
        of_log = [layout for layout in layouts if layout.topic in there]
        same = await asyncio.gather(*map(self.is_there, of_log))
        living = {layout.topic for layout, is_same in zip(of_log, same, strict=True) if is_same}
        return frozenset(layout.topic for layout in layouts) - living

    async def known(self, registry: TagFacts, layout: Layout, at: TopicPartition) -> KnownSeam:
        """Return what the views hold of a partition."""
        generation = layout.first_generation(at.partition)
        replicated = await self._store.reader.replicated(at)
        number = registry.topics[layout.topic].number
        if replicated is None or replicated.generation < generation:
            _, floor_ms = await self._floors.generation(registry, layout, generation)
            return KnownSeam(at, number, Place(generation, -1), floor_ms)
        if replicated.generation > layout.generation:  # it grew after the layout was read
            layout = await read_layout(self._store, layout.topic) or layout
        _, log_time_ms = await self._floors.log_time_ms(registry, layout, replicated)
        return KnownSeam(at, number, Place(replicated.generation, replicated.offset), log_time_ms)

    async def _known(self, registry: TagFacts, layout: Layout) -> list[KnownSeam]:
        places = [TopicPartition(layout.topic, partition) for partition in range(layout.partitions)]
        return list(await asyncio.gather(*(self.known(registry, layout, at) for at in places)))

    async def _layouts(self, registry: TagFacts) -> dict[str, Layout]:
        layouts = await asyncio.gather(*(read_layout(self._store, topic) for topic in registry.topics))
        return {topic: layout for topic, layout in zip(registry.topics, layouts, strict=True) if layout is not None}


def _order_of(registry: TagFacts) -> dict[str, int]:
    """Return the topics and the generations that are announced: what decides which partitions there are."""
    return {topic: entry.latest for topic, entry in registry.topics.items()}
