"""An eventual store in memory, by the words of the port: the highest place wins, deletions win at their own place.

For simulations: thousands of histories, each operation a place where a client can be held up or die.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model import TopicPartition
from headrace.store import (
    EventRow,
    HeadShare,
    JournalMeta,
    JournalWrite,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
    SnapshotRow,
    Tags,
    meta_segment,
)

__all__ = ["MemoryStore", "Tables"]

Journal = tuple[str, str]
Before = Callable[[str], Awaitable[None]]


@dataclass
class Tables:
    """What is stored; any number of MemoryStores share it."""

    rows: dict[Journal, dict[tuple[int, int, int], EventRow]] = field(default_factory=lambda: defaultdict(dict))
    deletions: dict[Journal, list[tuple[RowDeletion, Place]]] = field(default_factory=lambda: defaultdict(list))
    metas: dict[Journal, JournalMeta] = field(default_factory=dict)
    replicated: dict[TopicPartition, ReplicatedOffset] = field(default_factory=dict)
    snapshots: dict[Journal, dict[int, SnapshotRow]] = field(default_factory=lambda: defaultdict(dict))
    snapshot_deletions: dict[Journal, list[tuple[int | None, Place]]] = field(default_factory=lambda: defaultdict(list))
    settings: dict[str, str] = field(default_factory=dict)

    def state(self) -> tuple[dict[Journal, JournalMeta], dict[Journal, list[EventRow]]]:
        """Return heads and rows, to be compared."""
        rows = {journal: sorted(found.values(), key=_order) for journal, found in self.rows.items() if found}
        return dict(self.metas), rows


def _order(row: EventRow) -> tuple[int, int]:
    return row.seq_nr, row.timestamp_ms


def _is_gone(row: EventRow, deletions: Sequence[tuple[RowDeletion, Place]]) -> bool:
    return any(
        gone.segment <= row.segment <= (gone.segment if gone.until is None else gone.until)
        and (gone.to is None or row.seq_nr <= gone.to)
        and row.place <= place
        for gone, place in deletions
    )


async def _at_once(_: str) -> None:
    return None


class MemoryStore:
    """One client of the tables; all ports in one. `before` is awaited before every operation, with its name."""

    def __init__(self, tables: Tables | None = None, *, before: Before = _at_once) -> None:
        self.tables = tables if tables is not None else Tables()
        self._before = before

    @property
    def reader(self) -> MemoryStore:
        return self

    @property
    def writer(self) -> MemoryStore:
        return self

    @property
    def snapshots(self) -> MemorySnapshots:
        return MemorySnapshots(self.tables, self._before)

    @property
    def settings(self) -> MemorySettings:
        return MemorySettings(self.tables)

    @property
    def tags(self) -> Tags:
        raise NotImplementedError("journals alone are simulated here")

    async def close(self) -> None:
        return None

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        await self._before("replicated")
        return self.tables.replicated.get(at)

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        await self._before("meta")
        return self.tables.metas.get((topic, id_))

    async def metas_of(self, topic: str, ids: Sequence[str]) -> Mapping[str, JournalMeta]:
        found = {id_: await self.meta(topic, id_) for id_ in ids}
        return {id_: meta for id_, meta in found.items() if meta is not None}

    async def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        after = (0, -1)
        while True:
            await self._before("rows")
            found = sorted(self.tables.rows.get((topic, id_), {}).values(), key=_order)
            page = [
                row
                for row in found
                if first <= row.seq_nr <= last
                and _order(row) > after
                and row.segment == (row.seq_nr - 1) // segment_size
            ][:page_size]
            if page:
                yield page
            if len(page) < page_size:
                return
            after = _order(page[-1])

    async def topics(self) -> Sequence[str]:
        return sorted({at.topic for at in self.tables.replicated})

    async def metas(
        self, topic: str, *, partition: int | None = None, share: HeadShare | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        found = [meta for (of, _), meta in self.tables.metas.items() if of == topic]
        if share is not None:
            found = [meta for meta in found if meta_segment(meta.id, share.of) == share.number]
        yield [meta for meta in found if partition is None or meta.partition == partition]

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        await self._before("write_rows")
        stored, deletions = self.tables.rows[topic, id_], self.tables.deletions[topic, id_]
        for row in rows:
            key = (row.segment, row.seq_nr, row.timestamp_ms)
            if not _is_gone(row, deletions) and (key not in stored or row.place >= stored[key].place):
                stored[key] = row

    async def write_gaps(self, topic: str, id_: str, gaps: Sequence[SegmentGap]) -> None:
        await self._before("write_gaps")

    async def write_meta(self, meta: JournalMeta) -> None:
        await self._before("write_meta")
        known = self.tables.metas.get((meta.topic, meta.id))
        if known is None or meta.place >= known.place:
            self.tables.metas[meta.topic, meta.id] = meta

    async def write_journals(self, journals: Sequence[JournalWrite]) -> None:
        for meta, rows in journals:
            await self.write_rows(meta.topic, meta.id, rows)
            await self.write_meta(meta)

    async def delete_rows(self, topic: str, id_: str, deletions: Sequence[RowDeletion], *, at: Place) -> None:
        await self._before("delete_rows")
        self.tables.deletions[topic, id_] += [(gone, at) for gone in deletions]
        stored = self.tables.rows[topic, id_]
        for key, row in list(stored.items()):
            if _is_gone(row, [(gone, at) for gone in deletions]):
                del stored[key]

    async def delete_snapshots(self, topic: str, id_: str, *, at: Place) -> None:
        await self._before("delete_snapshots")
        _drop_snapshots(self.tables, (topic, id_), None, at)

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        await self._before("move_replicated")
        known = self.tables.replicated.get(offset.at)
        if known is None or (offset.generation, offset.offset) >= (known.generation, known.offset):
            self.tables.replicated[offset.at] = offset


class MemorySnapshots:
    """Snapshots by slot."""

    def __init__(self, tables: Tables, before: Before) -> None:
        self._tables = tables
        self._before = before

    async def save(self, topic: str, id_: str, row: SnapshotRow) -> None:
        await self._before("save")
        place = Place(row.generation, row.offset)
        gone = self._tables.snapshot_deletions[topic, id_]
        slots = self._tables.snapshots[topic, id_]
        old = slots.get(row.slot)
        if any(slot in (None, row.slot) and place <= at for slot, at in gone):
            return
        if old is None or place >= Place(old.generation, old.offset):
            slots[row.slot] = row

    async def load(self, topic: str, id_: str) -> Sequence[SnapshotRow]:
        return [row for _, row in sorted(self._tables.snapshots[topic, id_].items())]

    async def delete(self, topic: str, id_: str, slot: int, *, at: Place) -> None:
        _drop_snapshots(self._tables, (topic, id_), slot, at)


class MemorySettings:
    """Shared facts."""

    def __init__(self, tables: Tables) -> None:
        self._values = tables.settings

    async def get(self, key: str) -> str | None:
        return self._values.get(key)

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        if self._values.get(key) != expected:
            return False
        self._values[key] = value
        return True

    async def all(self, prefix: str) -> Mapping[str, str]:
        return {key: value for key, value in self._values.items() if key.startswith(prefix)}


def _drop_snapshots(tables: Tables, journal: Journal, slot: int | None, at: Place) -> None:
    tables.snapshot_deletions[journal].append((slot, at))
    slots = tables.snapshots[journal]
    for number, row in list(slots.items()):
        if slot in (None, number) and Place(row.generation, row.offset) <= at:
            del slots[number]
