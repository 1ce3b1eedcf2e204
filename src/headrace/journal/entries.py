"""The entries of one key as a partition's records give them: the one way to scan a log for a journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from headrace.journal.actions import Mark
from headrace.journal.folding import Entry
from headrace.journal.layout import Layout
from headrace.journal.partition_batch import BOUNDARY_KEY, entry_of, next_generation
from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.store import Place

__all__ = ["EntryScanner", "Stretch", "entries_of", "stretches_of"]


class EntryScanner:
    """Takes the records of one partition, rising, and gives the key's entries, each once, with its generation."""

    def __init__(self, id_: str, generation: int, *, after: int = -1) -> None:
        self.generation = generation
        self.keys = (id_.encode(), BOUNDARY_KEY.encode())
        self._seen = after

    def take(self, record: Record) -> Entry | None:
        """Return the key's entry; None for what is another's, was seen before, or only begins a generation."""
        if record.key not in self.keys or record.offset <= self._seen:
            return None
        self._seen = record.offset
        entry = entry_of(record, self.generation)
        if entry is not None and isinstance(entry.action, Mark):
            self.generation = next_generation(self.generation, entry.action)
        return entry if record.key == self.keys[0] else None


class Stretch(NamedTuple):
    """Records of a partition that may be a key's: offsets from `start` up to `end` (exclusive). `is_cut`: some left."""

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
    """Return where the log holds a key's records without a hole: behind the last part of them that left the log."""
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
