"""The seam between the views and the log: the replicated offsets of all partitions of all topics.

Events at or below the seam come from the views, those above it from the log. Topics and layouts are read again after
the offsets; if they have changed, everything is read again, so that no partition is missing. Queries share these
requests, and the looks for announced topics: one request serves all callers that ask the same at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.errors import UnknownTopic
from headrace.journal import Layout, layout_key
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import Place, Store, TagRow, TagTime
from headrace.tags.events import TagOffset
from headrace.tags.floors import Floors, decode_layout, read_layout
from headrace.tags.registry import TagFacts, TagRegistry

__all__ = ["Announcements", "KnownSeam", "Look", "QueryEnd", "Seam", "SeamOutdated", "SeamReader", "SharedRequest"]

T = TypeVar("T")

_LATELY_S = 1.0


class SeamOutdated(Exception):
    """The views hold events of a topic that the seam does not know. Caught within this room."""


@dataclass(frozen=True, slots=True)
class KnownSeam:
    """What the views hold of a partition: everything up to `place` (offset -1: nothing yet), and the log time there."""

    at: TopicPartition
    topic_number: int
    place: Place
    log_time_ms: int

    @property
    def next(self) -> TagTime:
        """The lowest place that an event which is not in the views can have."""
        return TagTime(self.log_time_ms, self.topic_number, self.at.partition, self.place.offset + 1)


@dataclass(frozen=True, slots=True)
class Seam:
    """What the views hold, and the layouts of the topics. Topics that are `gone` from the log get no more events."""

    partitions: Mapping[TopicPartition, KnownSeam]
    layouts: Mapping[str, Layout]
    facts: TagFacts
    gone: frozenset[str] = frozenset()

    @property
    def live(self) -> list[KnownSeam]:
        """The partitions of topics that the log still has."""
        return [known for known in self.partitions.values() if known.at.topic not in self.gone]

    @property
    def horizon(self) -> TagTime | None:
        """The place below which no event can be added any more; None if there are no partitions."""
        return min((known.next for known in self.live), default=None)

    @property
    def highest_ms(self) -> int:
        """The highest log time that the views hold."""
        return max((known.log_time_ms for known in self.partitions.values()), default=0)

    def place_of(self, offset: TagOffset) -> TopicPartition | None:
        """Return the partition that an offset names; None if no topic has that number."""
        numbers = {entry.number: topic for topic, entry in self.facts.topics.items() if topic in self.layouts}
        topic = numbers.get(offset.topic_number)
        return None if topic is None else TopicPartition(topic, offset.partition)

    def covers(self, row: TagRow) -> bool:
        """Return True if a row lies at or below the seam; other events come from the log."""
        # Plain tuples equal the named ones and are faster to make; this happens for every row.
        known = self.partitions.get((row.topic, row.partition))  # type: ignore[call-overload]
        return known is not None and (row.generation, row.offset) <= known.place


@dataclass(frozen=True, slots=True)
class QueryEnd:
    """Where a query with an end ends: the ends of the log's partitions (exclusive), and the seam when it began."""

    offsets: Mapping[TopicPartition, int]
    seam: Seam

    def includes(self, row: TagRow) -> bool:
        """Return True if the query must give a row.

        A topic may have been deleted: then it must give what the views had of it. If it was made again, what the old
        one had lies in a lower generation, whatever its offsets.
        """
        end = self.offsets.get((row.topic, row.partition))  # type: ignore[call-overload]
        if end is None:
            return row.topic in self.seam.gone and self.seam.covers(row)
        return (row.generation, row.offset) < (self.seam.layouts[row.topic].generation, end)

    def offset_of(self, at: TopicPartition, seam: Seam) -> int:
        """Return where a partition ends by a later seam: at 0 if its topic was made, or made again, since."""
        begun = self.seam.layouts.get(at.topic)
        if begun is None or begun.topic_id != seam.layouts[at.topic].topic_id:
            return 0
        return self.offsets.get(at, 0)


