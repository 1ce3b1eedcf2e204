"""Events of several tags: the queries of the single tags, merged by the order that they share."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

import msgspec

from headrace.errors import BadArgument, TagGap
from headrace.store import FIRST_TAG_TIME, TagTime
from headrace.tags.events import TaggedEvent, TagOffset

__all__ = ["NOBODY", "OpenQuery", "PlaceWatch", "check_names_event", "merge_tags"]


def _nothing() -> None:
    """Do nothing."""


class PlaceWatch:
    """A place that another query waits for, and what the query that is asked says about it.

    The place counts as an event of the asked query: Marks are written for it, topics are looked for, and a query that
    ends gives what lies below it first. A query that has given all it should stays, so that it can still be asked.
    """

    def __init__(self) -> None:
        self.wanted: TagTime | None = None
        self.passed: TagTime = FIRST_TAG_TIME
        self.is_spent = False
        self.on_want: Callable[[], None] = _nothing
        self.on_news: Callable[[], None] = _nothing

    @property
    def keeps_query(self) -> bool:
        """Whether a query that has given all it should waits for questions instead of ending."""
        return True

    def want(self, place: TagTime) -> None:
        """Ask for a place, unless another one is still asked for."""
        if self.wanted is None:
            self.wanted = place
            self.on_want()

    def tell_passed(self, place: TagTime) -> None:
        """Say that all events at or below the place have been given."""
        self.wanted, self.passed = None, max(self.passed, place)
        self.on_news()

    def tell_spent(self) -> None:
        """Say that a query that ends has given all that was there when it began."""
        if not self.is_spent:
            self.is_spent = True
            self.on_news()


class _Nobody(PlaceWatch):
    """The watch of a query that is not merged with others."""

    @property
    def keeps_query(self) -> bool:
        """False: it ends when it has given all it should."""
        return False

    def want(self, place: TagTime) -> None:
        """Refuse: all queries without a watch share this one."""
        raise AssertionError(f"nobody can wait for {place} here")

    def tell_spent(self) -> None:
        """Say nothing, to nobody."""


NOBODY = _Nobody()

OpenQuery: TypeAlias = Callable[[str, TagOffset | None, PlaceWatch], AsyncGenerator[TaggedEvent, None]]

_WAITING_AT_MOST = 200
_REMEMBERED = 20_000


def check_names_event(after: TagOffset | None) -> None:
    """Raise BadArgument for an offset of an old text: its number means one tag, and it lacks the seq_nr."""
    if after is not None and after.partition >= 0 and not after.has_seq_nr:
        raise BadArgument("after", str(after), "with several tags an offset has six numbers; give one that it gave")


async def merge_tags(
    tags: Sequence[str], after: TagOffset | None, open_query: OpenQuery
) -> AsyncGenerator[TaggedEvent, None]:
    """Yield the events of several tags after an offset, each once, in order, as one query would."""
    news = asyncio.Event()
    start = None if after is None else after.before_record
    sources = [_Source(tag, open_query, start, news) for tag in tags]
    given = _Given(after)
    try:
        while True:
            news.clear()
            source = _first(sources)
            if source is None:
                if all(each.is_spent for each in sources):
                    return
                await news.wait()
            elif behind := _behind(sources, source):
                for each in behind:
                    each.watch.want(max(source.waiting[0], source.waiting[-1], key=_place).tag_offset.time)
                await news.wait()
            else:
                event = source.pop()
                if given.take(event):
                    yield event
    finally:
        await asyncio.gather(*(source.stop() for source in sources))


class _Source:
    """The query of one tag. It reads on by itself until some events wait to be taken."""

    def __init__(self, tag: str, open_query: OpenQuery, after: TagOffset | None, news: asyncio.Event) -> None:
        self.watch = PlaceWatch()
        self.watch.on_news = news.set
        self.waiting: deque[TaggedEvent] = deque()
        self._news = news
        self._has_room = asyncio.Event()
        self._reading = asyncio.create_task(self._read(open_query(tag, after, self.watch)), name="headrace-tag-source")

    @property
    def is_spent(self) -> bool:
        """Whether the query ends, and has given all. Raises what the query raised."""
        self.check()
        return self.watch.is_spent

    def check(self) -> None:
        """Raise what ended the query."""
        if self._reading.done():
            self._reading.result()

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
    """Which events were given lately.

    A query gives its events in order, but for those that were missing from the views and were found later. By then
    another query may have given them.
    """

    def __init__(self, after: TagOffset | None) -> None:
        self._start = after
        self._order: deque[TagOffset] = deque()
        self._known: set[TagOffset] = set()
        self._forgotten: TagOffset | None = None

    def take(self, event: TaggedEvent) -> bool:
        """Return True if the event is to be given now. Raises TagGap if it is too late to know that."""
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


def _first(sources: Sequence[_Source]) -> _Source | None:
    """Return the source whose event comes first; of those that have the same event, the first one."""
    waiting = [source for source in sources if source.waiting]
    return min(waiting, key=lambda source: _place(source.waiting[0]), default=None)


def _behind(sources: Sequence[_Source], first: _Source) -> list[_Source]:
    """Return the sources that may still give something that comes before an event. Raises what ended one of them."""
    place = first.waiting[0].tag_offset.time
    found = [source for source in sources if not source.waiting and source.watch.passed < place]
    for source in found:
        source.check()
    return found


def _placed_by_seq_nr(event: TaggedEvent) -> TaggedEvent:
    return msgspec.structs.replace(event, tag_offset=event.tag_offset._replace(number=event.seq_nr))


def _place(event: TaggedEvent) -> TagOffset:
    return event.tag_offset
