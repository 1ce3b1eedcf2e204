"""The past of journals: the timeline of one, the records that have left the log, and how far a topic is replicated.

Retention removes only what is replicated, so the store has the events of all records that have left the log, but for
journals that were purged and events that were deleted since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import RecordsLost
from headrace.journal.append import AppendOptions, record_of
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import Event, Record, TopicPartition
from headrace.protocol import (
    Append,
    Delete,
    Entry,
    Mark,
    Poison,
    Purge,
    Stretch,
    Verdict,
    entries_of,
    exists,
    step,
    stored_event,
    stretches_of,
)
from headrace.store import EventRow, JournalMeta, StoreReader

__all__ = ["Moment", "PartitionStats", "RemovedRecords", "describe", "history", "partition_stats", "removed_records"]

_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Moment:
    """One action of the timeline. If `offset` is None, it is known only from the store: its records left the log."""

    offset: int | None
    timestamp_ms: int | None
    what: str
    effect: str
    reason: str = ""
    partition: int | None = None


async def history(
    log: Log, store: StoreReader, topology: Topology, id_: str, *, with_marks: bool = False
) -> AsyncIterator[Moment]:
    """Yield the timeline of a journal in order: first what only the store has, then the actions in the log.

    A journal that moved when its topic grew has its earlier records in another partition.
    """
    stretches = await stretches_of(log, await topology.grown(), id_)
    meta = await _before(store, topology.topic, id_, stretches[0]) if stretches[0].is_cut else None
    if meta is not None:
        numbers = f"events {meta.delete_to + 1} to {meta.seq_nr}" if meta.seq_nr > meta.delete_to else "no events"
        yield Moment(None, meta.updated_ms, f"{numbers}, up to {meta.seq_nr}", "stored", "older than the log")
    async for entry in entries_of(log, stretches, id_):
        if isinstance(entry.action, Mark) and not with_marks:
            continue
        done = step(meta, entry)
        meta = done.meta
        at = (entry.offset, entry.timestamp_ms)
        yield Moment(*at, describe(entry), done.effect.value, done.reason, entry.partition)


def describe(entry: Entry) -> str:
    """Return a short description of an action."""
    match entry.action:
        case Append(first=first, last=last):
            return f"append event {first}" if first == last else f"append events {first} to {last}"
        case Delete(to=to):
            return f"delete events up to {to}"
        case Purge(last_append=None):
            return "purge"
        case Purge():
            return "purge if nothing was appended since"
        case Mark(id=mark_id):
            return f"mark {mark_id}"
        case Poison():
            return "a record that can't be decoded"
        case Verdict(is_skip=True, held_from=held_from):
            return f"skip the record at offset {held_from}"
        case Verdict(held_from=held_from):
            return f"release what is held from offset {held_from}"


async def _before(store: StoreReader, topic: str, id_: str, stretch: Stretch) -> JournalMeta | None:
    """Return the state before the first action in the log, as far as the rows show it; None if there was none."""
    stored, first = await store.meta(topic, id_), stretch.first
    if stored is None or stored.record_id is None:
        return None
    older = [0]
    async for page in store.rows(
        topic, id_, segment_size=stored.segment_size, first=stored.delete_to + 1, last=stored.seq_nr
    ):
        older += [row.seq_nr for row in page if row.place < first and row.record_id == stored.record_id]
    is_older = stored.place < first
    if not is_older and len(older) == 1:
        return None
    return JournalMeta(
        topic=topic,
        id=id_,
        generation=stored.generation,
        partition=stretch.at.partition,
        offset=stretch.start - 1,
        seq_nr=stored.seq_nr if is_older else max(older),
        delete_to=stored.delete_to if is_older else min(stored.delete_to, max(older)),
        segment_size=stored.segment_size,
        is_purged=stored.is_purged and is_older,
        record_id=stored.record_id,
        updated_ms=stored.updated_ms if is_older else None,
    )


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


class PartitionStats(NamedTuple):
    """One partition: the offsets that the log holds, and the last one that is replicated (None: none yet)."""

    partition: int
    start: int
    end: int
    replicated: int | None

    @property
    def lag(self) -> int:
        """The number of offsets that are not replicated yet."""
        return self.end - 1 - (self.replicated if self.replicated is not None else self.start - 1)


async def partition_stats(log: Log, store: StoreReader, topology: Topology) -> list[PartitionStats]:
    """Return what the log and the store have of every partition."""
    stats = []
    layout = await topology.layout()
    for partition in range(layout.partitions):
        at = TopicPartition(topology.topic, partition)
        bounds, replicated = await log.bounds(at), layout.of_topic(await store.replicated(at))
        offset = replicated.offset if replicated is not None else None
        stats.append(PartitionStats(partition, bounds.start, bounds.end, offset))
    return stats
