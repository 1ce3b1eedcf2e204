"""Records of a partition that have left the log: made again from the rows of the store, in the order of their offsets.

Retention removes only what is replicated, so the store has the events of all of them, but for journals that were purged
and events that were deleted since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from headrace.errors import RecordsLost
from headrace.journal.append import AppendOptions, record_of
from headrace.model import Event, Record, TopicPartition
from headrace.protocol import exists, stored_event
from headrace.store import EventRow, JournalMeta, StoreReader

__all__ = ["RemovedRecords", "removed_records"]

_AT_ONCE = 10_000


class RemovedRecords(NamedTuple):
    """The appends below offset `end`, and the journals of which a purge has removed some that may lie there."""

    records: Sequence[Record]
    end: int
    purged: Sequence[str]


async def removed_records(
    store: StoreReader, at: TopicPartition, *, first: int, end: int, limit: int = _AT_ONCE
) -> RemovedRecords:
    """Return the appends from offset `first` up to `end` (exclusive), or the first ones of them if they are many.

    The topic has never grown. Raises RecordsLost if the store does not have them.
    """
    replicated = await store.replicated(at)
    if replicated is None or replicated.offset < end - 1:
        lost_from = first if replicated is None else max(first, replicated.offset + 1)
        raise RecordsLost(at.topic, at.partition, lost_from, end - 1)
    found = _LowestOffsets(end, limit)
    purged: list[str] = []
    async for metas in store.metas(at.topic, partition=at.partition):
        for meta in metas:
            if meta.generation != replicated.generation or meta.offset < first:
                continue
            purge = meta.purged_at
            if purge is not None and purge.generation == meta.generation and purge.offset >= first:
                purged.append(meta.id)
            if exists(meta):
                await _add_rows(store, meta, found, first)
    rows = found.taken()
    purged += await _purged_meanwhile(store, at.topic, rows)
    return RemovedRecords([_record(at, offset, *rows[offset]) for offset in sorted(rows)], found.end, purged)


class _LowestOffsets:
    """The rows of appends with the lowest offsets; `end` falls when there are more than fit."""

    def __init__(self, end: int, limit: int) -> None:
        self.end = end
        self._limit = limit
        self._rows: dict[int, tuple[JournalMeta, list[EventRow]]] = {}

    def add(self, meta: JournalMeta, row: EventRow) -> None:
        """Add a row, unless it lies beyond the end."""
        if row.offset < self.end:
            self._rows.setdefault(row.offset, (meta, []))[1].append(row)
            if len(self._rows) > 2 * self._limit:
                self.taken()

    def taken(self) -> dict[int, tuple[JournalMeta, list[EventRow]]]:
        """Return the rows by offset, as many as fit."""
        if len(self._rows) > self._limit:
            self.end = sorted(self._rows)[self._limit]
            self._rows = {offset: rows for offset, rows in self._rows.items() if offset < self.end}
        return self._rows


async def _add_rows(store: StoreReader, meta: JournalMeta, found: _LowestOffsets, first: int) -> None:
    async for row in _rows_of(store, meta):
        if row.offset >= found.end:
            return  # offsets rise with the numbers
        if row.offset >= first and row.generation == meta.generation:
            found.add(meta, row)


async def _rows_of(store: StoreReader, meta: JournalMeta) -> AsyncIterator[EventRow]:
    """Yield the rows of a journal as it is now."""
    numbers = {"first": meta.delete_to + 1, "last": meta.seq_nr}
    async for page in store.rows(meta.topic, meta.id, segment_size=meta.segment_size, **numbers):
        for row in page:
            if row.record_id == meta.record_id:
                yield row


async def _purged_meanwhile(
    store: StoreReader, topic: str, rows: dict[int, tuple[JournalMeta, list[EventRow]]]
) -> list[str]:
    """Return the journals that were purged while their rows were read."""
    read = {meta.id: meta.record_id for meta, _ in rows.values()}
    now = await store.metas_of(topic, list(read)) if read else {}
    return [id_ for id_, record_id in read.items() if id_ not in now or now[id_].record_id != record_id]


def _record(at: TopicPartition, offset: int, meta: JournalMeta, rows: Sequence[EventRow]) -> Record:
    """Return the record that rows came from."""
    stored = [stored_event(meta.id, row) for row in rows]
    events = [Event(each.seq_nr, each.payload, each.tags) for each in stored]
    options = AppendOptions(
        metadata=stored[0].metadata,
        payload_metadata=stored[0].payload_metadata,
        headers=stored[0].headers,
        expire_after=stored[0].expire_after,
        origin=stored[0].origin,
        version=stored[0].version,
    )
    new = record_of(at, meta.id, events, options)
    return Record(*at, offset, rows[0].timestamp_ms, new.key, new.value, new.headers)
