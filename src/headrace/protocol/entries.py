"""Entries, which are decoded records with their place: those of a batch, by key, and those of one journal in a log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.protocol.actions import Action, Mark
from headrace.protocol.fold import Entry
from headrace.protocol.headers import ACTION_HEADER, decode_action, lone_append
from headrace.protocol.layout import Layout
from headrace.store import DEFAULT_SEGMENT_SIZE, Place

__all__ = [
    "BOUNDARY_KEY",
    "EntryScanner",
    "PartitionBatch",
    "Stretch",
    "bare_entries",
    "batch_of",
    "entries_of",
    "entry_of",
    "next_generation",
    "stretches_of",
]

# The key of the marks that begin a generation. A scan of the log for one key must see them too.
BOUNDARY_KEY = "headrace-boundary"


@dataclass(slots=True)
class PartitionBatch:
    """The entries of a batch by key, in order, and the state of the partition after the batch."""

    generation: int
    log_time_ms: int
    segment_size: int = DEFAULT_SEGMENT_SIZE
    by_id: dict[str, list[Entry]] = field(default_factory=dict)
    skipped: int = 0


def entry_of(
    record: Record, generation: int, *, log_time_ms: int = 0, segment_size: int = DEFAULT_SEGMENT_SIZE
) -> Entry | None:
    """Return the entry of a record; None if the record has no key, is not a journal's, or is of an unknown kind."""
    action = decode_action(record)
    if action is None or record.key is None:
        return None
    return Entry(
        topic=record.topic,
        id=record.key.decode(errors="surrogateescape"),
        generation=generation,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        action=action,
        log_time_ms=log_time_ms,
        segment_size=segment_size,
        record=record,
    )


def bare_entries(records: Iterable[Record], generation: int) -> list[Entry]:
    """Return the entries of records, without the records themselves, leaving out those that have none.

    It returns what `entry_of` does, without the record. Nearly all records are plain appends, of few keys: these are
    decoded here in one go, and each key once.
    """
    entries: list[Entry] = []
    ids: dict[bytes, str] = {}
    for record in records:
        headers, key = record.headers, record.key
        action: Action | None = None
        if len(headers) == 1 and headers[0][0] == ACTION_HEADER and (written := headers[0][1]) is not None:
            action = lone_append(written)
        if action is None:
            action = decode_action(record)
        if action is None or key is None:
            continue
        id_ = ids.get(key)
        if id_ is None:
            try:
                id_ = ids[key] = key.decode()
            except UnicodeDecodeError:  # no journal has such an id
                continue
        entries.append(
            Entry(
                topic=record.topic,
                id=id_,
                generation=generation,
                partition=record.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp_ms,
                action=action,
            )
        )
    return entries


def next_generation(generation: int, mark: Mark) -> int:
    """Return the generation after a mark: the first mark of a higher one begins it."""
    return max(generation, mark.generation or 0)


def batch_of(
    records: Iterable[Record], generation: int, *, log_time_ms: int = 0, segment_size: int = DEFAULT_SEGMENT_SIZE
) -> PartitionBatch:
    """Group records by key. Log time is the running maximum of timestamps.

    `generation` is that of the first record; a Mark may begin the next one, or change the segment size.
    """
    batch = PartitionBatch(generation, log_time_ms, segment_size)
    for record in records:
        batch.log_time_ms = max(batch.log_time_ms, record.timestamp_ms)
        entry = entry_of(record, batch.generation, log_time_ms=batch.log_time_ms, segment_size=batch.segment_size)
        if entry is None:
            batch.skipped += 1
        elif not isinstance(entry.action, Mark):
            batch.by_id.setdefault(entry.id, []).append(entry)
        else:
            batch.generation = next_generation(batch.generation, entry.action)
            batch.segment_size = entry.action.segment_size or batch.segment_size
    return batch


class EntryScanner:
    """Finds the entries of one key among the records of a partition, each once, with its generation."""

    def __init__(self, id_: str, generation: int, *, after: int = -1) -> None:
        self.generation = generation
        self.keys = (id_.encode(), BOUNDARY_KEY.encode())
        self._seen = after

    def take(self, record: Record) -> Entry | None:
        """Return the key's entry; None if the record is another key's, was seen before, or only begins a generation."""
        if record.key not in self.keys or record.offset <= self._seen:
            return None
        self._seen = record.offset
        entry = entry_of(record, self.generation)
        if entry is not None and isinstance(entry.action, Mark):
            self.generation = next_generation(self.generation, entry.action)
        return entry if record.key == self.keys[0] else None


class Stretch(NamedTuple):
    """A range of a partition that may hold a key's records: offsets from `start` up to `end` (exclusive).

    `is_cut`: earlier records of the range have left the log.
    """

    at: TopicPartition
    start: int
    end: int
    generation: int
    is_cut: bool

    @property
    def first(self) -> Place:
        """The lowest place that a record of the stretch can have."""
        return Place(self.generation, self.start)


async def stretches_of(log: Log, layout: Layout, id_: str) -> list[Stretch]:
    """Return where the log holds a key's records without a hole: after the last range of which some left the log."""
    stretches: list[Stretch] = []
    for stay in layout.stays(id_):
        bounds = await log.bounds(stay.at)
        start = max(stay.start, bounds.start)
        is_cut = bounds.start > stay.start
        if is_cut:
            stretches.clear()
        end = bounds.end if stay.end is None else min(stay.end, bounds.end)
        generation = layout.generation_at(stay.at.partition, start)
        stretches.append(Stretch(stay.at, start, max(start, end), generation, is_cut))
    return stretches


async def entries_of(log: Log, stretches: list[Stretch], id_: str) -> AsyncIterator[Entry]:
    """Yield a key's entries in the order of its places, through all the partitions that it was in."""
    for at, start, end, generation, _ in stretches:
        if end <= start:
            continue
        scanner = EntryScanner(id_, generation, after=start - 1)
        async for batch in log.read(at, start, end):
            for record in batch.records:
                if record.offset < end and (entry := scanner.take(record)) is not None:
                    yield entry
