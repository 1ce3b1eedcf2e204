"""The read side of the store in Cassandra: heads, replicated offsets, and rows of a journal segment by segment.

A journal's numbers may jump by millions, and each segment is a partition of its own, so Cassandra can't find the next
segment with rows. Replication therefore stores a gap where the numbers jump over segments. Gaps outlive a purge, so
several may cover an empty segment; the nearest end of all of them is never after the next row. Rows that were written
before gaps were stored are found by probing a few dozen segments at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence

from headrace.model import TopicPartition
from headrace.store.cassandra.columns import EVENT, META, POINTER, event_of, meta_of, pointer_of, selected
from headrace.store.cassandra.requests import RequestShare, one_ahead, shared
from headrace.store.cassandra.session import Row, Session, each_of
from headrace.store.limits import check_paging, check_share
from headrace.store.rows import EventRow, HeadShare, JournalMeta, ReplicatedOffset, meta_segment, segment_of

__all__ = ["QUERIES", "SEGMENT_QUERIES", "CassandraReader", "Segments"]

_GAPS = "SELECT after_segment, next_segment FROM {keyspace}.journal_gaps WHERE id = ? AND topic = ?"
_EXISTING = "SELECT DISTINCT id, topic, segment FROM {keyspace}.journal WHERE id = ? AND topic = ? AND segment IN ?"
SEGMENT_QUERIES = (_GAPS, _EXISTING)

# How many segments one query probes: more would burden the node that answers it.
_PROBED = 50
_GAPS_PAGE = 500


class Segments:
    """The segments of one journal up to `last`, asked for in ascending order."""

    def __init__(self, session: Session, topic: str, id_: str, *, last: int) -> None:
        self._session = session
        self._key = (id_, topic)
        self._last = last
        self._gaps: AsyncGenerator[Row, None] | None = None
        self._upcoming: Row | None = None
        self._ends: list[int] = []

    async def next_after(self, empty: int) -> int:
        """Return the next segment that may hold rows after an empty one; a segment beyond the last if none does.

        The following segments are probed before gaps are read: no gap covers segments whose rows were deleted.
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
        """Close the query for gaps."""
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


_POINTER = f"SELECT {selected(POINTER)} FROM {{keyspace}}.pointer2 WHERE topic = ? AND partition = ?"  # noqa: S608
_TOPICS = "SELECT DISTINCT topic, partition FROM {keyspace}.pointer2"
_META = f"SELECT {selected(META)} FROM {{keyspace}}.metajournal WHERE topic = ? AND segment = ? AND id = ?"  # noqa: S608
_METAS_OF = f"SELECT {selected(META)} FROM {{keyspace}}.metajournal WHERE topic = ? AND segment IN ? AND id IN ?"  # noqa: S608
_META_SEGMENTS = (
    "SELECT DISTINCT topic, segment FROM {keyspace}.metajournal "
    "WHERE token(topic, segment) >= ? AND token(topic, segment) <= ?"
)
_METAS = f"SELECT {selected(META)} FROM {{keyspace}}.metajournal WHERE topic = ? AND segment IN ?"  # noqa: S608
# The node still reads whole partitions of the table, but returns only the matching rows.
_METAS_OF_PARTITION = f"{_METAS} AND partition = ? ALLOW FILTERING"
_EVENTS = (
    f"SELECT {selected(EVENT)} FROM {{keyspace}}.journal "  # noqa: S608
    "WHERE id = ? AND topic = ? AND segment = ? AND seq_nr >= ? AND seq_nr <= ?"
)
QUERIES = (_POINTER, _TOPICS, _META, _METAS_OF, _META_SEGMENTS, _METAS, _METAS_OF_PARTITION, _EVENTS, *SEGMENT_QUERIES)

# How many partitions of the metajournal one query reads, for the same reason.
_SCANNED = 20
# How many heads of one partition of the metajournal one query names, and of several, each of which is searched for all.
_IDS_AT_ONCE = 100
_SHARED_IDS = 40
_KEYS_PAGE = 1000
# Partitions of a table lie on a ring of tokens, spread evenly by Cassandra's default partitioner.
_FIRST_TOKEN, _TOKENS = -(1 << 63), 1 << 64
_ALL = HeadShare(0, 1)


