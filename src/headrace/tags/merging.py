"""Merging what the views hold with the heads of all partitions, in the one order, up to the horizon.

An event is delivered once nothing can come before it any more: when every partition has been read past its place.
Partitions where nothing happens are told by Marks that time has passed, after the waiting events had a moment to
gather.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from headrace.config import TagSettings
from headrace.errors import UnknownTopic
from headrace.journal import Layout
from headrace.model import TopicPartition
from headrace.store import Place, TagTime
from headrace.store.tag_rows import FIRST_TAG_TIME, LAST_TAG_TIME
from headrace.tags.events import TaggedEvent
from headrace.tags.fills import check_filled
from headrace.tags.head_context import HeadContext
from headrace.tags.heads import PartitionHead
from headrace.tags.marking import Marker
from headrace.tags.offsets import TagOffset
from headrace.tags.registry import check_epoch
from headrace.tags.seams import Known, Seam, SeamReader
from headrace.tags.view_rows import ViewRows

__all__ = ["Merge"]

_LOOK_FOR_TOPICS_S = 1.0
_AT_ONCE = 100


class Merge:
    """Follows all partitions from a seam on. With `until` it ends at these offsets (exclusive), else never."""

    def __init__(
        self,
        context: HeadContext,
        seams: SeamReader,
        seam: Seam,
        rows: ViewRows,
        marker: Marker,
        settings: TagSettings,
        *,
        until: dict[TopicPartition, int] | None,
    ) -> None:
        self._context = context
        self._seams = seams
        self._rows = rows
        self._marker = marker
        self._gather_s = settings.gather_ms / 1000
        self._until = until
        self._heads: dict[TopicPartition, PartitionHead] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._looked_s = self._counted_s = asyncio.get_running_loop().time()
        self._looked_up_to = FIRST_TAG_TIME
        context.layouts = dict(seam.layouts)
        context.heads = self._heads  # type: ignore[assignment]
        context.on_growth = self._grow
        for known in seam.live:
            self._add(known)

    async def batches(self) -> AsyncGenerator[list[TaggedEvent], None]:
        """Yield the events in order, those together that are ready together."""
        try:
            await self._find_ends()
            self._start()
            while not await self._is_done():
                self._context.moved.clear()
                horizon = self._horizon()
                first = await self._next(horizon)
                if first is None:
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
        for at in self._heads:
            self._ends[at] = (await self._context.log.bounds(at)).end

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
        return first if self._until is None or self._last_waiting() is not None else None

    def _last_of(self, head: PartitionHead) -> TaggedEvent | None:
        """Return the last event of a head that the query must give."""
        end = None if self._until is None else self._until[head.at]
        return next((event for event in reversed(head.events) if end is None or event.offset < end), None)

    async def _take(self, horizon: TagTime) -> list[TaggedEvent]:
        taken: list[TaggedEvent] = []
        while len(taken) < _AT_ONCE and (event := await self._next(horizon)) is not None:
            self._pop(event)
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
            registry = await self._seams.discover()
        else:
            registry = await self._seams.announced()
        check_filled(registry.fills, context.tag, before=context.registry.fills)
        check_epoch(registry, before=context.registry)
        new = [topic for topic in registry.topics if topic not in context.registry.topics]
        context.registry = registry
        for topic in new:
            await self._add_topic(topic)
        if up_to is not None:
            self._looked_up_to = max(self._looked_up_to, up_to)
        return bool(new)

    async def _add_topic(self, topic: str) -> None:
        layout = await self._seams.layout(topic)
        if layout is None:
            return
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
        if waiting is None:
            if not await self._moved(_LOOK_FOR_TOPICS_S):
                await self._found_topics()
            return
        if await self._moved(self._gather_s) and self._last_waiting() != waiting:
            return  # more are coming: one Mark is enough for all of them
        idle = [at for at, head in self._heads.items() if head.position <= waiting and self._is_idle(head)]
        # Both take a while, and neither waits for the other.
        marks, _ = await asyncio.gather(self._marker.mark(idle, waiting.log_time_ms + 1), self._look_ahead(waiting))
        for mark in marks:
            at = TopicPartition(mark.topic, mark.partition)
            if self._until is not None:
                self._until[at] = max(self._until[at], mark.offset + 1)
            self._heads[at].marked(mark)
        if self._horizon() <= waiting:
            await self._moved(_LOOK_FOR_TOPICS_S)

    async def _look_ahead(self, waiting: TagTime) -> None:
        if waiting > self._looked_up_to:
            await self._found_topics()

    async def _drop_gone(self) -> None:
        """Every now and then look which topics are gone: a broker does not tell their readers."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._counted_s < _LOOK_FOR_TOPICS_S:
            return
        self._counted_s = now_s
        there = set(await self._context.log.admin.topics())
        for at in [at for at in self._heads if at.topic not in there]:
            self._tasks[at].cancel()
            del self._heads[at]

    def _last_waiting(self) -> TagTime | None:
        """Return the place of the last event that could be delivered if time went on."""
        lasts = [last for head in self._heads.values() if (last := self._last_of(head)) is not None]
        times = [last.tag_offset.time for last in lasts]
        times += [head.sighted for head in self._heads.values() if self._is_sighted(head) and head.sighted is not None]
        if self._rows.waiting is not None:
            times.append(self._rows.waiting)
        return max(times, default=None)

    def _is_sighted(self, head: PartitionHead) -> bool:
        """Say whether events that the query must give are about to come out of a head."""
        if head.sighted is None:
            return False
        return self._until is None or head.sighted.offset < self._until[head.at]

    def _is_idle(self, head: PartitionHead) -> bool:
        return head.sighted is None and head.position.offset >= self._ends.get(head.at, 0)

    async def _moved(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._context.moved.wait()
                return True
        return False

    async def _is_done(self) -> bool:
        """Say whether a query that ends has given all it should."""
        if self._until is None:
            return False
        self._raise_failure()
        is_read = all(head.position.offset >= self._until[at] for at, head in self._heads.items())
        if not is_read:
            return False
        if self._last_waiting() is None:
            return await self._rows.peek() is None
        return self._marker.is_reader and await self._next(self._horizon()) is None

    def _raise_failure(self) -> None:
        """Raise what ended a head. A topic that was deleted has no more events: the query goes on without it."""
        for at, task in self._tasks.items():
            if at not in self._heads or not task.done() or task.cancelled():
                continue
            failure = task.exception()
            if isinstance(failure, UnknownTopic):
                del self._heads[at]
            elif failure is not None:
                raise failure

    async def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._rows.aclose()


def _behind(place: TagTime) -> TagTime:
    return place._replace(offset=place.offset + 1)


def _order(event: TaggedEvent) -> TagOffset:
    return event.tag_offset
