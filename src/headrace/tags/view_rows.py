"""A tag's events from the views, in order, bucket by bucket, and what was trimmed from the start of the view.

Buckets that do not exist are not read. A query must not go on from before what was trimmed. Each tag has a setting of
its own for that: there may be many tags, and a query reads that of its tag after every page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import msgspec

from headrace.errors import TagTrimmed
from headrace.store import SharedSettings, TagRow, TagTime, TagViews, tag_time_of
from headrace.tags.events import TaggedEvent, TagOffset, tagged_row
from headrace.tags.registry import Bucket
from headrace.tags.seams import QueryEnd, Seam

__all__ = [
    "Trimmed",
    "ViewRows",
    "all_trimmed",
    "check_not_trimmed",
    "is_trimmed",
    "note_trimmed",
    "read_trimmed",
    "rows_between",
]


async def rows_between(
    views: TagViews, bucket: Bucket, tag: str, *, after: TagOffset | None, last_ms: int, page_size: int
) -> AsyncIterator[list[TaggedEvent]]:
    """Yield pages of all events after an offset, up to the bucket of a log time, without regard to the seam."""
    first_ms = bucket.start_of(after.log_time_ms) if after is not None else 0
    for start_ms in await views.buckets(tag, first_ms=first_ms, last_ms=bucket.start_of(last_ms)):
        first = after.time if after is not None and start_ms == first_ms else None
        async for page in views.read(tag, start_ms, first=first, page_size=page_size):
            yield [event for event in map(tagged_row, page) if after is None or event.tag_offset > after]


_PAGES_AHEAD = 10


class ViewRows:
    """The events of a tag below a seam, read a page at a time: `peek` returns the next one, `pop` takes it.

    `end` is where a query with an end ends; None if it has none. The offsets in it are no cut in the order of events:
    they are asked for one after the other, and an open transaction holds one of them back. So an event beyond them is
    still due if one that the query must give comes after it. If it were left out, a query that goes on from the later
    event would never give it.
    `check` is called after each page with the place that it was read from: buckets may have been removed meanwhile.
    """

    def __init__(
        self,
        views: TagViews,
        bucket: Bucket,
        tag: str,
        seam: Seam,
        *,
        after: TagOffset | None,
        end: QueryEnd | None,
        page_size: int,
        check: Callable[[TagOffset | None], Awaitable[None]],
    ) -> None:
        self._check = check
        self._views = views
        self._tag = tag
        self._seam = seam
        self._bucket = bucket
        self._after = after
        self._end = end
        self._page_size = page_size
        self._pages: AsyncIterator[list[TagRow]] | None = None
        self._events: deque[TaggedEvent] = deque()
        self._due = 0  # as many from the front are due: the last of them is one that the query must give
        self._is_exhausted = False

    async def peek(self) -> TaggedEvent | None:
        """Return the next event, and fetch it if necessary; None after the last."""
        while not self._events and not self._is_exhausted:
            await self._fetch()
        return self._events[0] if self._events else None

    async def has_due(self) -> bool:
        """Return True if there is an event that the query must give; pages are fetched until one is found.

        Events that nobody knows to be due are not gathered without a bound: from some pages on all of them are given.
        """
        while not self._due and not self._is_exhausted:
            await self._fetch()
            if len(self._events) >= _PAGES_AHEAD * self._page_size:
                self._due = len(self._events)
        return self._due > 0

    async def take(self, below: TagTime | None) -> list[TaggedEvent]:
        """Take the fetched events that are due and below a place (None: any place)."""
        taken: list[TaggedEvent] = []
        if not await self.has_due():
            return taken
        while self._due and (below is None or self._events[0].tag_offset < below):
            taken.append(self.pop())
        return taken

    def pop(self) -> TaggedEvent:
        """Take the event that was peeked at."""
        self._due = max(0, self._due - 1)
        return self._events.popleft()

    @property
    def first(self) -> TaggedEvent | None:
        """The next event, if it was fetched and is due."""
        return self._events[0] if self._due else None

    @property
    def waiting(self) -> TagTime | None:
        """The place of the last event that was fetched, is due, and was not taken yet."""
        return self._events[self._due - 1].tag_offset.time if self._due else None

    async def aclose(self) -> None:
        """Stop fetching."""
        self._is_exhausted = True
        close = getattr(self._pages, "aclose", None)
        if close is not None:
            await close()

    def _reading(self) -> AsyncIterator[list[TagRow]]:
        if self._pages is None:
            self._pages = self._read()
        return self._pages

    async def _fetch(self) -> None:
        rows = await anext(self._reading(), None)
        if rows is None:
            self._is_exhausted = True
            return
        fetched = [(row, tagged_row(row)) for row in rows]
        if self._after is not None:
            fetched = [(row, event) for row, event in fetched if event.tag_offset > self._after]
        due = next((n for n in range(len(fetched), 0, -1) if self._is_wanted(fetched[n - 1][0])), 0)
        if due:
            self._due = len(self._events) + due
        self._events.extend(event for _, event in fetched)

    def _is_wanted(self, row: TagRow) -> bool:
        return self._end is None or self._end.includes(row)

    async def _read(self) -> AsyncIterator[list[TagRow]]:
        first_ms = self._bucket.start_of(self._after.log_time_ms) if self._after is not None else 0
        last_ms = self._bucket.start_of(self._seam.highest_ms)
        place = self._after
        for start_ms in await self._views.buckets(self._tag, first_ms=first_ms, last_ms=last_ms):
            first = self._after.time if self._after is not None and start_ms == first_ms else None
            async for page in self._views.read(self._tag, start_ms, first=first, page_size=self._page_size):
                await self._check(place)
                place = _later(place, page)
                yield [row for row in page if self._seam.covers(row)]
        await self._check(place)


def _later(place: TagOffset | None, page: Sequence[TagRow]) -> TagOffset | None:
    """Return the place up to which a view has been read, after one more page."""
    if not page:
        return place
    row = page[-1]
    last = TagOffset.of(tag_time_of(row.timestamp), row.number, row.seq_nr)
    return last if place is None else max(place, last)


_TRIMMED_PREFIX = "tags-trimmed/"


class Trimmed(msgspec.Struct, frozen=True):
    """A tag's buckets before `before_ms` were removed; `last` is the offset of the last event that was in them.

    A query that has given that event misses nothing, however long ago that was.
    """

    before_ms: int
    last: str

    @property
    def place(self) -> TagOffset:
        """The place of the last event that was removed."""
        return TagOffset.parse(self.last)

    def and_also(self, other: Trimmed) -> Trimmed:
        """Return both together."""
        return Trimmed(max(self.before_ms, other.before_ms), max(self, other, key=lambda each: each.place).last)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Trimmed).decode


async def read_trimmed(settings: SharedSettings, tag: str) -> Trimmed | None:
    """Return what was removed of a tag; None if nothing was."""
    stored = await settings.get(f"{_TRIMMED_PREFIX}{tag}")
    return None if stored is None else _decode(stored)


async def all_trimmed(settings: SharedSettings) -> dict[str, Trimmed]:
    """Return what was removed of all tags."""
    stored = await settings.all(_TRIMMED_PREFIX)
    return {key.removeprefix(_TRIMMED_PREFIX): _decode(value) for key, value in stored.items()}


async def note_trimmed(settings: SharedSettings, tag: str, note: Trimmed) -> None:
    """Store what is about to be removed, together with what was removed before, also by other processes."""
    while True:
        stored = await settings.get(f"{_TRIMMED_PREFIX}{tag}")
        noted = note if stored is None else _decode(stored).and_also(note)
        if await settings.put(f"{_TRIMMED_PREFIX}{tag}", _encode(noted).decode(), expected=stored):
            return


def check_not_trimmed(known: Trimmed | None, tag: str, after: TagOffset | None) -> None:
    """Raise TagTrimmed if some of the tag's events after a place were removed; None is the beginning."""
    if known is None or (after is not None and after.covers(known.place)):
        return
    raise TagTrimmed(tag, "the start" if after is None else f"offset {after}", known.before_ms, known.last)


def is_trimmed(trimmed: Mapping[str, Trimmed], row: TagRow) -> bool:
    """Return True if a row lies where rows were removed: it is not missing and must not be written again."""
    known = trimmed.get(row.tag)
    if known is None:
        return False
    time: TagTime = tag_time_of(row.timestamp)
    return time <= known.place.time
