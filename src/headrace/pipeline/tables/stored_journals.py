"""Journals of one partition for the journal table: rows of the store, and appends of the log that it lacks.

The log's actions above the replicated offset are read without values and kept until their journals are read, 300
bytes each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headrace.errors import IntegrityBroken, OffsetOutOfRange, ReadAgain, RecordsLost
from headrace.journal import Layout, fold
from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.pipeline.tables.scans import Counts, Predicates
from headrace.protocol import BOUNDARY_KEY, Append, Entry, Mark, decode_append, entry_of, exists, rows_of
from headrace.store import EventRow, JournalMeta, Place, ReplicatedOffset, StoreReader

__all__ = [
    "FoundEvents",
    "HeadStretch",
    "HeadValues",
    "JournalHead",
    "StoredJournals",
    "Undecodable",
    "read_head",
    "replicated_of",
    "stretches",
]

_ATTEMPTS = 5
_RECORDS_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class HeadStretch:
    """Offsets of one partition and one generation, from `start` up to `end` (exclusive)."""

    at: TopicPartition
    generation: int
    start: int
    end: int


@dataclass(slots=True)
class JournalHead:
    """The un-replicated actions of each key, in order, and the replicated offset below them."""

    replicated: ReplicatedOffset | None
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The last replicated place."""
        return Place(-1, -1) if self.replicated is None else Place(self.replicated.generation, self.replicated.offset)


def stretches(
    layout: Layout, partition: int, replicated: Mapping[int, ReplicatedOffset | None], ends: Mapping[int, int]
) -> list[HeadStretch]:
    """Return where the log may hold un-replicated records of the partition's keys, in the order of those records.

    A key that moved here has its earlier records in other partitions; they are included until replication has passed
    the boundary there.
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
                found.append(HeadStretch(TopicPartition(layout.topic, of), number, start, end))
    return found


async def replicated_of(store: StoreReader, layout: Layout, partition: int) -> ReplicatedOffset | None:
    """Return the replicated offset of a partition; None if it is of an earlier topic of the same name."""
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
) -> JournalHead:
    """Read the un-replicated actions, only of `keys` if given. Raises RecordsLost."""
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
            if replicated == before:  # otherwise the records were replicated before they left the log
                raise RecordsLost(error.topic, error.partition, error.offset, error.start - 1) from error
    raise ReadAgain(layout.topic, "its records kept moving from the log to the store")


class _Scan:
    """One pass over the stretches."""

    def __init__(
        self, layout: Layout, partition: int, replicated: ReplicatedOffset | None, keys: frozenset[str] | None
    ) -> None:
        self.head = JournalHead(replicated)
        self._layout = layout
        self._home = TopicPartition(layout.topic, partition)
        self._has_moves = layout.generation > 0
        self._keys = None if keys is None else {*(key.encode() for key in keys), BOUNDARY_KEY.encode()}

    async def read(self, log: Log, stretch: HeadStretch, replicated: ReplicatedOffset | None, counts: Counts) -> None:
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

    def _take(self, record: Record, stretch: HeadStretch, log_time_ms: int) -> bool:
        """Add a record. Return False at the boundary of an unpublished growth, behind which no record counts yet."""
        entry = entry_of(record, stretch.generation, log_time_ms=log_time_ms)
        if entry is None:
            return True
        if isinstance(entry.action, Mark):
            return (entry.action.generation or 0) <= self._layout.generation
        if not self._has_moves or self._is_ours(entry, stretch):
            self.head.entries.setdefault(entry.id, []).append(msgspec.structs.replace(entry, record=None))
        return True

    def _is_ours(self, entry: Entry, stretch: HeadStretch) -> bool:
        return self._layout.route(entry.id) == self._home and self._layout.is_home(
            entry.id, stretch.generation, stretch.at
        )


_ROWS_GATHERED = 1000
_PAGE = 500


@dataclass(slots=True)
class FoundEvents:
    """A journal with its events. `first` to `last` are the numbers of its matching rows; `rows` are the first of them.

    `rest` yields further rows of a long journal, which is not kept in memory. `appends` are those of the log that
    are not deleted.
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
    """Finds the journals of a partition and reads their rows."""

    def __init__(
        self, reader: StoreReader, layout: Layout, head: JournalHead, predicates: Predicates, skew_ms: int | None
    ) -> None:
        self._reader = reader
        self._topic = layout.topic
        self._head = head
        self._predicates = predicates
        self._skew_ms = skew_ms
        # Where a topic grew, the rows of a key have offsets of several partitions.
        self._is_one_order = len(layout.generations) == 1

    @property
    def has_no_rows(self) -> bool:
        """Whether no row that was replicated when the head was read can match."""
        replicated = self._head.replicated
        return self._is_one_order and (
            replicated is None or self._is_above(replicated.offset) or self._is_later(replicated.log_time_ms)
        )

    async def find(self, id_: str, stored: JournalMeta | None) -> FoundEvents:
        """Fold the log's actions into the stored state, and read the first rows. The actions are dropped afterwards.

        If rows vanish while they are read, something newer than the state deleted them: then the state is read again.
        """
        entries = self._head.entries.pop(id_, [])
        for _ in range(_ATTEMPTS):
            found = self._found(id_, stored, entries)
            if found.last < found.first or await self._gather(found):
                return found
            stored = await self._reader.meta(self._topic, id_)
        raise ReadAgain(id_, "events were deleted faster than they could be read")

    async def rows(self, found: FoundEvents) -> AsyncIterator[Sequence[EventRow]]:
        """Yield the journal's rows in pages. Raises ReadAgain if events of a long journal were deleted meanwhile."""
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

    def _found(self, id_: str, stored: JournalMeta | None, entries: Sequence[Entry]) -> FoundEvents:
        meta, appends = fold(stored, entries)
        found = FoundEvents(id_, stored, meta, appends if exists(meta) else ())
        if meta is None or stored is None or not self._has_rows(stored, meta):
            return found
        low, high = self._predicates.seq_nr
        found.first = max(meta.delete_to + 1, low or 1)
        found.last = stored.seq_nr if high is None else min(stored.seq_nr, high)
        return found

    def _has_rows(self, stored: JournalMeta, meta: JournalMeta) -> bool:
        """Return True if rows of the store may match and are not deleted."""
        is_alive = exists(stored) and exists(meta) and stored.record_id == meta.record_id
        if not is_alive or meta.held_from is not None:
            return False
        if self._is_one_order and self._is_above(stored.offset):
            return False
        if self._is_one_order and stored.place <= self._head.place and self._head.replicated is not None:
            return not self._is_later(self._head.replicated.log_time_ms) and self._is_of_the_time(stored)
        return self._is_of_the_time(stored)

    def _is_above(self, offset: int) -> bool:
        low = self._predicates.offset.low
        return low is not None and offset < low

    def _is_later(self, log_time_ms: int) -> bool:
        """Return True if all records up to this log time are too old: the log time is their highest timestamp."""
        low = self._predicates.time_ms.low
        return low is not None and log_time_ms < low

    def _is_of_the_time(self, stored: JournalMeta) -> bool:
        low, high = self._predicates.time_ms
        if self._skew_ms is None:
            return True
        if low is not None and stored.updated_ms is not None and stored.updated_ms + self._skew_ms < low:
            return False
        return high is None or stored.created_ms is None or stored.created_ms - self._skew_ms <= high

    async def _gather(self, found: FoundEvents) -> bool:
        """Read all rows, or the first of a long journal. Return False if they don't belong to the state any more."""
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
            if len(found.rows) >= _ROWS_GATHERED:
                found.rest = pages
                return True
        return await self._is_whole(found, len(found.rows))

    async def _is_whole(self, found: FoundEvents, count: int) -> bool:
        """Return True if `count` rows are complete: there is no gap, or nothing was deleted while they were read."""
        if count == found.last - found.first + 1:
            return True
        now = await self._reader.meta(self._topic, found.id)
        is_same = now is not None and found.stored is not None and now.record_id == found.stored.record_id
        return is_same and now is not None and now.delete_to < found.first


