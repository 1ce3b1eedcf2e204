"""The merge of the views with the heads of all partitions, in the one order, up to the horizon.

An event is delivered as soon as nothing can come before it any more: when every partition has been read past its
place. Until then the query sleeps. Where partitions are idle, Marks let the waiting events through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from headrace.errors import TimedOut
from headrace.model import TopicPartition
from headrace.store import FIRST_TAG_TIME, LAST_TAG_TIME, TagTime
from headrace.tags.events import TaggedEvent, TagOffset
from headrace.tags.followed import LOOK_FOR_TOPICS_S, FollowedTopics, MergeSources
from headrace.tags.heads import PartitionHead
from headrace.tags.marks import Marker
from headrace.tags.seams import Seam
from headrace.tags.several import NO_WATCH, PlaceWatch
from headrace.tags.view_rows import ViewRows

__all__ = ["Merge", "Wakeup"]

_WANT_AGAIN_S = 0.1
_MAX_BATCH = 100


class Merge:
    """Merges the events of the views with those of all partitions, from a seam on.

    With `until` it ends at these offsets (exclusive), else never. If it has an end and may not write Marks, it waits
    for idle partitions no longer than it would search for a missing event.
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
        watch: PlaceWatch = NO_WATCH,
    ) -> None:
        self._woken = asyncio.Event()
        self._followed = FollowedTopics(sources, tag, marker, seam, after=after, until=until, wake=self._woken.set)
        self._wakeup = Wakeup(self._followed, self._woken)
        self._heads = self._followed.heads
        self._rows = rows
        self._marker = marker
        self._watch = watch
        self._timeout_s = sources.settings.gap_timeout_s
        self._stuck_since_s: float | None = None
        if watch is not NO_WATCH:
            watch.on_want = self._woken.set

    async def batches(self) -> AsyncGenerator[list[TaggedEvent], None]:
        """Yield the events in order, those together that are ready together."""
        try:
            await self._followed.open()
            while not await self._is_done():
                await self._followed.note_gone()
                self._woken.clear()
                horizon = self._followed.horizon()
                first = await self._next(horizon)
                if first is None:
                    if not await self._report_passed(horizon):
                        await self._wait()
                elif not await self._followed.found_after(first.tag_offset.time):
                    yield await self._take(min(horizon, _behind(self._followed.looked_up_to)))
        finally:
            self._wakeup.stop()
            await self._followed.close()
            await self._rows.aclose()

    async def _next(self, horizon: TagTime) -> TaggedEvent | None:
        """Return the first of all events if nothing can come before it any more.

        A query with an end also gives a later event if one that it must give stands behind it: a query that goes on
        from the one would miss the other.
        """
        row = await self._rows.peek()
        firsts = [head.events[0] for head in self._heads.values() if head.events]
        first = min((*firsts, row) if row is not None else firsts, key=_order, default=None)
        if first is None or first.tag_offset.time >= horizon:
            return None
        if self._followed.until is None:
            return first
        waiting = self._last_waiting()
        return first if waiting is not None and first.tag_offset.time <= waiting else None

    async def _report_passed(self, horizon: TagTime) -> bool:
        """Report that the place which another query waits for is passed; False if it is not."""
        wanted = self._watch.wanted
        if wanted is None or wanted >= horizon:
            return False
        if not await self._followed.found_after(wanted):
            self._watch.report_passed(wanted)
        return True

    async def _take(self, horizon: TagTime) -> list[TaggedEvent]:
        taken: list[TaggedEvent] = []
        while len(taken) < _MAX_BATCH and (event := await self._next(horizon)) is not None:
            self._pop(event)
            self._stuck_since_s = None
            taken.append(event)
        return taken

    def _pop(self, event: TaggedEvent) -> None:
        head = self._heads.get(TopicPartition(event.topic, event.partition))
        if head is not None and head.events and head.events[0] is event:
            head.pop()
        else:
            self._rows.pop()

    async def _wait(self) -> None:
        """Wait until something can be delivered. Ask for Marks in the idle partitions that hold events up."""
        await self._followed.drop_gone()
        waiting = self._last_waiting()
        if waiting is None and self._followed.until is None:
            if not await self._wakeup.wait(LOOK_FOR_TOPICS_S):
                await self._followed.find_now()
            return
        if waiting is not None and waiting.log_time_ms >= self._marker.latest_ms:
            self._marker.waits_for_clock(self._topic_of(waiting), waiting.log_time_ms)
            waiting = self._last_waiting(self._marker.latest_ms)  # the others need not wait for the clock
        if waiting is not None:
            idle = [at for at, head in self._heads.items() if self._followed.is_idle(head) and head.position <= waiting]
            self._wakeup.expect_marks(idle)
            self._marker.want(idle, waiting.log_time_ms + 1)
            self._followed.begin_to_look(waiting)  # while the Marks are being written
        if self._wakeup.is_held_up(self._first_waiting()):
            await self._wakeup.wait(_WANT_AGAIN_S)

    def _first_waiting(self) -> TagTime | None:
        """Return the place of the first event that waits to be delivered, or that another query waits for.

        Events behind everything that a query with an end must give don't wait: nothing would ever hold them up.
        """
        last = LAST_TAG_TIME if self._followed.until is None else self._last_waiting() or FIRST_TAG_TIME
        times = [head.events[0].tag_offset.time for head in self._heads.values() if head.events]
        if self._rows.first is not None:
            times.append(self._rows.first.tag_offset.time)
        times = [time for time in times if time <= last]
        if self._watch.wanted is not None:
            times.append(self._watch.wanted)
        return min(times, default=None)

    def _last_waiting(self, before_ms: int = LAST_TAG_TIME.log_time_ms) -> TagTime | None:
        """Return the place of the last event that could be delivered if time went on, up to a log time (exclusive)."""
        lasts = [last for head in self._heads.values() if (last := self._last_of(head, before_ms)) is not None]
        times = [last.tag_offset.time for last in lasts]
        times += [head.sighted for head in self._heads.values() if self._is_sighted(head) and head.sighted is not None]
        if self._rows.waiting is not None:
            times.append(self._rows.waiting)
        if self._watch.wanted is not None:
            times.append(self._watch.wanted)
        return max((time for time in times if time.log_time_ms < before_ms), default=None)

    def _topic_of(self, place: TagTime) -> str:
        numbers = {head.position.topic_number: at.topic for at, head in self._heads.items()}
        return numbers.get(place.topic_number, "")

    def _last_of(self, head: PartitionHead, before_ms: int) -> TaggedEvent | None:
        """Return the last event of a head that the query must give, up to a log time (exclusive)."""
        end = None if self._followed.until is None else self._followed.until[head.at]
        for event in reversed(head.events):
            if (end is None or event.offset < end) and event.tag_offset.time.log_time_ms < before_ms:
                return event
        return None

    def _is_sighted(self, head: PartitionHead) -> bool:
        """Return True if events that the query must give are about to come out of a head."""
        if head.sighted is None:
            return False
        return self._followed.until is None or head.sighted.offset < self._followed.until[head.at]

    async def _is_done(self) -> bool:
        """Return True if a query with an end has given everything that it should."""
        until = self._followed.until
        if until is None:
            return False
        self._followed.raise_failure()
        is_read = all(head.position.offset >= until[at] for at, head in self._heads.items())
        if not is_read:
            return False
        if self._last_waiting() is None:
            return not await self._rows.has_due() and self._may_end()
        if self._marker.is_reader and await self._next(self._followed.horizon()) is None:
            self._check_patience()
        return False

    def _may_end(self) -> bool:
        """Return True if the query ends now that it has given everything: not while others may still ask it."""
        self._watch.report_spent()
        return not self._watch.keeps_query

    def _check_patience(self) -> None:
        """Raise TimedOut if a query that may not write Marks waited too long: it must not end without its events."""
        now_s = asyncio.get_running_loop().time()
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        elif now_s - self._stuck_since_s >= self._timeout_s:
            waiting = self._last_waiting() or LAST_TAG_TIME
            idle = sorted(str(at) for at, head in self._heads.items() if head.position <= waiting)
            names = f"{', '.join(idle[:3])}{' …' if idle[3:] else ''}"
            what = f"waiting, without writing, for {names} where nothing happens"
            raise TimedOut(f"{what} (a query without read_only need not wait)", self._timeout_s)


