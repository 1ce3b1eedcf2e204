"""The write side of the store in Cassandra: rows in batches of one partition each, heads, deletions and offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from headrace.config import CassandraStoreSettings
from headrace.errors import Forbidden, TimedOut, Unreachable
from headrace.store.cassandra.columns import (
    EVENT,
    META,
    POINTER,
    event_values,
    meta_values,
    plain_values,
    pointer_values,
)
from headrace.store.cassandra.reader import Segments
from headrace.store.cassandra.requests import RequestShare, shared, unlogged
from headrace.store.cassandra.session import Session, each_of
from headrace.store.metrics import ROWS_WRITTEN
from headrace.store.plain_rows import PlainRows
from headrace.store.rows import (
    EventRow,
    JournalMeta,
    JournalWrite,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
    meta_segment,
    write_time,
)

__all__ = ["ABOVE_CLOCKS", "QUERIES", "CassandraWriter", "all_of", "cut", "cut_groups", "cut_plain", "size_of"]

R = TypeVar("R")

_OVERHEAD_BYTES = 150
_HEAD_BYTES = 250
# What a server counts for a row or a head without its texts: 16 bytes for each cell, and the values of fixed size.
_STORED_BYTES = 260
_STORED_HEAD_BYTES = 560
_STORED_CELL_BYTES = 32


def cut(rows: Sequence[EventRow], *, max_rows: int, max_bytes: int) -> Iterator[list[EventRow]]:
    """Yield the rows by segment, in batches; a row above the limit gets a batch of its own."""
    return cut_groups(rows, key=attrgetter("segment"), size_of=size_of, max_rows=max_rows, max_bytes=max_bytes)


def cut_groups(
    rows: Sequence[R], *, key: Callable[[R], Any], size_of: Callable[[R], int], max_rows: int, max_bytes: int
) -> Iterator[list[R]]:
    """Yield rows of one key in batches; a row above the limit gets a batch of its own."""
    for _, group in groupby(sorted(rows, key=key), key):
        batch: list[R] = []
        batch_bytes = 0
        for row in group:
            row_bytes = size_of(row)
            if batch and (len(batch) == max_rows or batch_bytes + row_bytes > max_bytes):
                yield batch
                batch, batch_bytes = [], 0
            batch.append(row)
            batch_bytes += row_bytes
        yield batch


def cut_plain(rows: PlainRows, *, max_rows: int, max_bytes: int) -> Iterator[PlainRows]:
    """Yield plain rows in the same batches as `cut`."""
    around_bytes = _OVERHEAD_BYTES + len(rows.origin or "") + len(rows.version or "")
    segments, start, batch_bytes = rows.segments(), 0, 0
    for index, payload in enumerate(rows.payloads):
        row_bytes = around_bytes + len(payload or b"")
        is_full = index - start == max_rows or batch_bytes + row_bytes > max_bytes
        if index > start and (is_full or segments[index] != segments[start]):
            yield rows[start:index]
            start, batch_bytes = index, 0
        batch_bytes += row_bytes
    if rows:
        yield rows[start:] if start else rows


def size_of(row: EventRow) -> int:
    """Estimate what a row takes in a request."""
    texts = (row.metadata, row.origin, row.version, *row.tags, *row.headers, *row.headers.values())
    return _OVERHEAD_BYTES + len(row.payload or b"") + sum(len(text) for text in texts if text)


_INSERT_EVENT = (
    f"INSERT INTO {{keyspace}}.journal (id, topic, segment, {', '.join(EVENT)}) "  # noqa: S608 - names of our own
    f"VALUES ({', '.join('?' * (len(EVENT) + 3))}) USING TIMESTAMP ?"
)
_DELETE_SEGMENT = "DELETE FROM {keyspace}.journal USING TIMESTAMP ? WHERE id = ? AND topic = ? AND segment = ?"
_DELETE_RANGE = f"{_DELETE_SEGMENT} AND seq_nr <= ?"
_PUT_META = (
    f"INSERT INTO {{keyspace}}.metajournal (topic, segment, {', '.join(META)}, created_date) "  # noqa: S608
    f"VALUES ({', '.join('?' * (len(META) + 3))}) USING TIMESTAMP ?"
)
_PUT_MARKER = f"{_PUT_META} AND TTL ?"
_PUT_POINTER = (
    f"INSERT INTO {{keyspace}}.pointer2 ({', '.join(POINTER)}) "  # noqa: S608
    f"VALUES ({', '.join('?' * len(POINTER))}) USING TIMESTAMP ?"
)
_PUT_GAP = (
    "INSERT INTO {keyspace}.journal_gaps (id, topic, after_segment, next_segment) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
)
_DELETE_SNAPSHOTS = "DELETE FROM {keyspace}.snapshot USING TIMESTAMP ? WHERE id = ? AND topic = ?"
QUERIES = (
    _INSERT_EVENT, _DELETE_SEGMENT, _DELETE_RANGE, _PUT_META, _PUT_MARKER, _PUT_POINTER, _PUT_GAP, _DELETE_SNAPSHOTS,
)  # fmt: skip

# Fewer segments than this are removed without finding out which of them hold rows.
_REMOVED_UNSEEN = 50

# Below every place and above every wall clock: a deletion at this time removes what was written by hand, in columns
# that the row itself leaves unset too, and nothing else. A whole partition's deletion costs readers nothing.
ABOVE_CLOCKS = write_time(Place(0, 0)) - 1


class CassandraWriter:
    """Cassandra's StoreWriter.

    Rows of one (segment, seq_nr, timestamp) at two places have a deletion between them in every log: an append that
    repeats a seq_nr is void until a purge. So the later row may leave unset what the earlier one had.
    """

    def __init__(
        self, session: Session, settings: CassandraStoreSettings, *, meta_segments: int, marker_ttl_s: float
    ) -> None:
        self._session = session
        self._max_rows = settings.batch_max_rows
        self._max_bytes = settings.batch_max_bytes
        self._shared_bytes = settings.shared_batch_max_bytes
        self._meta_segments = meta_segments
        self._marker_ttl_s = max(1, int(marker_ttl_s))
        self._rows_written = ROWS_WRITTEN.labels("cassandra")

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        """Write rows of one journal, in batches of one partition."""
        self._session.check()
        batches = list(self._cut(rows))
        if len(batches) == 1:
            await self._write_batch(topic, id_, batches[0])
        else:
            await all_of(self._write_batch(topic, id_, batch) for batch in batches)
        self._rows_written.inc(len(rows))

    async def write_gaps(self, topic: str, id_: str, gaps: Sequence[SegmentGap]) -> None:
        """Store where a journal's numbers jump."""
        self._session.check()
        noted = [(id_, topic, gap.after, gap.next, write_time(gap.place)) for gap in gaps]
        await all_of(self._write("write gaps", _PUT_GAP, values) for values in noted)

    async def write_meta(self, meta: JournalMeta) -> None:
        """Write a head or a purge marker."""
        segment = meta_segment(meta.id, self._meta_segments)
        values = (meta.topic, segment, *meta_values(meta), write_time(meta.place))
        if meta.is_purged:
            await self._write("write marker", _PUT_MARKER, (*values, self._marker_ttl_s))
        else:
            await self._write("write meta", _PUT_META, values)

    async def write_journals(self, journals: Sequence[JournalWrite]) -> None:
        """Write the rows of all journals, then their heads, those of one partition of the table together."""
        self._session.check()
        ready: list[JournalMeta] = []
        alone: list[JournalWrite] = []

        async def write(together: Sequence[JournalWrite]) -> None:
            try:
                await self._write_together(together)
            except Exception as failure:
                if len(together) == 1 or isinstance(failure, TimedOut | Unreachable | Forbidden):
                    raise
                alone.extend(together)  # one of them is refused, and the others must not suffer
            else:
                ready.extend(journal.meta for journal in together)

        failures = await each_of(write, shared(map(self._share_of, journals), most=self._shared_bytes))
        failures += await each_of(write, [[journal] for journal in alone])
        heads = shared(map(self._share_of_heads, self._cut_heads(ready)), most=self._shared_bytes)
        failures += await each_of(self._write_heads, heads)
        if failures:
            raise failures[0]

    async def delete_rows(self, topic: str, id_: str, deletions: Sequence[RowDeletion], *, at: Place) -> None:
        """Remove rows of one journal."""
        self._session.check()
        await all_of(self._delete(topic, id_, deletion, write_time(at)) for deletion in deletions)

    async def delete_snapshots(self, topic: str, id_: str, *, at: Place) -> None:
        """Remove the snapshots at or below the place."""
        await self._write("delete snapshots", _DELETE_SNAPSHOTS, (write_time(at), id_, topic))

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        """Move a partition's replicated offset forward."""
        await self._write("move replicated", _PUT_POINTER, pointer_values(offset))

    async def _write_batch(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        # Bound here and not before, so that the first batches travel while the next are made.
        await self._session.write("write rows", self._batch(topic, id_, rows))

    async def _write_together(self, journals: Sequence[JournalWrite]) -> None:
        """Write the rows of journals in one request, unless it is a single journal."""
        if len(journals) == 1:
            if journals[0].rows:
                await self.write_rows(journals[0].meta.topic, journals[0].meta.id, journals[0].rows)
            return
        batch = unlogged()
        for meta, rows in journals:
            self._fill(batch, meta.topic, meta.id, rows)
        await self._session.write("write rows", batch)
        self._rows_written.inc(sum(len(journal.rows) for journal in journals))

    def _share_of(self, journal: JournalWrite) -> RequestShare[JournalWrite]:
        """Return a journal with the nodes that hold its rows; None if these are in several partitions, or none."""
        meta, rows = journal
        segments = _segments_of(rows) if len(rows) <= self._max_rows else ()
        if len(segments) != 1:
            return RequestShare(None, 0, journal)
        size_bytes = _stored_size_of(rows)
        if size_bytes > self._shared_bytes:
            return RequestShare(None, size_bytes, journal)
        return RequestShare(
            self._session.nodes_of(_INSERT_EVENT, (meta.id, meta.topic, *segments)), size_bytes, journal
        )

    def _share_of_heads(self, heads: list[_Head]) -> RequestShare[list[_Head]]:
        size_bytes = sum(map(_stored_size_of_head, heads))
        return RequestShare(self._session.nodes_of(_PUT_META, heads[0][:2]), size_bytes, heads)

    def _batch(self, topic: str, id_: str, rows: Sequence[EventRow]) -> Any:  # noqa: ANN401 - the driver has no types
        batch = unlogged()
        self._fill(batch, topic, id_, rows)
        return batch

    def _fill(self, batch: Any, topic: str, id_: str, rows: Sequence[EventRow]) -> None:  # noqa: ANN401
        """Add the rows of one partition to a batch."""
        where = (id_, topic, rows.segments()[0] if isinstance(rows, PlainRows) else rows[0].segment)
        batch.add(self._session.bind(_DELETE_SEGMENT, (ABOVE_CLOCKS, *where)))
        if isinstance(rows, PlainRows):
            self._session.fill_encoded(batch, _INSERT_EVENT, where, plain_values(rows))
        else:
            self._session.fill(batch, _INSERT_EVENT, where, map(event_values, rows))

    def _cut(self, rows: Sequence[EventRow]) -> Iterator[Sequence[EventRow]]:
        limits = {"max_rows": self._max_rows, "max_bytes": self._max_bytes}
        return cut_plain(rows, **limits) if isinstance(rows, PlainRows) else cut(rows, **limits)

    def _cut_heads(self, metas: Sequence[JournalMeta]) -> Iterator[list[_Head]]:
        heads = [_Head(meta.topic, meta_segment(meta.id, self._meta_segments), meta) for meta in metas]
        return cut_groups(
            heads, key=_partition_of, size_of=_size_of_head, max_rows=self._max_rows, max_bytes=self._max_bytes
        )

    async def _write_heads(self, partitions: Sequence[Sequence[_Head]]) -> None:
        """Write heads and purge markers, which are given by partition of the table."""
        batch = unlogged()
        for heads in partitions:
            self._fill_heads(batch, heads)
        await self._session.write("write metas", batch)

    def _fill_heads(self, batch: Any, heads: Sequence[_Head]) -> None:  # noqa: ANN401
        where = heads[0][:2]
        values = [(*meta_values(meta), write_time(meta.place)) for _, _, meta in heads if not meta.is_purged]
        markers = [(*meta_values(meta), write_time(meta.place)) for _, _, meta in heads if meta.is_purged]
        self._session.fill(batch, _PUT_META, where, values)
        self._session.fill(batch, _PUT_MARKER, where, [(*marker, self._marker_ttl_s) for marker in markers])

    async def _delete(self, topic: str, id_: str, deletion: RowDeletion, time: int) -> None:
        segment, to, until = deletion
        if until is not None:
            await self._delete_segments(topic, id_, segment, until, time)
        elif to is None:
            await self._write("delete rows", _DELETE_SEGMENT, (time, id_, topic, segment))
        else:
            await self._write("delete rows", _DELETE_RANGE, (time, id_, topic, segment, to))

    async def _delete_segments(self, topic: str, id_: str, first: int, last: int, time: int) -> None:
        """Remove whole segments; if there are many, only those that hold rows."""
        if last - first < _REMOVED_UNSEEN:
            whole = [RowDeletion(segment, None) for segment in range(first, last + 1)]
            await all_of(self._delete(topic, id_, deletion, time) for deletion in whole)
            return
        segments = Segments(self._session, topic, id_, last=last)
        try:
            async for some in segments.existing(first):
                await all_of(self._delete(topic, id_, RowDeletion(segment, None), time) for segment in some)
        finally:
            await segments.close()

    async def _write(self, operation: str, query: str, values: Sequence[object]) -> None:
        self._session.check()
        await self._session.write(operation, self._session.bind(query, values))


class _Head(NamedTuple):
    """A head, and the partition of the table that holds it."""

    topic: str
    segment: int
    meta: JournalMeta


def _partition_of(head: _Head) -> tuple[str, int]:
    return head.topic, head.segment


def _segments_of(rows: Sequence[EventRow]) -> set[int]:
    return set(rows.segments()) if isinstance(rows, PlainRows) else {row.segment for row in rows}


def _stored_size_of(rows: Sequence[EventRow]) -> int:
    """Estimate what a server counts for rows."""
    if isinstance(rows, PlainRows):
        fixed_bytes = _STORED_BYTES + _bytes_of((rows.origin or "", rows.version or ""))
        return fixed_bytes * len(rows) + sum(len(payload) for payload in rows.payloads if payload)
    return sum(_stored_size_of_row(row) for row in rows)


def _stored_size_of_row(row: EventRow) -> int:
    cells = (*row.tags, *row.headers, *row.headers.values())
    texts = (text for text in (row.metadata, row.origin, row.version, *cells) if text)
    return _STORED_BYTES + len(row.payload or b"") + _STORED_CELL_BYTES * len(cells) + _bytes_of(texts)


def _stored_size_of_head(head: _Head) -> int:
    meta = head.meta
    cells = (*meta.properties, *meta.properties.values())
    texts = (text for text in (meta.id, meta.origin, meta.metadata, *cells) if text)
    return _STORED_HEAD_BYTES + _STORED_CELL_BYTES * len(cells) + _bytes_of(texts)


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _size_of_head(head: _Head) -> int:
    """Estimate what a head takes in a request."""
    meta = head.meta
    texts = (meta.id, meta.origin, meta.metadata, *meta.properties, *meta.properties.values())
    return _HEAD_BYTES + sum(len(text) for text in texts if text)


async def all_of(writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the writes concurrently; the first failure is raised after all have ended."""
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
