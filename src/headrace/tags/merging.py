"""Merging what the views hold with the heads of all partitions, in the one order, up to the horizon.

An event is delivered once nothing can come before it any more: when every partition has been read past its place.
Partitions where nothing happens are told by Marks that time has passed, after the waiting events had a moment to
gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from headrace.errors import TimedOut, UnknownTopic
from headrace.journal import Layout
from headrace.model import Position, TopicPartition
from headrace.observe import get_logger
from headrace.store import Place, TagTime
from headrace.store.tag_rows import FIRST_TAG_TIME, LAST_TAG_TIME
from headrace.tags.events import TaggedEvent
from headrace.tags.fills import check_filled
from headrace.tags.head_context import HeadContext
from headrace.tags.heads import PartitionHead
from headrace.tags.offsets import TagOffset
from headrace.tags.place_watch import NOBODY, PlaceWatch
from headrace.tags.registry import TopicEntry, check_epoch
from headrace.tags.seams import Known, Seam, SeamReader
from headrace.tags.view_rows import ViewRows

__all__ = ["Merge"]

_logger = get_logger(__name__)

_LOOK_FOR_TOPICS_S = 1.0
_AT_ONCE = 100
_PASS_S = 0.002


class Merge:
    """Follows all partitions from a seam on. With `until` it ends at these offsets (exclusive), else never.

    A query that ends, and may write no Marks, waits for partitions where nothing happens for `patience_s`.
    """

    def __init__(
        self,
        context: HeadContext,
        seams: SeamReader,
        seam: Seam,
        rows: ViewRows,
        *,
        until: dict[TopicPartition, int] | None,
        patience_s: float,
        watch: PlaceWatch = NOBODY,
    ) -> None:
        self._watch = watch
        if watch is not NOBODY:
            watch.on_want = context.moved.set
        self._context = context
        self._seams = seams
        self._rows = rows
        self._marker = context.marker
        self._until = until
        self._patience_s = patience_s
        self._stuck_s: float | None = None
        self._heads: dict[TopicPartition, PartitionHead] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._ended: list[asyncio.Task[None]] = []
        self._ends: dict[TopicPartition, int] = {}
        self._looked_s = self._counted_s = asyncio.get_running_loop().time()
        self._looked_up_to = FIRST_TAG_TIME
        context.layouts = dict(seam.layouts)
        context.heads = self._heads  # type: ignore[assignment]
        context.on_growth = self._grow
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
                self._context.moved.clear()
                horizon = self._horizon()
                first = await self._next(horizon)
                if first is None:
                    if not await self._tell_passed(horizon):
                        await self._wait()
                elif first.tag_offset.time <= self._looked_up_to or not await self._found_topics():
                    yield await self._take(min(horizon, _behind(self._looked_up_to)))
        finally:
            await self._stop()

    def _add(self, known: Known) -> None:
        self._heads[known.at] = PartitionHead(self._context, known)

    def _start(self) -> None:
        for at, head in self._heads.items():
            if at not in self._tasks:
                self._tasks[at] = asyncio.create_task(self._follow(head), name=f"headrace-tag-head-{at}")

    async def _follow(self, head: PartitionHead) -> None:
        try:
            await head.run()
        finally:
            self._context.moved.set()

    def _grow(self, layout: Layout) -> None:
        """Follow partitions that a topic has grown by; they begin at their generation's floor."""
        registry = self._context.registry
        entry = registry.topics[layout.topic]
        for partition in range(layout.partitions):
            at = TopicPartition(layout.topic, partition)
            if at not in self._heads:
                generation = layout.first_generation(partition)
                floor_ms = registry.floor_ms(layout.topic, generation) or 0
                self._add(Known(at, entry.number, Place(generation, -1), floor_ms))
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
        if wanted <= self._looked_up_to or not await self._found_topics():
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

    async def _found_topics(self) -> bool:
        """Look for announcements: after events were read, before they are delivered.

        A topic that is announced later begins above all that was in the log by now.
        """
        context, up_to = self._context, self._last_waiting()
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s > _LOOK_FOR_TOPICS_S:
            self._looked_s = now_s
            await self._seams.discovered()
            await self._find_again()
        registry = await self._seams.announced()
        check_filled(registry.fills, context.tag, before=context.registry.fills)
        check_epoch(registry, before=context.registry)
        new = [topic for topic, entry in registry.topics.items() if self._is_new(topic, entry)]
        context.registry = registry
        for topic in new:
            await self._add_topic(topic)
        if up_to is not None:
            self._looked_up_to = max(self._looked_up_to, up_to)
        return bool(new)

    async def _find_again(self) -> None:
        """Follow topics again that were taken for gone, and are not: a broker did not know of them for a moment."""
        for topic in self._gone & await self._seams.topics():
            layout = self._context.layouts.get(topic)
            if layout is not None and await self._seams.is_there(layout):
                _logger.warning("a topic that was gone is there again", topic=topic, tag=self._context.tag)
                if left := {at: head for at, head in self._left.items() if at.topic == topic}:
                    self._gone.discard(topic)
                    self._heads.update(left)
                    self._start()
                else:
                    await self._add_topic(topic)

    def _is_new(self, topic: str, entry: TopicEntry) -> bool:
        """Say whether a topic is to be followed from now on: it is new, or was gone and has been made again."""
        if topic not in self._context.registry.topics:
            return True
        layout = self._context.layouts.get(topic)
        return topic in self._gone and layout is not None and entry.latest > layout.generation

    async def _add_topic(self, topic: str) -> None:
        layout = await self._seams.layout(topic)
        if layout is None:
            return
        self._gone.discard(topic)
        self._context.layouts[topic] = layout
        for partition in range(layout.partitions):
            known = await self._seams.known(self._context.registry, layout, TopicPartition(topic, partition))
            self._add(known)
            if self._until is not None:
                self._until[known.at] = 0
        self._start()

    async def _wait(self) -> None:
        """Wait until a head has moved. Where events wait for idle partitions, mark those."""
        await self._drop_gone()
        waiting = self._last_waiting()
        self._context.is_waiting = waiting is not None or self._until is not None
        if waiting is None:
            if not await self._moved(_LOOK_FOR_TOPICS_S):
                await self._found_topics()
            return
        idle = [at for at, head in self._heads.items() if head.position <= waiting and self._is_idle(head)]
        self._marker.want(idle, waiting.log_time_ms + 1)
        await self._look_ahead(waiting)  # while the Marks are being written
        if self._horizon() <= waiting:
            await self._moved(_LOOK_FOR_TOPICS_S)

    def _marked(self, marks: Sequence[Position]) -> None:
        """Move past Marks that were just written, whichever query asked for them."""
        for mark in marks:
            head = self._heads.get(TopicPartition(mark.topic, mark.partition))
            if head is None:
                continue
            if self._until is not None:
                self._until[head.at] = max(self._until[head.at], mark.offset + 1)
            head.marked(mark)

    async def _look_ahead(self, waiting: TagTime) -> None:
        if waiting > self._looked_up_to:
            await self._found_topics()

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

    async def _moved(self, timeout_s: float) -> bool:
        """Wait for a move. Where partitions move all the time, one pass over them every few milliseconds is enough."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                await self._context.moved.wait()
        except TimeoutError:
            return False
        if loop.time() - began_s < _PASS_S:
            await asyncio.sleep(_PASS_S)
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
        elif now_s - self._stuck_s >= self._patience_s:
            waiting = self._last_waiting() or LAST_TAG_TIME
            idle = sorted(str(at) for at, head in self._heads.items() if head.position <= waiting)
            what = (
                f"waiting, without writing, for {', '.join(idle[:3])}{' …' if idle[3:] else ''} where nothing happens"
            )
            raise TimedOut(f"{what} (a query without read_only need not wait)", self._patience_s)

    def _raise_failure(self) -> None:
        """Raise what ended a head. A topic that was deleted has no more events: the query goes on without it."""
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
        tasks = [*self._tasks.values(), *self._ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._rows.aclose()


def _behind(place: TagTime) -> TagTime:
    return place._replace(offset=place.offset + 1)


def _order(event: TaggedEvent) -> TagOffset:
    return event.tag_offset