class SharedRequest(Generic[T]):
    """A request that is made once for many callers. Only `current` and `recent` may use one from before the call."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._answer: tuple[float, T] | None = None

    async def now(self) -> T:
        """Return the answer to a request that starts after this call."""
        return await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[T]:
        """Start a request after the current one, if none waits for that yet. It goes on if no caller waits for it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._put(self._asking), name="headrace-shared-look")
            self._next.add_done_callback(_retrieve_error)
        return self._next

    async def current(self) -> T:
        """Return the answer to the request that is under way, or to a new one."""
        if self._asking is not None and not self._asking.done():
            return await asyncio.shield(self._asking)
        return await self.now()

    async def recent(self, max_age_s: float) -> T:
        """Return an answer that is at most this old."""
        known = self._answer
        if known is not None and time.monotonic() - known[0] <= max_age_s:
            return known[1]
        return await self.current()

    async def _put(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._asking, self._next = self._next, None
        asked_s = time.monotonic()
        answer = await self._ask()
        self._answer = (asked_s, answer)
        return answer


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a request whose callers are all gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


class SeamReader:
    """Reads seams, and opens topics of journals that are not open yet."""

    def __init__(self, log: Log, store: Store, registry: TagRegistry, floors: Floors) -> None:
        self._log = log
        self._store = store
        self._registry = registry
        self._floors = floors
        self._reading = SharedRequest(self._read)
        self._discovering = SharedRequest(self._discover)
        self._listing = SharedRequest(self._topics)
        self._ends: dict[TopicPartition, SharedRequest[int | None]] = {}

    async def read(self) -> Seam:
        """Return the seam as of now; it is read once for all queries that begin at the same time."""
        return await self._reading.now()

    async def discover(self) -> TagFacts:
        """Open all topics that have journals; return the facts."""
        return await self._discovering.now()

    async def discovered(self) -> TagFacts:
        """Return the same as `discover`, perhaps from a moment ago."""
        return await self._discovering.recent(_LATELY_S)

    async def announced(self) -> TagFacts:
        """Return the facts as of now, after opening all announced topics."""
        return await self.opened(await self._registry.read(), ())

    async def topics(self) -> frozenset[str]:
        """Return the topics that the log had a moment ago."""
        return await self._listing.recent(_LATELY_S)

    async def end(self, at: TopicPartition) -> int | None:
        """Return where a partition ends now; None if its topic is gone."""
        look = self._ends.get(at)
        if look is None:
            look = self._ends[at] = SharedRequest(lambda: self._end(at))
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
        facts = await self._discover()
        while True:
            layouts = await self._layouts(facts)
            found = await asyncio.gather(*(self._known(facts, layout) for layout in layouts.values()))
            partitions = [known for of_topic in found for known in of_topic]
            again = await self._registry.read()
            if _order_of(again) == _order_of(facts) and await self._layouts(again) == layouts:
                gone = await self._gone(layouts.values())
                return Seam({known.at: known for known in partitions}, layouts, again, gone)
            facts = again

    async def _discover(self) -> TagFacts:
        facts = await self._registry.read()
        prefix = layout_key("")
        stored = await self._store.settings.all(prefix)
        facts = await self.opened(facts, [key.removeprefix(prefix) for key in stored])
        for layout in map(decode_layout, stored.values()):
            if layout.is_recreated and facts.floor_ms(layout.topic, layout.generation) is None:
                facts, _ = await self._floors.generation(facts, layout, layout.generation)
        return facts

    async def layout(self, topic: str) -> Layout | None:
        """Return a topic's layout."""
        return await read_layout(self._store, topic)

    async def opened(self, facts: TagFacts, topics: Iterable[str]) -> TagFacts:
        """Open the announced topics and the given ones; return the facts."""
        known = sorted({*topics, *facts.topics})
        closed = [each for each in known if each not in facts.topics or facts.topics[each].floor_ms is None]
        if closed:
            facts = await self._floors.open_topics(closed)
        for topic in known:
            entry = facts.topics[topic]
            if not entry.is_open and (layout := await read_layout(self._store, topic)) is not None:
                facts, _ = await self._floors.generation(facts, layout, entry.announced)
        return facts

    async def is_there(self, layout: Layout) -> bool:
        """Return True if the log has the topic of this layout, not another one of the same name."""
        try:
            topic = await self._log.admin.describe(layout.topic)
        except UnknownTopic:
            return False
        return topic.topic_id == layout.topic_id

    async def note_gone(self, topic: str, last_ms: int) -> None:
        """Store how far a topic that is gone had been read."""
        await self._floors.note_gone(topic, last_ms)

    async def _gone(self, layouts: Iterable[Layout]) -> frozenset[str]:
        there = await self._topics()
        of_log = [layout for layout in layouts if layout.topic in there]
        same = await asyncio.gather(*map(self.is_there, of_log))
        living = {layout.topic for layout, is_same in zip(of_log, same, strict=True) if is_same}
        return frozenset(layout.topic for layout in layouts) - living

    async def known(self, facts: TagFacts, layout: Layout, at: TopicPartition) -> KnownSeam:
        """Return what the views hold of a partition."""
        generation = layout.first_generation(at.partition)
        replicated = await self._store.reader.replicated(at)
        number = facts.topics[layout.topic].number
        if replicated is None or replicated.generation < generation:
            _, floor_ms = await self._floors.generation(facts, layout, generation)
            return KnownSeam(at, number, Place(generation, -1), floor_ms)
        if replicated.generation > layout.generation:  # it grew after the layout was read
            layout = await read_layout(self._store, layout.topic) or layout
        _, log_time_ms = await self._floors.log_time_ms(facts, layout, replicated)
        return KnownSeam(at, number, Place(replicated.generation, replicated.offset), log_time_ms)

    async def _known(self, facts: TagFacts, layout: Layout) -> list[KnownSeam]:
        places = [TopicPartition(layout.topic, partition) for partition in range(layout.partitions)]
        return list(await asyncio.gather(*(self.known(facts, layout, at) for at in places)))

    async def _layouts(self, facts: TagFacts) -> dict[str, Layout]:
        """Return the layouts of the topics that have one: a single request, as there may be hundreds."""
        prefix = layout_key("")
        stored = await self._store.settings.all(prefix)
        of_topics = {key.removeprefix(prefix): layout for key, layout in stored.items()}
        return {topic: decode_layout(of_topics[topic]) for topic in facts.topics if topic in of_topics}


def _order_of(facts: TagFacts) -> dict[str, int]:
    """Return the topics and the generations that are announced: what decides which partitions there are."""
    return {topic: entry.latest for topic, entry in facts.topics.items()}


class Look(NamedTuple):
    """One look for announced topics: the facts it found, the place it covers up to, and when it began (loop time)."""

    facts: TagFacts
    up_to: TagTime
    began_s: float


class Announcements:
    """The looks of one process. `ask` reads the facts; `read_up_to` returns how far partitions have been read."""

    def __init__(self, ask: Callable[[], Awaitable[TagFacts]], read_up_to: Callable[[], TagTime]) -> None:
        self._ask = ask
        self._read_up_to = read_up_to
        self._looks = SharedRequest(self._look)
        self._latest: Look | None = None
        self._up_to: TagTime | None = None
        self._began_s = 0.0

    def begin(self, place: TagTime, *, since_s: float) -> None:
        """Begin a look that covers events up to a place, if there is none; `covering` returns it later."""
        if self._known(place, since_s) is None and not self._is_asking(place, since_s):
            self._looks.begin()

    async def covering(self, place: TagTime, *, since_s: float) -> Look:
        """Return a look that began after `since_s` and covers events up to a place; they must have been read by now."""
        known = self._known(place, since_s)
        if known is not None:
            return known
        if self._is_asking(place, since_s):
            return await self._looks.current()
        look = await self._looks.now()
        return look._replace(up_to=max(place, look.up_to))

    def _known(self, place: TagTime, since_s: float) -> Look | None:
        latest = self._latest
        return latest if latest is not None and place <= latest.up_to and latest.began_s >= since_s else None

    def _is_asking(self, place: TagTime, since_s: float) -> bool:
        return self._up_to is not None and place <= self._up_to and self._began_s >= since_s

    async def _look(self) -> Look:
        up_to, began_s = self._read_up_to(), asyncio.get_running_loop().time()
        self._up_to, self._began_s = up_to, began_s
        try:
            self._latest = Look(await self._ask(), up_to, began_s)
        finally:
            self._up_to = None
        return self._latest