class CassandraReader:
    """Cassandra's StoreReader."""

    def __init__(self, session: Session, *, meta_segments: int) -> None:
        self._session = session
        self._meta_segments = meta_segments

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return a partition's replicated offset."""
        rows = await self._session.read("read replicated", _POINTER, at)
        return pointer_of(rows[0]) if rows else None

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        """Return a journal's head, or its purge marker."""
        rows = await self._session.read("read meta", _META, (topic, meta_segment(id_, self._meta_segments), id_))
        return meta_of(topic, rows[0]) if rows else None

    async def metas_of(self, topic: str, ids: Sequence[str]) -> Mapping[str, JournalMeta]:
        """Return the heads or purge markers of many journals; those of one partition of the table share a query.

        So do a few partitions on the same nodes, in which the query looks for all of its ids.
        """
        found: dict[str, JournalMeta] = {}

        async def read(together: list[tuple[int, list[str]]]) -> None:
            asked = ([segment for segment, _ in together], [id_ for _, own in together for id_ in own])
            for row in await self._session.read("read metas of", _METAS_OF, (topic, *asked)):
                meta = meta_of(topic, row)
                found[meta.id] = meta

        if failures := await each_of(read, shared(self._questions(topic, ids), most=_SHARED_IDS)):
            raise failures[0]
        return found

    def _questions(self, topic: str, ids: Sequence[str]) -> Iterator[RequestShare[tuple[int, list[str]]]]:
        """Yield some ids of one partition of the metajournal at a time."""
        by_segment: dict[int, list[str]] = {}
        for id_ in dict.fromkeys(ids):
            by_segment.setdefault(meta_segment(id_, self._meta_segments), []).append(id_)
        for segment, own in by_segment.items():
            nodes = self._session.nodes_of(_META, (topic, segment)) if len(own) < _SHARED_IDS else None
            for start in range(0, len(own), _IDS_AT_ONCE):
                some = own[start : start + _IDS_AT_ONCE]
                yield RequestShare(nodes, len(some), (segment, some))

    async def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        """Yield pages of rows, ascending, one fetched ahead."""
        check_paging(segment_size=segment_size, page_size=page_size)
        self._session.check()
        pages = self._walk(topic, id_, segment_size=segment_size, first=max(first, 1), last=last, page_size=page_size)
        async for page in one_ahead(pages):
            yield page

    async def topics(self) -> Sequence[str]:
        """List the topics with a replicated offset."""
        pages = self._session.pages("pointer2", _TOPICS, (), page_size=_KEYS_PAGE)
        return sorted({topic async for rows in pages for topic, _ in rows})

    async def metas(
        self, topic: str, *, partition: int | None = None, share: HeadShare | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield pages of heads, one fetched ahead. A share is a range of tokens."""
        check_paging(segment_size=1, page_size=page_size)
        check_share(share)
        self._session.check()
        async for page in one_ahead(self._scan(topic, partition, share or _ALL, page_size)):
            yield page

    async def _walk(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int
    ) -> AsyncGenerator[Sequence[EventRow], None]:
        """Read segment by segment; after an empty one find the next that is not."""
        segment, end = segment_of(first, segment_size), segment_of(last, segment_size)
        segments = Segments(self._session, topic, id_, last=end)
        try:
            while segment <= end:
                # Bounded by the segment: an earlier incarnation with larger segments may have left rows after it.
                bounds = (max(first, segment * segment_size + 1), min(last, (segment + 1) * segment_size))
                found = 0
                pages = self._session.pages("journal", _EVENTS, (id_, topic, segment, *bounds), page_size=page_size)
                async for rows in pages:
                    found += len(rows)
                    yield [event_of(segment, row) for row in rows]
                segment = segment + 1 if found or segment == end else await segments.next_after(segment)
        finally:
            await segments.close()

    async def _scan(
        self, topic: str, partition: int | None, share: HeadShare, page_size: int
    ) -> AsyncGenerator[Sequence[JournalMeta], None]:
        """List the partitions that hold heads, then read those of the topic, a few at a time."""
        query, filtered = (_METAS, ()) if partition is None else (_METAS_OF_PARTITION, (partition,))
        async for keys in self._session.pages("metajournal", _META_SEGMENTS, _tokens(share), page_size=_KEYS_PAGE):
            segments = [segment for found, segment in keys if found == topic]
            for start in range(0, len(segments), _SCANNED):
                asked = (topic, segments[start : start + _SCANNED], *filtered)
                async for rows in self._session.pages("metajournal", query, asked, page_size=page_size):
                    yield [meta_of(topic, row) for row in rows]


def _tokens(share: HeadShare) -> tuple[int, int]:
    """Return the first and the last token of a share (inclusive)."""
    first, end = (_FIRST_TOKEN + number * _TOKENS // share.of for number in (share.number, share.number + 1))
    return first, end - 1
