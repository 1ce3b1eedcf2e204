"""What the heads of one query share: log, store, the tag; the layouts, and how far the other heads have come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from headrace.journal import Layout
from headrace.journal.actions import Append, Mark
from headrace.journal.decoding import decode_append
from headrace.journal.folding import Entry
from headrace.journal.partition_batch import entry_of, next_generation
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import Place, Store, TagTime
from headrace.tags.buckets import Bucket
from headrace.tags.decoded import Decoded
from headrace.tags.events import TaggedEvent
from headrace.tags.floors import Floors, read_layout
from headrace.tags.key_states import KeyState
from headrace.tags.marking import Marker
from headrace.tags.offsets import TagOffset
from headrace.tags.registry import Registry, check_epoch

__all__ = ["HeadContext", "Scanned"]

_LOOK_AGAIN_S = 0.05


class Scanned(NamedTuple):
    """A key's actions, oldest first, and how many events under the tag each append has."""

    entries: list[Entry]
    counts: dict[Place, int]


class _Followed(Protocol):
    """A head, as others see it."""

    position: TagTime

    def tracked(self, entry: Entry) -> KeyState | None:
        """Return the state of a key that was followed there before its topic grew."""
        ...

    def forget(self, id_: str) -> None:
        """Forget that state."""
        ...

    def ask(self, id_: str, up_to: int | None) -> Sequence[Entry] | None:
        """Return a key's actions up to an offset, or up to the position."""
        ...


class HeadContext:
    """Shared by the heads of one query. While it `is_waiting` for partitions, every move of a head is news to it."""

    def __init__(
        self,
        log: Log,
        store: Store,
        floors: Floors,
        registry: Registry,
        bucket: Bucket,
        tag: str,
        marker: Marker,
        decoded: Decoded,
        *,
        page_size: int,
    ) -> None:
        self.log = log
        self.marker = marker
        self.decoded = decoded
        self.is_waiting = True
        self.store = store
        self.tag = tag
        self.bucket = bucket
        self.page_size = page_size
        self.moved = asyncio.Event()
        self.registry = registry
        self.layouts: dict[str, Layout] = {}
        self.heads: dict[TopicPartition, _Followed] = {}
        self.after: TagOffset | None = None
        self.on_growth: Callable[[Layout], None] = lambda _: None
        self._floors = floors

    def is_wanted(self, event: TaggedEvent) -> bool:
        """Say whether the event comes after where the query goes on from."""
        return self.after is None or event.tag_offset > self.after

    def is_home(self, entry: Entry) -> bool:
        """Say whether the record is where its key lives; what a producer with old metadata wrote is not."""
        layout = self.layouts[entry.topic]
        at = TopicPartition(entry.topic, entry.partition)
        return layout.generation == 0 or layout.is_home(entry.id, entry.generation, at)

    def before(self, entry: Entry) -> Scanned | None:
        """Return a key's actions in the heads before an action; None if they are not all known.

        A key that moved when its topic grew has some of them in the partitions where it was before.
        """
        found: dict[Place, Entry] = {}
        for stay in self.layouts[entry.topic].stays(entry.id):
            is_here = stay.at.partition == entry.partition
            if is_here and stay.start > entry.offset:
                break  # a later stay in the same partition
            is_last = is_here and (stay.end is None or entry.offset < stay.end)
            head = self.heads.get(stay.at)
            entries = head.ask(entry.id, entry.offset - 1 if is_last else stay.end) if head is not None else ()
            if entries is None:
                return None
            found |= {each.place: each for each in entries if each.place < entry.place}
            if is_last:
                break
        return Scanned([found[place] for place in sorted(found)], {})

    async def scan(self, entry: Entry) -> Scanned:
        """Return the same from the log itself."""
        found = Scanned([], {})
        layout = self.layouts[entry.topic]
        for stay in layout.stays(entry.id):
            is_here = stay.at.partition == entry.partition and stay.start <= entry.offset
            is_last = is_here and (stay.end is None or entry.offset < stay.end)
            replicated = layout.of_topic(await self.store.reader.replicated(stay.at))
            generation = layout.first_generation(stay.at.partition)
            if replicated is not None:
                generation = max(generation, replicated.generation)
            first = max(replicated.offset + 1 if replicated is not None else 0, stay.start)
            end = entry.offset if is_last or stay.end is None else stay.end
            if end > first:
                await self._scan(stay.at, first, end, entry.id, generation, found)
            if is_last:
                break
        return found

    async def _scan(self, at: TopicPartition, first: int, end: int, id_: str, generation: int, found: Scanned) -> None:
        async for batch in self.log.read(at, first, end):
            for record in batch.records:
                each = entry_of(record, generation) if record.offset < end else None
                if each is not None and isinstance(each.action, Mark):
                    generation = next_generation(generation, each.action)
                elif each is not None and each.id == id_:
                    found.counts[each.place] = self._count(each)
                    found.entries.append(msgspec.structs.replace(each, record=None))

    def _count(self, entry: Entry) -> int:
        if not isinstance(entry.action, Append) or entry.record is None:
            return 0
        try:
            events = decode_append(entry.action, entry.record.value).events
        except ValueError:  # it holds its key, and has no events
            return 0
        return sum(self.tag in event.tags for event in events)

    async def grown(self, topic: str, generation: int) -> int:
        """Return the least log time of a generation that a Mark announces, once it is published."""
        while True:
            layout = await read_layout(self.store, topic)
            if layout is not None and layout.generation >= generation:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        self.registry, floor_ms = await self._floors.generation(self.registry, layout, generation)
        if layout.generation > self.layouts[topic].generation:
            self.layouts[topic] = layout
            self.on_growth(layout)
        return floor_ms

    async def check_views(self) -> None:
        """Raise ViewsBegunAnew, TagsIncomplete or TagViewsLost if the views need not hold all that is replicated."""
        check_epoch(await self._floors.views_checked(), before=self.registry)

    async def replicated(self, at: TopicPartition, place: Place) -> None:
        """Wait until replication of a partition has come to a place."""
        while True:
            known = await self.store.reader.replicated(at)
            if known is not None and Place(known.generation, known.offset) >= place:
                return
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def reached(self, topic: str, generation: int) -> None:
        """Wait until all heads have come to the boundaries of a generation: keys may have moved there."""
        boundaries = self.layouts[topic].generations[generation].boundaries if generation else {}
        for partition, boundary in boundaries.items():
            head = self.heads.get(TopicPartition(topic, partition))
            while head is not None and head.position.offset <= boundary:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN_S / 5)  # once in a topic's growth
