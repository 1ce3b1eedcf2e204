"""What the log adds to the journals of one partition: their actions above the replicated offset, by key.

Read without values; the actions are kept until the journals are known, 300 bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.errors import OffsetOutOfRange, ReadAgain, RecordsLost
from headrace.journal import Layout
from headrace.journal.actions import Mark
from headrace.journal.folding import Entry
from headrace.journal.partition_batch import BOUNDARY_KEY, entry_of
from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.pipeline.tables.counting import Counts
from headrace.store import Place, ReplicatedOffset, StoreReader

__all__ = ["Head", "Stretch", "read_head", "replicated_of", "stretches"]

_ATTEMPTS = 5
_RECORDS_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets of a partition, from `start` up to `end` (exclusive), of one generation."""

    at: TopicPartition
    generation: int
    start: int
    end: int


@dataclass(slots=True)
class Head:
    """The actions of each key, in order; and how far the partition was replicated before."""

    replicated: ReplicatedOffset | None
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The last place that was replicated."""
        return Place(-1, -1) if self.replicated is None else Place(self.replicated.generation, self.replicated.offset)


def stretches(
    layout: Layout, partition: int, replicated: Mapping[int, ReplicatedOffset | None], ends: Mapping[int, int]
) -> list[Stretch]:
    """Return where the log may hold what the store lacks of the partition's keys, in the order of the keys' records.

    A key that moved here has its earlier records in other partitions; they count until replication has passed the
    boundary there.
    """
    found = []
    last = layout.generation
    for number in range(layout.first_generation(0), last + 1):
        generation = layout.generations[number]
        for of in [partition] if number == last else range(generation.partitions):
            known = replicated.get(of)
            start = max(generation.boundaries.get(of, 0), known.offset + 1 if known is not None else 0)
            end = ends[of] if number == last else min(ends[of], layout.generations[number + 1].boundaries[of])
            if start < end:
                found.append(Stretch(TopicPartition(layout.topic, of), number, start, end))
    return found


async def replicated_of(store: StoreReader, layout: Layout, partition: int) -> ReplicatedOffset | None:
    """Return how far a partition of the topic, as it is, was replicated."""
    found = await store.replicated(TopicPartition(layout.topic, partition))
    return found if found is not None and found.generation >= layout.first_generation(partition) else None


async def read_head(
    log: Log,
    store: StoreReader,
    layout: Layout,
    partition: int,
    *,
    ends: Mapping[int, int],
    keys: frozenset[str] | None,
    counts: Counts,
) -> Head:
    """Read the actions, of `keys` only if given. Raises RecordsLost."""
    of = range(layout.partitions) if layout.generation > layout.first_generation(0) else [partition]
    replicated = {each: await replicated_of(store, layout, each) for each in of}
    for _ in range(_ATTEMPTS):
        scan = _Scan(layout, partition, replicated[partition], keys)
        try:
            for stretch in stretches(layout, partition, replicated, ends):
                await scan.read(log, stretch, replicated[stretch.at.partition], counts)
            return scan.head
        except OffsetOutOfRange as error:
            before = replicated
            replicated = {each: await replicated_of(store, layout, each) for each in of}
            if replicated == before:  # else what left the log reached the store first
                raise RecordsLost(error.topic, error.partition, error.offset, error.start - 1) from error
    raise ReadAgain(layout.topic, "its records kept moving from the log to the store")


class _Scan:
    """One pass over the stretches."""

    def __init__(
        self, layout: Layout, partition: int, replicated: ReplicatedOffset | None, keys: frozenset[str] | None
    ) -> None:
        self.head = Head(replicated)
        self._layout = layout
        self._home = TopicPartition(layout.topic, partition)
        self._has_moves = layout.generation > 0
        self._keys = None if keys is None else {*(key.encode() for key in keys), BOUNDARY_KEY.encode()}

    async def read(self, log: Log, stretch: Stretch, replicated: ReplicatedOffset | None, counts: Counts) -> None:
        log_time_ms = replicated.log_time_ms if replicated is not None else 0
        batches = log.read(stretch.at, stretch.start, stretch.end, headers_only=True, max_records=_RECORDS_AT_ONCE)
        async for batch in batches:
            counts.headers += len(batch.records)
            for record in batch.records:
                if record.offset >= stretch.end:
                    return
                log_time_ms = max(log_time_ms, record.timestamp_ms)
                if self._keys is not None and record.key not in self._keys:
                    continue
                if not self._take(record, stretch, log_time_ms):
                    return

    def _take(self, record: Record, stretch: Stretch, log_time_ms: int) -> bool:
        """Add a record; False at the boundary of a growth that is not published: nobody has written behind it."""
        entry = entry_of(record, stretch.generation, log_time_ms=log_time_ms)
        if entry is None:
            return True
        if isinstance(entry.action, Mark):
            return (entry.action.generation or 0) <= self._layout.generation
        if not self._has_moves or self._is_ours(entry, stretch):
            self.head.entries.setdefault(entry.id, []).append(msgspec.structs.replace(entry, record=None))
        return True

    def _is_ours(self, entry: Entry, stretch: Stretch) -> bool:
        return self._layout.route(entry.id) == self._home and self._layout.is_home(
            entry.id, stretch.generation, stretch.at
        )
