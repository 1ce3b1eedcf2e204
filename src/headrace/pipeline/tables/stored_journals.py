"""Journals of one partition as the store has them, with what the log adds folded on top."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from headrace.errors import IntegrityBroken, ReadAgain
from headrace.journal import Layout
from headrace.journal.folding import Entry, exists
from headrace.journal.journal_state import fold
from headrace.pipeline.tables.journal_heads import Head
from headrace.pipeline.tables.wanted import Wanted
from headrace.store import EventRow, JournalMeta, StoreReader

__all__ = ["Found", "StoredJournals"]

_ATTEMPTS = 5
_HELD_BACK = 1000
_PAGE = 500


@dataclass(slots=True)
class Found:
    """A journal. `first` to `last` are the numbers of its rows that are wanted; `rows` those that were read.

    `rest` is set where there are more: a long journal is not gathered. `appends` are the log's, those that live.
    """

    id: str
    stored: JournalMeta | None
    meta: JournalMeta | None
    appends: Sequence[Entry] = ()
    first: int = 1
    last: int = 0
    rows: list[EventRow] = field(default_factory=list)
    rest: AsyncIterator[Sequence[EventRow]] | None = None


class StoredJournals:
    """Finds journals and reads their rows."""

    def __init__(self, reader: StoreReader, layout: Layout, head: Head, wanted: Wanted, skew_ms: int | None) -> None:
        self._reader = reader
        self._topic = layout.topic
        self._head = head
        self._wanted = wanted
        self._skew_ms = skew_ms
        # Where a topic grew, the rows of a key have offsets of several partitions.
        self._is_one_order = len(layout.generations) == 1

    @property
    def is_out(self) -> bool:
        """Whether no row that had been replicated when the head was read can be wanted."""
        replicated = self._head.replicated
        return self._is_one_order and (
            replicated is None or self._is_above(replicated.offset) or self._is_later(replicated.log_time_ms)
        )

    async def find(self, id_: str, stored: JournalMeta | None) -> Found:
        """Fold what the log adds on the state, and read the first rows; forgets what the log adds.

        Rows that vanish while they are read were deleted by what is newer than the state: then all is done again.
        """
        entries = self._head.entries.pop(id_, [])
        for _ in range(_ATTEMPTS):
            found = self._found(id_, stored, entries)
            if found.last < found.first or await self._gather(found):
                return found
            stored = await self._reader.meta(self._topic, id_)
        raise ReadAgain(id_, "events were deleted faster than they could be read")

    async def rows(self, found: Found) -> AsyncIterator[Sequence[EventRow]]:
        """Yield the journal's rows, some at a time. Raises ReadAgain if a long journal was cut short meanwhile."""
        yield found.rows
        if found.rest is None:
            return
        count, above = len(found.rows), found.rows[-1].seq_nr if found.rows else 0
        async for page in found.rest:
            rows = _own(found, page, above)
            above = rows[-1].seq_nr if rows else above
            count += len(rows)
            yield rows
        if not await self._is_whole(found, count):
            raise ReadAgain(found.id, "events were deleted or it was purged")

    def _found(self, id_: str, stored: JournalMeta | None, entries: Sequence[Entry]) -> Found:
        meta, appends = fold(stored, entries)
        found = Found(id_, stored, meta, appends if exists(meta) else ())
        if meta is None or stored is None or not self._has_rows(stored, meta):
            return found
        low, high = self._wanted.seq_nr
        found.first = max(meta.delete_to + 1, low or 1)
        found.last = stored.seq_nr if high is None else min(stored.seq_nr, high)
        return found

    def _has_rows(self, stored: JournalMeta, meta: JournalMeta) -> bool:
        """Say whether rows of the store are alive and may be wanted."""
        is_alive = exists(stored) and exists(meta) and stored.record_id == meta.record_id
        if not is_alive or meta.held_from is not None:
            return False
        if self._is_one_order and self._is_above(stored.offset):
            return False
        if self._is_one_order and stored.place <= self._head.place and self._head.replicated is not None:
            return not self._is_later(self._head.replicated.log_time_ms) and self._is_of_the_time(stored)
        return self._is_of_the_time(stored)

    def _is_above(self, offset: int) -> bool:
        low = self._wanted.offset.low
        return low is not None and offset < low

    def _is_later(self, log_time_ms: int) -> bool:
        """No record up to a place has a timestamp above the log time there: that is what log time is."""
        low = self._wanted.time_ms.low
        return low is not None and log_time_ms < low

    def _is_of_the_time(self, stored: JournalMeta) -> bool:
        low, high = self._wanted.time_ms
        if self._skew_ms is None:
            return True
        if low is not None and stored.updated_ms is not None and stored.updated_ms + self._skew_ms < low:
            return False
        return high is None or stored.created_ms is None or stored.created_ms - self._skew_ms <= high

    async def _gather(self, found: Found) -> bool:
        """Read the rows of a journal that is not long; False if they are not those of its state any more."""
        stored = found.stored
        if stored is None:
            return True
        size = stored.segment_size
        pages = self._reader.rows(
            self._topic, found.id, segment_size=size, first=found.first, last=found.last, page_size=_PAGE
        )
        found.rows = []
        async for page in pages:
            found.rows += _own(found, page, found.rows[-1].seq_nr if found.rows else 0)
            if len(found.rows) >= _HELD_BACK:
                found.rest = pages
                return True
        return await self._is_whole(found, len(found.rows))

    async def _is_whole(self, found: Found, count: int) -> bool:
        """Say whether so many rows are all there are: there is no gap, or nothing was deleted while they were read."""
        if count == found.last - found.first + 1:
            return True
        now = await self._reader.meta(self._topic, found.id)
        is_same = now is not None and found.stored is not None and now.record_id == found.stored.record_id
        return is_same and now is not None and now.delete_to < found.first


def _own(found: Found, page: Sequence[EventRow], above: int) -> list[EventRow]:
    """Return the rows of the journal's own incarnation; their numbers rise."""
    rows = []
    for row in page:
        if found.stored is None or row.record_id != found.stored.record_id:
            continue
        if row.seq_nr <= above:
            raise IntegrityBroken(found.id, row.seq_nr, "two rows of one incarnation have the same number")
        above = row.seq_nr
        rows.append(row)
    return rows
