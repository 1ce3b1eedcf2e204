"""Which segments of a journal hold rows: found without asking for each of those that don't.

Numbers may jump by millions, and a segment is a partition of its own: Cassandra can't tell the next one. So replication
writes down where a journal's numbers jump over segments. Such a note outlives a purge, so several may cover an empty
segment; the nearest end of all of them is never behind the next row. Rows from before there were notes are found by
asking for a few dozen segments at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from headrace.store.cassandra.session import Row, Session

__all__ = ["QUERIES", "Segments"]

_GAPS = "SELECT after_segment, next_segment FROM {keyspace}.journal_gaps WHERE id = ? AND topic = ?"
_EXISTING = "SELECT DISTINCT id, topic, segment FROM {keyspace}.journal WHERE id = ? AND topic = ? AND segment IN ?"
QUERIES = (_GAPS, _EXISTING)

# How many partitions one question names: more would burden the node that answers it.
_PROBED = 50
_GAPS_PAGE = 500


class Segments:
    """The segments of one journal up to `last`, asked about in rising order."""

    def __init__(self, session: Session, topic: str, id_: str, *, last: int) -> None:
        self._session = session
        self._key = (id_, topic)
        self._last = last
        self._gaps: AsyncGenerator[Row, None] | None = None
        self._upcoming: Row | None = None
        self._ends: list[int] = []

    async def next_after(self, empty: int) -> int:
        """Return the next segment that may hold rows behind one that holds none; beyond the last if none does.

        Those that follow are looked at before any note is: where rows were deleted, none says that they are missing.
        """
        while empty < self._last:
            found = await self._probe(empty + 1)
            if found:
                return min(found)
            empty = min(empty + _PROBED, self._last)
            end = await self._end_of_gap(empty)
            if end is not None:
                return min(end, self._last + 1)
        return self._last + 1

    async def existing(self, first: int) -> AsyncIterator[Sequence[int]]:
        """Yield the segments from `first` on that hold rows, some at a time."""
        while first <= self._last:
            found = await self._probe(first)
            if found:
                yield sorted(found)
            tried = min(first + _PROBED - 1, self._last)
            first = tried + 1 if found else await self.next_after(tried)

    async def close(self) -> None:
        """Let go of what is being read."""
        if self._gaps is not None:
            await self._gaps.aclose()

    async def _probe(self, first: int) -> set[int]:
        asked = list(range(first, min(first + _PROBED, self._last + 1)))
        rows = await self._session.read("find segments", _EXISTING, (*self._key, asked)) if asked else ()
        return {int(segment) for _, _, segment in rows}

    async def _end_of_gap(self, empty: int) -> int | None:
        """Return the nearest end of the gaps that an empty segment lies in."""
        if self._gaps is None:
            self._gaps = self._read_gaps()
            self._upcoming = await anext(self._gaps, None)
        while self._upcoming is not None and self._upcoming[0] < empty:
            heapq.heappush(self._ends, self._upcoming[1])
            self._upcoming = await anext(self._gaps, None)
        while self._ends and self._ends[0] <= empty:
            heapq.heappop(self._ends)
        return self._ends[0] if self._ends else None

    async def _read_gaps(self) -> AsyncGenerator[Row, None]:
        async for rows in self._session.pages("journal_gaps", _GAPS, self._key, page_size=_GAPS_PAGE):
            for row in rows:
                yield row
