"""The topics that one query follows: heads are added when a topic appears or grows, and dropped when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.config import TagSettings
from headrace.errors import UnknownTopic
from headrace.journal import Layout
from headrace.log import Log
from headrace.model import Position, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Entry
from headrace.store import FIRST_TAG_TIME, LAST_TAG_TIME, Place, Store, TagTime
from headrace.tags.events import TaggedEvent, TagOffset
from headrace.tags.floors import Floors, read_layout
from headrace.tags.heads import HeadCalls, PartitionHead
from headrace.tags.key_states import KeyLookup, rows_of
from headrace.tags.marks import Marker
from headrace.tags.partitions import SharedPartitions
from headrace.tags.registry import Bucket, TopicEntry, check_epoch, check_filled
from headrace.tags.seams import Announcements, KnownSeam, Seam, SeamOutdated, SeamReader

__all__ = ["LOOK_FOR_TOPICS_S", "FollowedTopics", "MergeSources"]

_logger = get_logger(__name__)

LOOK_FOR_TOPICS_S = 1.0
_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class MergeSources:
    """What all queries of a process read from."""

    log: Log
    store: Store
    seams: SeamReader
    floors: Floors
    partitions: SharedPartitions
    announcements: Announcements
    bucket: Bucket
    settings: TagSettings


class FollowedTopics:
    """The heads of all partitions of all topics, from a seam on.

    `until` has the offsets (exclusive) at which the query ends, by partition; it is None for a query without an end.
    `wake` is called whenever events have come or a head has ended.
    """

    def __init__(
        self,
        sources: MergeSources,
        tag: str,
        marker: Marker,
        seam: Seam,
        *,
        after: TagOffset | None,
        until: dict[TopicPartition, int] | None,
        wake: Callable[[], None],
    ) -> None:
        self.heads: dict[TopicPartition, PartitionHead] = {}
        self.until = until
        self.looked_up_to = FIRST_TAG_TIME
        self._sources = sources
        self._seams = sources.seams
        self._store = sources.store
        self._tag = tag
        self._marker = marker
        self._after = after
        self._wake = wake
        self._seam = seam
        self._facts = seam.facts
        self._layouts = dict(seam.layouts)
        self._lookup = KeyLookup(sources.log, sources.store, tag, layout_of=self._layouts.__getitem__, heads=self.heads)
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._dropped_tasks: list[asyncio.Task[None]] = []
        self._has_ended_task = False
        self._ends: dict[TopicPartition, int] = {}
        self._began_s = self._looked_s = self._counted_s = asyncio.get_running_loop().time()
        self._gone = set(seam.gone)
        self._dropped_heads: dict[TopicPartition, PartitionHead] = {}
        self._last_ms: dict[str, int] = {}
        for known in seam.live:
            self._add(known)

    async def open(self) -> None:
        """Start all heads."""
        await self._find_ends()
        self._marker.join(self._marked)
        self._start()

    async def close(self) -> None:
        """Stop all heads."""
        self._marker.leave(self._marked)
        tasks = [*self._tasks.values(), *self._dropped_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def horizon(self) -> TagTime:
        """Return the place below which every partition has been read. Raises what ended a head."""
        self.raise_failure()
        return min((head.position for head in self.heads.values()), default=LAST_TAG_TIME)

    def is_idle(self, head: PartitionHead) -> bool:
        """Return True if a head is at the end of its partition and has nothing in hand."""
        return head.sighted is None and head.position.offset >= self._ends.get(head.at, 0)

    def raise_failure(self) -> None:
        """Raise what ended a head. A topic that was deleted has no more events: the query goes on without it."""
        if not self._has_ended_task:
            return
        self._has_ended_task = False
        for at, task in list(self._tasks.items()):
            if at not in self.heads or not task.done() or task.cancelled():
                continue
            failure = task.exception()
            if isinstance(failure, UnknownTopic):
                self._drop(at.topic)
            elif failure is not None:
                raise failure

    async def found_after(self, place: TagTime) -> bool:
        """Look for new topics after events up to a place were read, before they are delivered; True if some were found.


        A topic that is announced later begins above everything that is in the log by now.
        """
        return place > self.looked_up_to and await self._found(place, since_s=self._began_s)

    async def find_now(self) -> None:
        """Look for new topics now, although no event waits to be delivered."""
        await self._found(FIRST_TAG_TIME, since_s=asyncio.get_running_loop().time())

    def begin_to_look(self, place: TagTime) -> None:
        """Begin to look for new topics on behalf of `found_after`, which is called with this place later."""
        if place > self.looked_up_to:
            self._sources.announcements.begin(place, since_s=self._began_s)

    async def drop_gone(self) -> None:
        """Drop the topics that are gone, once a second at most: a broker does not tell their readers."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s < LOOK_FOR_TOPICS_S:
            return
        self._counted_s = now_s
        existing = await self._seams.topics()
        for topic in {at.topic for at in self.heads} - existing:
            # The list may be older than a topic that was made, announced and followed since.
            if not await self._seams.is_there(self._layouts[topic]):
                self._drop(topic)

    async def note_gone(self) -> None:
        """Store how far the topics that are gone had been read: their names may be used again."""
        while self._last_ms:
            topic, last_ms = self._last_ms.popitem()
            await self._seams.note_gone(topic, last_ms)

    def _add(self, known: KnownSeam) -> None:
        topic = known.at.topic
        calls = HeadCalls(
            layout=partial(self._layouts.__getitem__, topic),
            end=lambda: self._ends.get(known.at, 0),
            is_wanted=self._is_wanted,
            came=self._wake,
            load=self._lookup.load,
            rows=self._rows_of,
            carried_out=self._carried_out,
            grown=partial(self._grown, topic),
            reached=partial(self._reached, topic),
            check_topic=partial(self._check_topic, topic),
        )
        shared = self._sources.partitions.get(known, self._layouts[topic])
        page_size = self._sources.settings.page_size
        self.heads[known.at] = PartitionHead(known, self._tag, shared, calls, page_size=page_size)

    def _start(self) -> None:
        for at, head in self.heads.items():
            if at not in self._tasks:
                self._tasks[at] = asyncio.create_task(self._follow(head), name=f"headrace-tag-head-{at}")

    async def _follow(self, head: PartitionHead) -> None:
        try:
            await head.run()
        finally:
            self._has_ended_task = True
            self._wake()

    def _is_wanted(self, event: TaggedEvent) -> bool:
        return self._after is None or event.tag_offset > self._after

    async def _rows_of(self, id_: str, time: TagTime) -> list[TaggedEvent]:
        rows = await rows_of(self._store, self._sources.bucket, self._tag, id_, time)
        if not rows:  # the append was void, or it was replicated while the store kept no views
            check_epoch(await self._sources.floors.views_checked(), before=self._facts)
        return rows

    async def _carried_out(self, verdict: Entry) -> None:
        at = TopicPartition(verdict.topic, verdict.partition)
        while True:
            known = await self._store.reader.replicated(at)
            if known is not None and Place(known.generation, known.offset) >= verdict.place:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        for head in self.heads.values():
            head.forget(verdict.id)

    async def _grown(self, topic: str, generation: int) -> int:
        while True:
            layout = await read_layout(self._store, topic)
            if layout is not None and layout.generation >= generation:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        self._facts, floor_ms = await self._sources.floors.generation(self._facts, layout, generation)
        if layout.generation > self._layouts[topic].generation:
            self._layouts[topic] = layout
            self._add_new_partitions(layout)
        return floor_ms

    async def _reached(self, topic: str, generation: int) -> None:
        """Wait until all heads have reached the boundaries of a generation: keys may have moved there."""
        boundaries = self._layouts[topic].generations[generation].boundaries if generation else {}
        for partition, boundary in boundaries.items():
            head = self.heads.get(TopicPartition(topic, partition))
            while head is not None and head.position.offset <= boundary:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN_S / 5)  # polling is cheap enough: a topic rarely grows

    async def _check_topic(self, topic: str) -> None:
        if not await self._seams.is_there(self._layouts[topic]):
            raise UnknownTopic(topic)

    def _add_new_partitions(self, layout: Layout) -> None:
        """Follow the partitions that a topic has grown by; they begin at their generation's floor."""
        entry = self._facts.topics[layout.topic]
        for partition in range(layout.partitions):
            at = TopicPartition(layout.topic, partition)
            if at not in self.heads:
                generation = layout.first_generation(partition)
                floor_ms = self._facts.floor_ms(layout.topic, generation) or 0
                self._add(KnownSeam(at, entry.number, Place(generation, -1), floor_ms))
                if self.until is not None:
                    self.until[at] = 0
        self._start()

    async def _find_ends(self) -> None:
        """Remember where the log ends now: a head that has not reached that is not idle."""
        partitions = list(self.heads)
        ends = await asyncio.gather(*(self._seams.end(at) for at in partitions))
        for at, end in zip(partitions, ends, strict=True):
            if end is None:
                self._drop(at.topic)
            else:
                self._ends[at] = end

    async def _found(self, place: TagTime, *, since_s: float) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s > LOOK_FOR_TOPICS_S:
            self._looked_s = now_s
            await self._seams.discovered()
            await self._follow_again()
        facts, up_to, _ = await self._sources.announcements.covering(place, since_s=since_s)
        check_filled(facts.fills, self._tag, before=self._facts.fills)
        check_epoch(facts, before=self._facts)
        new = [topic for topic, entry in facts.topics.items() if self._is_new(topic, entry)]
        self._facts = facts
        for topic in new:
            await self._add_topic(topic)
        self.looked_up_to = max(self.looked_up_to, up_to)
        return bool(new)

    async def _follow_again(self) -> None:
        """Follow the topics again that were dropped although they exist: a broker did not know them for a moment."""
        for topic in self._gone & await self._seams.topics():
            layout = self._layouts.get(topic)
            if layout is not None and await self._seams.is_there(layout):
                _logger.warning("a topic that was gone is there again", topic=topic, tag=self._tag)
                if dropped := {at: head for at, head in self._dropped_heads.items() if at.topic == topic}:
                    self._gone.discard(topic)
                    self.heads.update(dropped)
                    self._start()
                else:
                    await self._add_topic(topic)

    def _is_new(self, topic: str, entry: TopicEntry) -> bool:
        """Return True if a topic must be followed from now on: it is new, or was deleted and created again."""
        if topic not in self._facts.topics:
            return True
        layout = self._layouts.get(topic)
        return topic in self._gone and layout is not None and entry.latest > layout.generation

    async def _add_topic(self, topic: str) -> None:
        layout = await self._seams.layout(topic)
        if layout is None:
            return
        partitions = [TopicPartition(topic, partition) for partition in range(layout.partitions)]
        starts = [await self._start_of(layout, at) for at in partitions]
        self._gone.discard(topic)
        self._layouts[topic] = layout
        for known in starts:
            self._add(known)
            if self.until is not None:
                self.until[known.at] = 0
        self._start()

    async def _start_of(self, layout: Layout, at: TopicPartition) -> KnownSeam:
        """Return where to start in a partition that is added: at the seam if it is part of that, else at its start.

        Raises SeamOutdated if some of its records are replicated already: their events are in the views, above the
        seam that the view rows are read up to. All of them come after what was delivered, so none is given twice.
        """
        generation = layout.first_generation(at.partition)
        known = self._seam.partitions.get(at)
        if known is not None and known.place.generation >= generation:
            return known
        known = await self._seams.known(self._facts, layout, at)
        if known.place.offset >= 0:
            raise SeamOutdated
        return known

    def _marked(self, marks: Sequence[Position]) -> None:
        """Move the heads past Marks that were just written, whichever query asked for them."""
        for mark in marks:
            head = self.heads.get(TopicPartition(mark.topic, mark.partition))
            if head is None:
                continue
            if self.until is not None:
                self.until[head.at] = max(self.until[head.at], mark.offset + 1)
            head.marked(mark)

    def _drop(self, topic: str) -> None:
        """Stop following a topic that is gone."""
        self._gone.add(topic)
        self._marker.forget(topic)
        for at in [at for at in self.heads if at.topic == topic]:
            head = self._dropped_heads[at] = self.heads.pop(at)
            self._ends.pop(at, None)
            self._last_ms[topic] = max(head.position.log_time_ms, self._last_ms.get(topic, 0))
            task = self._tasks.pop(at, None)
            if task is not None:
                task.cancel()
                self._dropped_tasks.append(task)
