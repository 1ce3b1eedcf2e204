"""Merging what the views hold with the heads of all partitions, in the one order, up to the horizon.

An event is delivered once nothing can come before it any more: when every partition has been read past its place.
Partitions where nothing happens are told by Marks that time has passed, after the waiting events had a moment to
gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.config import TagSettings
from headrace.errors import TimedOut, UnknownTopic
from headrace.journal import Layout
from headrace.log import Log
from headrace.model import Position, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Entry
from headrace.store import FIRST_TAG_TIME, LAST_TAG_TIME, Place, Store, TagTime
from headrace.tags.announcements import Announcements
from headrace.tags.events import TaggedEvent, TagOffset
from headrace.tags.floors import Floors, read_layout
from headrace.tags.heads import HeadCalls, PartitionHead
from headrace.tags.key_states import KeyLookup, rows_of
from headrace.tags.marks import Marker
from headrace.tags.partitions import SharedPartitions
from headrace.tags.registry import Bucket, TopicEntry, check_epoch, check_filled
from headrace.tags.seams import KnownSeam, Seam, SeamOutdated, SeamReader
from headrace.tags.several import NOBODY, PlaceWatch
from headrace.tags.view_rows import ViewRows

__all__ = ["Merge", "MergeSources"]

_logger = get_logger(__name__)

_LOOK_FOR_TOPICS_S = 1.0
_LOOK_AGAIN_S = 0.05
_WANT_AGAIN_S = 0.1
_AT_ONCE = 100


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


class Merge:
    """Follows all partitions from a seam on. With `until` it ends at these offsets (exclusive), else never.

    A query that ends, and may write no Marks, waits for partitions where nothing happens for the time that it would
    look for a missing event.
    """

    def __init__(
        self,
        sources: MergeSources,
        tag: str,
        marker: Marker,
        seam: Seam,
        rows: ViewRows,
        *,
        after: TagOffset | None,
        until: dict[TopicPartition, int] | None,
        watch: PlaceWatch = NOBODY,
    ) -> None:
        self._sources = sources
        self._seams = sources.seams
        self._store = sources.store
        self._tag = tag
        self._marker = marker
        self._watch = watch
        self._rows = rows
        self._after = after
        self._until = until
        self._stuck_s: float | None = None
        self._seam = seam
        self._registry = seam.registry
        self._layouts = dict(seam.layouts)
        self._heads: dict[TopicPartition, PartitionHead] = {}
        self._lookup = KeyLookup(
            sources.log, sources.store, tag, layout_of=self._layouts.__getitem__, heads=self._heads
        )
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._has_ended = False
        self._ended: list[asyncio.Task[None]] = []
        self._ends: dict[TopicPartition, int] = {}
        self._began_s = self._looked_s = self._counted_s = asyncio.get_running_loop().time()
        self._looked_up_to = FIRST_TAG_TIME
        self._woken = asyncio.Event()
        if watch is not NOBODY:
            watch.on_want = self._woken.set
        self._blockers: list[PartitionHead] = []
        self._asked: set[TopicPartition] = set()
        self._blocked_until = FIRST_TAG_TIME
        self._gone = set(seam.gone)
        self._left: dict[TopicPartition, PartitionHead] = {}
        self._last_ms: dict[str, int] = {}
        for known in seam.live:
            self._add(known)

    async def batches(self) -> AsyncGenerator[list[TaggedEvent], None]:
        """Yield the events in order, those together that are ready together."""
        try:
            await self._find_ends()
            self._marker.join(self._marked)
            self._start()
            while not await self._is_done():
                await self._note_gone()
                self._woken.clear()
                horizon = self._horizon()
                first = await self._next(horizon)
                if first is None:
                    if not await self._tell_passed(horizon):
                        await self._wait()
                elif not await self._found_topics(first.tag_offset.time, since_s=self._began_s):
                    yield await self._take(min(horizon, _behind(self._looked_up_to)))
        finally:
            await self._stop()

    def _add(self, known: KnownSeam) -> None:
        topic = known.at.topic
        calls = HeadCalls(
            layout=partial(self._layouts.__getitem__, topic),
            end=lambda: self._ends.get(known.at, 0),
            is_wanted=self._is_wanted,
            came=self._woken.set,
            load=self._lookup.load,
            rows=self._rows_of,
            carried_out=self._carried_out,
            grown=partial(self._grown, topic),
            reached=partial(self._reached, topic),
            check_topic=partial(self._check_topic, topic),
        )
        shared = self._sources.partitions.get(known, self._layouts[topic])
        page_size = self._sources.settings.page_size
        self._heads[known.at] = PartitionHead(known, self._tag, shared, calls, page_size=page_size)

    def _start(self) -> None:
        for at, head in self._heads.items():
            if at not in self._tasks:
                self._tasks[at] = asyncio.create_task(self._follow(head), name=f"headrace-tag-head-{at}")

    async def _follow(self, head: PartitionHead) -> None:
        try:
            await head.run()
        finally:
            self._has_ended = True
            self._woken.set()

    def _is_wanted(self, event: TaggedEvent) -> bool:
        return self._after is None or event.tag_offset > self._after

    async def _rows_of(self, id_: str, time: TagTime) -> list[TaggedEvent]:
        rows = await rows_of(self._store, self._sources.bucket, self._tag, id_, time)
        if not rows:  # it was void, or replicated while no views were kept
            check_epoch(await self._sources.floors.views_checked(), before=self._registry)
        return rows

    async def _carried_out(self, verdict: Entry) -> None:
        at = TopicPartition(verdict.topic, verdict.partition)
        while True:
            known = await self._store.reader.replicated(at)
            if known is not None and Place(known.generation, known.offset) >= verdict.place:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        for head in self._heads.values():
            head.forget(verdict.id)

    async def _grown(self, topic: str, generation: int) -> int:
        while True:
            layout = await read_layout(self._store, topic)
            if layout is not None and layout.generation >= generation:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        self._registry, floor_ms = await self._sources.floors.generation(self._registry, layout, generation)
        if layout.generation > self._layouts[topic].generation:
            self._layouts[topic] = layout
            self._grow(layout)
        return floor_ms

    async def _reached(self, topic: str, generation: int) -> None:
        """Wait until all heads have come to the boundaries of a generation: keys may have moved there."""
        boundaries = self._layouts[topic].generations[generation].boundaries if generation else {}
        for partition, boundary in boundaries.items():
            head = self._heads.get(TopicPartition(topic, partition))
            while head is not None and head.position.offset <= boundary:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN_S / 5)  # once in a topic's growth

    async def _check_topic(self, topic: str) -> None:
        if not await self._seams.is_there(self._layouts[topic]):
            raise UnknownTopic(topic)

    def _grow(self, layout: Layout) -> None:
        """Follow partitions that a topic has grown by; they begin at their generation's floor."""
        entry = self._registry.topics[layout.topic]
        for partition in range(layout.partitions):
            at = TopicPartition(layout.topic, partition)
            if at not in self._heads:
                generation = layout.first_generation(partition)
                floor_ms = self._registry.floor_ms(layout.topic, generation) or 0
                self._add(KnownSeam(at, entry.number, Place(generation, -1), floor_ms))
                if self._until is not None:
                    self._until[at] = 0
        self._start()

    async def _find_ends(self) -> None:
        """Remember where the log ends now: a head that is not there yet is not idle."""
        places = list(self._heads)
        ends = await asyncio.gather(*(self._seams.end(at) for at in places))
        for at, end in zip(places, ends, strict=True):
            if end is None:
                self._drop(at.topic)
            else:
                self._ends[at] = end

    def _horizon(self) -> TagTime:
        self._raise_failure()
        return min((head.position for head in self._heads.values()), default=LAST_TAG_TIME)

    async def _next(self, horizon: TagTime) -> TaggedEvent | None:
        """Return the first of all events if nothing can come before it any more.

        A query that ends also gives what came later, if one that it must give stands behind it: who went on from that
        one would miss the other.
        """
        row = await self._rows.peek()
        firsts = [head.events[0] for head in self._heads.values() if head.events]
        first = min((*firsts, row) if row is not None else firsts, key=_order, default=None)
        if first is None or first.tag_offset.time >= horizon:
            return None
        if self._until is None:
            return first
        waiting = self._last_waiting()
        return first if waiting is not None and first.tag_offset.time <= waiting else None

    async def _tell_passed(self, horizon: TagTime) -> bool:
        """Tell who waits for a place that it is passed; False if it is not. Topics are looked for as for an event."""
        wanted = self._watch.wanted
        if wanted is None or wanted >= horizon:
            return False
        if not await self._found_topics(wanted, since_s=self._began_s):
            self._watch.tell_passed(wanted)
        return True

    def _last_of(self, head: PartitionHead) -> TaggedEvent | None:
        """Return the last event of a head that the query must give."""
        end = None if self._until is None else self._until[head.at]
        return next((event for event in reversed(head.events) if end is None or event.offset < end), None)

    async def _take(self, horizon: TagTime) -> list[TaggedEvent]:
        taken: list[TaggedEvent] = []
        while len(taken) < _AT_ONCE and (event := await self._next(horizon)) is not None:
            self._pop(event)
            self._stuck_s = None
            taken.append(event)
        return taken

    def _pop(self, event: TaggedEvent) -> None:
        head = self._heads.get(TopicPartition(event.topic, event.partition))
        if head is not None and head.events and head.events[0] is event:
            head.pop()
        else:
            self._rows.pop()

    async def _found_topics(self, place: TagTime, *, since_s: float) -> bool:
        """Look for announcements: after events up to a place were read, before they are delivered.

        A topic that is announced later begins above all that was in the log by now.
        """
        if place <= self._looked_up_to and since_s <= self._began_s:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s > _LOOK_FOR_TOPICS_S:
            self._looked_s = now_s
            await self._seams.discovered()
            await self._find_again()
        registry, up_to, _ = await self._sources.announcements.covering(place, since_s=since_s)
        check_filled(registry.fills, self._tag, before=self._registry.fills)
        check_epoch(registry, before=self._registry)
        new = [topic for topic, entry in registry.topics.items() if self._is_new(topic, entry)]
        self._registry = registry
        for topic in new:
            await self._add_topic(topic)
        self._looked_up_to = max(self._looked_up_to, up_to)
        return bool(new)

    async def _find_again(self) -> None:
        """Follow topics again that were taken for gone, and are not: a broker did not know of them for a moment."""
        for topic in self._gone & await self._seams.topics():
            layout = self._layouts.get(topic)
            if layout is not None and await self._seams.is_there(layout):
                _logger.warning("a topic that was gone is there again", topic=topic, tag=self._tag)
                if left := {at: head for at, head in self._left.items() if at.topic == topic}:
                    self._gone.discard(topic)
                    self._heads.update(left)
                    self._start()
                else:
                    await self._add_topic(topic)

    def _is_new(self, topic: str, entry: TopicEntry) -> bool:
        """Say whether a topic is to be followed from now on: it is new, or was gone and has been made again."""
        if topic not in self._registry.topics:
            return True
        layout = self._layouts.get(topic)
        return topic in self._gone and layout is not None and entry.latest > layout.generation

    async def _add_topic(self, topic: str) -> None:
        layout = await self._seams.layout(topic)
        if layout is None:
            return
        places = [TopicPartition(topic, partition) for partition in range(layout.partitions)]
        begun = [await self._begun(layout, at) for at in places]
        self._gone.discard(topic)
        self._layouts[topic] = layout
        for known in begun:
            self._add(known)
            if self._until is not None:
                self._until[known.at] = 0
        self._start()

    async def _begun(self, layout: Layout, at: TopicPartition) -> KnownSeam:
        """Return where a partition begins that joins the others: at the seam, if that has it; else at its first record.

        Raises SeamOutdated if some of the others are replicated already: the views have them, and the rows that are
        being read end at the seam. All of them come after what was delivered, so nothing is given twice.
        """
        generation = layout.first_generation(at.partition)
        known = self._seam.partitions.get(at)
        if known is not None and known.place.generation >= generation:
            return known
        known = await self._seams.known(self._registry, layout, at)
        if known.place.offset >= 0:
            raise SeamOutdated
        return known

    async def _wait(self) -> None:
        """Wait until something can be delivered. Where events wait for idle partitions, mark those."""
        await self._drop_gone()
        waiting = self._last_waiting()
        if waiting is None and self._until is None:
            if not await self._is_woken(_LOOK_FOR_TOPICS_S):
                await self._found_topics(FIRST_TAG_TIME, since_s=asyncio.get_running_loop().time())
            return
        if waiting is not None:
            idle = [at for at, head in self._heads.items() if self._is_idle(head) and head.position <= waiting]
            self._asked = set(idle)
            self._marker.want(idle, waiting.log_time_ms + 1)
            if waiting > self._looked_up_to:  # while the Marks are being written
                self._sources.announcements.begin(waiting, since_s=self._began_s)
        if not self._is_free():
            await self._is_woken(_WANT_AGAIN_S)

    def _is_free(self) -> bool:
        """Return True if no head holds up the first event or the place asked for; else those that do will wake it."""
        first = min((head.events[0].tag_offset.time for head in self._heads.values() if head.events), default=None)
        row = self._rows.first.tag_offset.time if self._rows.first is not None else None
        times = [time for time in (first, row, self._watch.wanted) if time is not None]
        self._blocked_until = min(times, default=FIRST_TAG_TIME)
        self._stop_watching()
        self._blockers = [head for head in self._heads.values() if self._holds_up(head)]
        if self._blockers:
            self._blockers[-1].watch(self._blocker_moved)
            return False
        return bool(times)

    def _holds_up(self, head: PartitionHead) -> bool:
        position = head.position
        if self._until is not None and position.offset < self._until[head.at]:
            return True
        return position <= self._blocked_until

    def _blocker_moved(self) -> None:
        """Watch the next head that holds things up; positions never go back, so those before it need no look again."""
        while self._blockers and not self._holds_up(self._blockers[-1]):
            self._blockers.pop().watch(None)
        if not self._blockers or self._needs_mark(self._blockers[-1]):
            self._woken.set()
        else:
            self._blockers[-1].watch(self._blocker_moved)

    def _needs_mark(self, head: PartitionHead) -> bool:
        """Return True if a head has come to the log's end since Marks were last asked for."""
        return self._is_idle(head) and head.at not in self._asked

    def _stop_watching(self) -> None:
        if self._blockers:
            self._blockers[-1].watch(None)
            self._blockers = []

    def _marked(self, marks: Sequence[Position]) -> None:
        """Move past Marks that were just written, whichever query asked for them."""
        for mark in marks:
            head = self._heads.get(TopicPartition(mark.topic, mark.partition))
            if head is None:
                continue
            if self._until is not None:
                self._until[head.at] = max(self._until[head.at], mark.offset + 1)
            head.marked(mark)

    async def _drop_gone(self) -> None:
        """Every now and then look which topics are gone: a broker does not tell their readers."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s < _LOOK_FOR_TOPICS_S:
            return
        self._counted_s = now_s
        there = await self._seams.topics()
        for topic in {at.topic for at in self._heads} - there:
            self._drop(topic)

    async def _note_gone(self) -> None:
        """Tell all how far a topic was read that is gone: its name may be used again."""
        while self._last_ms:
            topic, last_ms = self._last_ms.popitem()
            await self._seams.note_gone(topic, last_ms)

    def _drop(self, topic: str) -> None:
        """Follow a topic no more: it is gone."""
        self._gone.add(topic)
        self._marker.forget(topic)
        for at in [at for at in self._heads if at.topic == topic]:
            head = self._left[at] = self._heads.pop(at)
            self._ends.pop(at, None)
            self._last_ms[topic] = max(head.position.log_time_ms, self._last_ms.get(topic, 0))
            task = self._tasks.pop(at, None)
            if task is not None:
                task.cancel()
                self._ended.append(task)

    def _last_waiting(self) -> TagTime | None:
        """Return the place of the last event that could be delivered if time went on."""
        lasts = [last for head in self._heads.values() if (last := self._last_of(head)) is not None]
        times = [last.tag_offset.time for last in lasts]
        times += [head.sighted for head in self._heads.values() if self._is_sighted(head) and head.sighted is not None]
        if self._rows.waiting is not None:
            times.append(self._rows.waiting)
        if self._watch.wanted is not None:
            times.append(self._watch.wanted)
        return max(times, default=None)

    def _is_sighted(self, head: PartitionHead) -> bool:
        """Say whether events that the query must give are about to come out of a head."""
        if head.sighted is None:
            return False
        return self._until is None or head.sighted.offset < self._until[head.at]

    def _is_idle(self, head: PartitionHead) -> bool:
        return head.sighted is None and head.position.offset >= self._ends.get(head.at, 0)

    async def _is_woken(self, timeout_s: float) -> bool:
        """Wait until events have come, or those that wait are free; False if neither happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    async def _is_done(self) -> bool:
        """Say whether a query that ends has given all it should."""
        if self._until is None:
            return False
        self._raise_failure()
        is_read = all(head.position.offset >= self._until[at] for at, head in self._heads.items())
        if not is_read:
            return False
        if self._last_waiting() is None:
            return await self._rows.peek() is None and self._may_end()
        if self._marker.is_reader and await self._next(self._horizon()) is None:
            self._check_patience()
        return False

    def _may_end(self) -> bool:
        """Say whether the query ends now that it has given all: one that others wait for does not."""
        self._watch.tell_spent()
        return not self._watch.keeps_query

    def _check_patience(self) -> None:
        """Give up when a query that may write no Marks has waited for long: it must not end without its events."""
        now_s = asyncio.get_running_loop().time()
        if self._stuck_s is None:
            self._stuck_s = now_s
        elif now_s - self._stuck_s >= self._sources.settings.gap_timeout_s:
            waiting = self._last_waiting() or LAST_TAG_TIME
            idle = sorted(str(at) for at, head in self._heads.items() if head.position <= waiting)
            what = (
                f"waiting, without writing, for {', '.join(idle[:3])}{' …' if idle[3:] else ''} where nothing happens"
            )
            raise TimedOut(f"{what} (a query without read_only need not wait)", self._sources.settings.gap_timeout_s)

    def _raise_failure(self) -> None:
        """Raise what ended a head. A topic that was deleted has no more events: the query goes on without it."""
        if not self._has_ended:
            return
        self._has_ended = False
        for at, task in list(self._tasks.items()):
            if at not in self._heads or not task.done() or task.cancelled():
                continue
            failure = task.exception()
            if isinstance(failure, UnknownTopic):
                self._drop(at.topic)
            elif failure is not None:
                raise failure

    async def _stop(self) -> None:
        self._marker.leave(self._marked)
        self._stop_watching()
        tasks = [*self._tasks.values(), *self._ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._rows.aclose()


def _behind(place: TagTime) -> TagTime:
    return place._replace(offset=place.offset + 1)


def _order(event: TaggedEvent) -> TagOffset:
    return event.tag_offset
