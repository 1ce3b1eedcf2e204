"""Queries of several tags: one query for each tag, merged in the order that all tags share."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from headrace.errors import BadArgument, TagGap
from headrace.store import FIRST_TAG_TIME, LAST_TAG_TIME, TagTime
from headrace.tags.events import TaggedEvent, TagOffset

__all__ = ["NO_WATCH", "OpenQuery", "PlaceWatch", "check_names_event", "merge_tags"]


def _nothing() -> None:
    """Do nothing."""


class PlaceWatch:
    """A place that another query waits for, and the answer of the query that is watched.

    The place counts as an event of the watched query: Marks are written for it, topics are looked for, and a query
    with an end first gives what lies below it. A query that has given everything stays open, so that it can answer.
    """

    def __init__(self) -> None:
        self.wanted: TagTime | None = None
        self.passed: TagTime = FIRST_TAG_TIME
        self.is_spent = False
        self.on_want: Callable[[], None] = _nothing
        self.on_news: Callable[[], None] = _nothing

    @property
    def keeps_query(self) -> bool:
        """True if a query that has given everything waits for further places instead of ending."""
        return True

    def want(self, place: TagTime) -> None:
        """Ask for a place, unless another one is still wanted."""
        if self.wanted is None:
            self.wanted = place
            self.on_want()

    def report_passed(self, place: TagTime) -> None:
        """Report that all events at or below the place have been given."""
        self.wanted, self.passed = None, max(self.passed, place)
        self.on_news()

    def report_spent(self) -> None:
        """Report that a query with an end has given everything that existed when it began."""
        if not self.is_spent:
            self.is_spent = True
            self.on_news()


class _NoWatch(PlaceWatch):
    """The watch of a query that is not merged with others."""

    @property
    def keeps_query(self) -> bool:
        """False: the query ends when it has given everything."""
        return False

    def want(self, place: TagTime) -> None:
        """Raise AssertionError: all queries without a watch share this object."""
        raise AssertionError(f"no query can wait for {place} here")

    def report_spent(self) -> None:
        """Do nothing: no query waits."""


NO_WATCH = _NoWatch()

OpenQuery: TypeAlias = Callable[[str, TagOffset | None, PlaceWatch], AsyncGenerator[TaggedEvent, None]]

_WAITING_AT_MOST = 200
_REMEMBERED = 20_000


def check_names_event(after: TagOffset | None) -> None:
    """Raise BadArgument for an offset of an older version: it has the number under one tag, but no seq_nr."""
    if after is not None and after.partition >= 0 and not after.has_seq_nr:
        raise BadArgument("after", str(after), "with several tags an offset has six numbers; give one that it gave")


async def merge_tags(
    tags: Sequence[str], after: TagOffset | None, open_query: OpenQuery
) -> AsyncGenerator[TaggedEvent, None]:
    """Yield the events of several tags after an offset, each once, in order, as one query would.

    What all sources have passed is given in one go. Sources that hold up the others are asked for the last place that
    is known: if each event were asked for by itself, hundreds of tags would ask one another at every event.
    """
    news = asyncio.Event()
    start = None if after is None else after.before_record
    sources = [_Source(tag, open_query, start, news) for tag in tags]
    given = _Given(after)
    try:
        while True:
            news.clear()
            heads = [(each.first, n) for n, each in enumerate(sources) if each.waiting]
            if not heads:
                if all(each.is_spent for each in sources):
                    return
                await news.wait()
            elif behind := _behind(sources, min(heads)[0].time):
                place = max(each.last for each in sources if each.waiting).time
                for each in behind:
                    each.watch.want(place)
                await news.wait()
            else:
                for event in _passed(sources, heads):
                    if given.take(event):
                        yield event
    finally:
        await asyncio.gather(*(source.stop() for source in sources))


class _Source:
    """The query of one tag. It reads ahead until some events wait to be taken."""

    def __init__(self, tag: str, open_query: OpenQuery, after: TagOffset | None, news: asyncio.Event) -> None:
        self.watch = PlaceWatch()
        self.watch.on_news = news.set
        self.waiting: deque[TaggedEvent] = deque()
        self._news = news
        self._has_room = asyncio.Event()
        self._reading = asyncio.create_task(self._read(open_query(tag, after, self.watch)), name="headrace-tag-source")

    @property
    def is_spent(self) -> bool:
        """True if the query has an end and has given everything. Raises what the query raised."""
        self.check()
        return self.watch.is_spent

    def check(self) -> None:
        """Raise what ended the query."""
        if self._reading.done():
            self._reading.result()

    @property
    def first(self) -> TagOffset:
        """The place of the first event that waits."""
        return self.waiting[0].tag_offset

    @property
    def last(self) -> TagOffset:
        """The highest place of those that are known; one that was missing before comes late."""
        return max(self.waiting[0].tag_offset, self.waiting[-1].tag_offset)

    def pop(self) -> TaggedEvent:
        """Take the first event."""
        self._has_room.set()
        return self.waiting.popleft()

    async def stop(self) -> None:
        """End the query."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, events: AsyncGenerator[TaggedEvent, None]) -> None:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    self.waiting.append(_placed_by_seq_nr(event))
                    self._news.set()
                    while len(self.waiting) >= _WAITING_AT_MOST:
                        self._has_room.clear()
                        await self._has_room.wait()
        finally:
            self._news.set()


class _Given:
    """The events that were given recently.

    A query gives its events in order, except those that were missing from the views and found later. By then another
    query may have given them.
    """

    def __init__(self, after: TagOffset | None) -> None:
        self._start = after
        self._order: deque[TagOffset] = deque()
        self._known: set[TagOffset] = set()
        self._forgotten: TagOffset | None = None

    def take(self, event: TaggedEvent) -> bool:
        """Return True if the event must be given now. Raises TagGap if it is too late to know that."""
        place = event.tag_offset
        if place in self._known or (self._start is not None and self._start.covers(place)):
            return False
        if self._forgotten is not None and place <= self._forgotten:
            raise TagGap(event.tag, event.topic, event.id, event.number, event.number + 1, 0.0)
        self._order.append(place)
        self._known.add(place)
        if len(self._order) > _REMEMBERED:
            oldest = self._order.popleft()
            self._known.discard(oldest)
            self._forgotten = oldest if self._forgotten is None else max(oldest, self._forgotten)
        return True


def _passed(sources: Sequence[_Source], heads: list[tuple[TagOffset, int]]) -> Iterator[TaggedEvent]:
    """Take events in order, as long as no source may still give an earlier one.

    `heads` has the first place of each source with its number: of several that have the same event, the first one gives
    it. A source without events gives only such as lie above the place that it has passed, whatever comes meanwhile.
    """
    heapq.heapify(heads)
    bound = min((source.watch.passed for source in sources if not source.waiting), default=LAST_TAG_TIME)
    while heads and heads[0][0].time <= bound:
        number = heads[0][1]
        source = sources[number]
        event = source.pop()
        if source.waiting:
            heapq.heapreplace(heads, (source.first, number))
        else:
            heapq.heappop(heads)
            bound = min(bound, source.watch.passed)
        yield event


def _behind(sources: Sequence[_Source], place: TagTime) -> list[_Source]:
    """Return the sources that may still give an event before a place. Raises what ended one of them."""
    found = [source for source in sources if not source.waiting and source.watch.passed < place]
    for source in found:
        source.check()
    return found


def _placed_by_seq_nr(event: TaggedEvent) -> TaggedEvent:
    return msgspec.structs.replace(event, tag_offset=event.tag_offset._replace(number=event.seq_nr))
