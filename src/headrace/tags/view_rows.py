"""A tag's events from the views, in order, bucket by bucket; buckets that do not exist are not read."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from headrace.model import TopicPartition
from headrace.store import TagRow, TagTime, TagViews, tag_time_of
from headrace.tags.events import TaggedEvent, TagOffset, tagged_row
from headrace.tags.registry import Bucket
from headrace.tags.seams import Seam

__all__ = ["ViewRows", "rows_between"]


async def rows_between(
    views: TagViews, bucket: Bucket, tag: str, *, after: TagOffset | None, last_ms: int, page_size: int
) -> AsyncIterator[list[TaggedEvent]]:
    """Yield pages of all events after an offset, up to the bucket of a log time, without regard to the seam."""
    first_ms = bucket.start_of(after.log_time_ms) if after is not None else 0
    for start_ms in await views.buckets(tag, first_ms=first_ms, last_ms=bucket.start_of(last_ms)):
        first = after.time if after is not None and start_ms == first_ms else None
        async for page in views.read(tag, start_ms, first=first, page_size=page_size):
            yield [event for event in map(tagged_row, page) if after is None or event.tag_offset > after]


class ViewRows:
    """The events of a tag below a seam, read a page at a time: `peek` returns the next one, `pop` takes it.

    `until` has the offsets (exclusive) at which a query with an end ends. `check` is called after each page with the
    place that it was read from: buckets may have been removed meanwhile.
    """

    def __init__(
        self,
        views: TagViews,
        bucket: Bucket,
        tag: str,
        seam: Seam,
        *,
        after: TagOffset | None,
        until: Mapping[TopicPartition, int],
        page_size: int,
        check: Callable[[TagOffset | None], Awaitable[None]],
    ) -> None:
        self._check = check
        self._views = views
        self._tag = tag
        self._seam = seam
        self._bucket = bucket
        self._after = after
        self._until = until
        self._page_size = page_size
        self._pages: AsyncIterator[list[TaggedEvent]] | None = None
        self._events: deque[TaggedEvent] = deque()
        self._is_exhausted = False

    async def peek(self) -> TaggedEvent | None:
        """Return the next event, and fetch it if necessary; None after the last."""
        while not self._events and not self._is_exhausted:
            page = await anext(self._reading(), None)
            if page is None:
                self._is_exhausted = True
            else:
                self._events.extend(page)
        return self._events[0] if self._events else None

    async def take(self, below: TagTime | None) -> list[TaggedEvent]:
        """Take the fetched events below a place (None: all of them)."""
        await self.peek()
        taken = []
        while self._events and (below is None or self._events[0].tag_offset < below):
            taken.append(self._events.popleft())
        return taken

    def pop(self) -> TaggedEvent:
        """Take the event that was peeked at."""
        return self._events.popleft()

    @property
    def first(self) -> TaggedEvent | None:
        """The next event, if it was fetched."""
        return self._events[0] if self._events else None

    @property
    def waiting(self) -> TagTime | None:
        """The place of the last event that was fetched and not taken yet."""
        return self._events[-1].tag_offset.time if self._events else None

    async def aclose(self) -> None:
        """Stop fetching."""
        self._is_exhausted = True
        close = getattr(self._pages, "aclose", None)
        if close is not None:
            await close()

    def _reading(self) -> AsyncIterator[list[TaggedEvent]]:
        if self._pages is None:
            self._pages = self._read()
        return self._pages

    def _is_wanted(self, row: TagRow) -> bool:
        end = self._until.get((row.topic, row.partition))  # type: ignore[call-overload]
        return end is None or row.offset < end

    async def _read(self) -> AsyncIterator[list[TaggedEvent]]:
        first_ms = self._bucket.start_of(self._after.log_time_ms) if self._after is not None else 0
        last_ms = self._bucket.start_of(self._seam.highest_ms)
        place = self._after
        for start_ms in await self._views.buckets(self._tag, first_ms=first_ms, last_ms=last_ms):
            first = self._after.time if self._after is not None and start_ms == first_ms else None
            async for page in self._views.read(self._tag, start_ms, first=first, page_size=self._page_size):
                await self._check(place)
                place = _later(place, page)
                events = [tagged_row(row) for row in page if self._seam.covers(row) and self._is_wanted(row)]
                yield [event for event in events if self._after is None or event.tag_offset > self._after]
        await self._check(place)


def _later(place: TagOffset | None, page: Sequence[TagRow]) -> TagOffset | None:
    """Return the place up to which a view has been read, after one more page."""
    if not page:
        return place
    row = page[-1]
    last = TagOffset.of(tag_time_of(row.timestamp), row.number, row.seq_nr)
    return last if place is None else max(place, last)