def _own(found: FoundEvents, page: Sequence[EventRow], above: int) -> list[EventRow]:
    """Return the rows of the journal's own incarnation. Raises IntegrityBroken if their numbers don't rise."""
    rows = []
    for row in page:
        if found.stored is None or row.record_id != found.stored.record_id:
            continue
        if row.seq_nr <= above:
            raise IntegrityBroken(found.id, row.seq_nr, "two rows of one incarnation have the same number")
        above = row.seq_nr
        rows.append(row)
    return rows


_VALUES_AT_ONCE = 1000


class Undecodable(NamedTuple):
    """An append whose value can't be decoded."""

    key: str
    partition: int
    offset: int
    reason: str


class _LivingAppend(NamedTuple):
    entry: Entry
    append: Append
    meta: JournalMeta


Events = list[tuple[str, EventRow]]


class HeadValues:
    """Collects appends of the log's head that are not deleted, then reads their values."""

    def __init__(self, log: Log, layout: Layout, predicates: Predicates) -> None:
        self._log = log
        self._topic = layout.topic
        self._predicates = predicates
        self._appends: dict[int, dict[int, _LivingAppend]] = {}
        self._broken: set[str] = set()

    def want(self, found: FoundEvents) -> None:
        """Note a journal's appends that may match."""
        meta = found.meta
        if meta is None:
            return
        for entry in found.appends:
            append = entry.action
            if isinstance(append, Append) and self._may_match(entry, append):
                self._appends.setdefault(entry.partition, {})[entry.offset] = _LivingAppend(entry, append, meta)

    def _may_match(self, entry: Entry, append: Append) -> bool:
        low, high = self._predicates.seq_nr
        is_of_numbers = (low is None or append.last >= low) and (high is None or append.first <= high)
        return (
            is_of_numbers and entry.offset in self._predicates.offset and entry.timestamp_ms in self._predicates.time_ms
        )

    async def read(self) -> AsyncIterator[tuple[Undecodable | None, Events]]:
        """Yield for each record its events that are not deleted, or why it can't be decoded."""
        for partition, living in sorted(self._appends.items()):
            at = TopicPartition(self._topic, partition)
            batches = self._log.read(at, min(living), max(living) + 1, max_records=_VALUES_AT_ONCE)
            try:
                async for batch in batches:
                    for record in batch.records:
                        yield self._events(record, living.pop(record.offset, None))
            except OffsetOutOfRange as error:
                raise ReadAgain(self._topic, "records left the log") from error
            if living:
                raise ReadAgain(self._topic, f"offset {min(living)} of {at} is gone")

    def _events(self, record: Record, living: _LivingAppend | None) -> tuple[Undecodable | None, Events]:
        if living is None or living.entry.id in self._broken:
            return None, []
        id_ = living.entry.id
        try:
            return None, [(id_, row) for row in _rows(record, living)]
        except ValueError as error:
            self._broken.add(id_)  # nothing behind it counts
            return Undecodable(id_, record.partition, record.offset, str(error)), []


def _rows(record: Record, living: _LivingAppend) -> list[EventRow]:
    """Return the rows that replication will write for an append, without deleted ones."""
    rows = rows_of(living.entry, record, living.meta, decode_append(living.append, record.value))
    return [row for row in rows if row.seq_nr > living.meta.delete_to]
