"""The read side of the Cassandra store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from headrace.model import TopicPartition
from headrace.store.arguments import check_paging
from headrace.store.cassandra.columns import EVENT, META, POINTER, event_of, meta_of, pointer_of, selected
from headrace.store.cassandra.segments import QUERIES as SEGMENT_QUERIES
from headrace.store.cassandra.segments import Segments
from headrace.store.cassandra.session import Session
from headrace.store.paging import one_ahead
from headrace.store.rows import EventRow, JournalMeta, ReplicatedOffset, meta_segment, segment_of

__all__ = ["QUERIES", "CassandraReader"]

_POINTER = f"SELECT {selected(POINTER)} FROM {{keyspace}}.pointer2 WHERE topic = ? AND partition = ?"  # noqa: S608
_TOPICS = "SELECT DISTINCT topic, partition FROM {keyspace}.pointer2"
_META = f"SELECT {selected(META)} FROM {{keyspace}}.metajournal WHERE topic = ? AND segment = ? AND id = ?"  # noqa: S608
_META_SEGMENTS = "SELECT DISTINCT topic, segment FROM {keyspace}.metajournal"
_METAS = f"SELECT {selected(META)} FROM {{keyspace}}.metajournal WHERE topic = ? AND segment IN ?"  # noqa: S608
# The partitions of the table are read all the same, but what is not wanted stays on the node.
_METAS_OF_PARTITION = f"{_METAS} AND partition = ? ALLOW FILTERING"
_EVENTS = (
    f"SELECT {selected(EVENT)} FROM {{keyspace}}.journal "  # noqa: S608
    "WHERE id = ? AND topic = ? AND segment = ? AND seq_nr >= ? AND seq_nr <= ?"
)
QUERIES = (_POINTER, _TOPICS, _META, _META_SEGMENTS, _METAS, _METAS_OF_PARTITION, _EVENTS, *SEGMENT_QUERIES)

# How many partitions one question names: more would burden the node that answers it.
_SCANNED = 20
_KEYS_PAGE = 1000


class CassandraReader:
    """Cassandra's StoreReader."""

    def __init__(self, session: Session, *, meta_segments: int) -> None:
        self._session = session
        self._meta_segments = meta_segments

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return how far a partition has come."""
        rows = await self._session.read("read replicated", _POINTER, at)
        return pointer_of(rows[0]) if rows else None

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        """Return a journal's head, or its purge marker."""
        rows = await self._session.read("read meta", _META, (topic, meta_segment(id_, self._meta_segments), id_))
        return meta_of(topic, rows[0]) if rows else None

    async def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        """Yield pages of rows, rising, one fetched ahead."""
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
        self, topic: str, *, partition: int | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield pages of heads, one fetched ahead."""
        check_paging(segment_size=1, page_size=page_size)
        self._session.check()
        async for page in one_ahead(self._scan(topic, partition, page_size)):
            yield page

    async def _walk(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int
    ) -> AsyncGenerator[Sequence[EventRow], None]:
        """Go from segment to segment; where one is empty, ask for the next one that is not."""
        segment, end = segment_of(first, segment_size), segment_of(last, segment_size)
        segments = Segments(self._session, topic, id_, last=end)
        try:
            while segment <= end:
                # Bounded by the segment: an earlier incarnation with larger segments may have left rows behind it.
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
        self, topic: str, partition: int | None, page_size: int
    ) -> AsyncGenerator[Sequence[JournalMeta], None]:
        """List the partitions that hold heads, then read those of the topic, a few at a time."""
        query, filtered = (_METAS, ()) if partition is None else (_METAS_OF_PARTITION, (partition,))
        async for keys in self._session.pages("metajournal", _META_SEGMENTS, (), page_size=_KEYS_PAGE):
            segments = [segment for found, segment in keys if found == topic]
            for start in range(0, len(segments), _SCANNED):
                asked = (topic, segments[start : start + _SCANNED], *filtered)
                async for rows in self._session.pages("metajournal", query, asked, page_size=page_size):
                    yield [meta_of(topic, row) for row in rows]