class Wakeup:
    """Wakes a query by setting `woken`. It watches the heads that hold the query up, one at a time.

    Positions never go back, so a head that has moved out of the way needs no second look.
    """

    def __init__(self, followed: FollowedTopics, woken: asyncio.Event) -> None:
        self._followed = followed
        self._woken = woken
        self._blockers: list[PartitionHead] = []
        self._blocked_until = FIRST_TAG_TIME
        self._marked: frozenset[TopicPartition] = frozenset()

    def expect_marks(self, partitions: Iterable[TopicPartition]) -> None:
        """Remember which idle partitions Marks were asked for: only others need new ones."""
        self._marked = frozenset(partitions)

    def is_held_up(self, place: TagTime | None) -> bool:
        """Return True if a head holds up the place that comes next, or if none does; the head will wake the query."""
        self.stop()
        self._blocked_until = FIRST_TAG_TIME if place is None else place
        self._blockers = [head for head in self._followed.heads.values() if self._holds_up(head)]
        if self._blockers:
            self._blockers[-1].watch(self._blocker_moved)
        return bool(self._blockers) or place is None

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the query is woken; False if that did not happen in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Watch no head any more."""
        if self._blockers:
            self._blockers[-1].watch(None)
            self._blockers = []

    def _holds_up(self, head: PartitionHead) -> bool:
        position = head.position
        if self._followed.until is not None and position.offset < self._followed.until[head.at]:
            return True
        return position <= self._blocked_until

    def _blocker_moved(self) -> None:
        """Watch the next head that holds up the query; wake the query if there is none, or if it needs a Mark."""
        while self._blockers and not self._holds_up(self._blockers[-1]):
            self._blockers.pop().watch(None)
        if not self._blockers or self._needs_mark(self._blockers[-1]):
            self._woken.set()
        else:
            self._blockers[-1].watch(self._blocker_moved)

    def _needs_mark(self, head: PartitionHead) -> bool:
        """Return True if a head has reached the end of the log since Marks were last asked for."""
        return self._followed.is_idle(head) and head.at not in self._marked


def _behind(place: TagTime) -> TagTime:
    return place._replace(offset=place.offset + 1)


def _order(event: TaggedEvent) -> TagOffset:
    return event.tag_offset
