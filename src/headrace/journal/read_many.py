"""Reads of many journals: one pass over the head of each partition for all of them, and not one for each.

What a pass may keep in memory is bounded. Journals whose records do not fit are left for another pass, so the number of
passes grows with the bytes that are not replicated, and not with the number of journals.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import NamedTuple

from headrace.errors import OffsetOutOfRange, ReadAgain
from headrace.journal.marks import Barrier
from headrace.journal.read import JournalReader
from headrace.journal.topology import Topology
from headrace.journal.window import KeyScan, KnownJournalState, Window, view_of
from headrace.log import Log
from headrace.model import Record, StoredEvent, TopicPartition
from headrace.protocol import BOUNDARY_KEY, EntryScanner, Layout, exists
from headrace.store import Place, ReplicatedOffset, StoreReader

__all__ = ["EventPages", "ManyReads"]

_KEEP_BYTES = 64 * 1024 * 1024
# What an entry takes in memory beside the record's value.
_ENTRY_BYTES = 1000
_BOUNDARY = BOUNDARY_KEY.encode()

EventPages = AsyncIterator[Sequence[StoredEvent]]


class _Pass(NamedTuple):
    """What was read of a partition: the replicated offset first, then the windows of journals up to the barrier."""

    layout: Layout
    at: TopicPartition
    replicated: ReplicatedOffset | None
    barrier: int
    windows: dict[str, Window]


class ManyReads:
    """Reads many journals of one topic, as `JournalReader` reads one."""

    def __init__(
        self,
        log: Log,
        topology: Topology,
        store: StoreReader,
        reader: JournalReader,
        barrier: Barrier,
        *,
        timeout_s: float,
    ) -> None:
        self._log = log
        self._topology = topology
        self._store = store
        self._reader = reader
        self._barrier = barrier
        self._timeout_s = timeout_s

    async def pages(self, ids: Collection[str]) -> AsyncIterator[tuple[str, EventPages]]:
        """Yield each id with the pages of its events, which may be read side by side.

        What is wrong with a journal is raised by its pages; they raise what `JournalReader.pages` does.
        """
        layout = await self._topology.layout()
        waiting: dict[TopicPartition, list[str]] = {}
        for id_ in dict.fromkeys(ids):
            stays = list(layout.stays(id_))
            if len(stays) == 1:
                waiting.setdefault(stays[0].at, []).append(id_)
            else:  # the topic has grown: its journals were in several partitions
                yield id_, self._reader.pages(id_, 1)
        for at, wanted in waiting.items():
            left = wanted
            while left:
                done = await self._pass(layout, at, left)
                fitted = set(left if done is None else done.windows)
                for id_ in [id_ for id_ in left if id_ in fitted]:
                    yield id_, self._reader.pages(id_, 1) if done is None else self._pages_of(id_, done)
                left = [id_ for id_ in left if id_ not in fitted]

    async def _pass(self, layout: Layout, at: TopicPartition, ids: Sequence[str]) -> _Pass | None:
        """Read the head of a partition once; None if these journals have to be read one by one."""
        end = self._topology.end_of(at)
        before = end.offset
        replicated = await self._store.replicated(at)
        barrier = await self._barrier.place(at, ids[0])
        if not end.rises(before - 1, barrier):
            self._topology.doubt()
            return None  # the topic was created again
        generation, after = layout.first_generation(at.partition), -1
        if replicated is not None and replicated.generation >= generation:
            generation, after = replicated.generation, replicated.offset
        if barrier < after:
            return None  # a single read finds out whether the log lost records
        scan = _ManyScan(at, ids, generation, after, _KEEP_BYTES)
        try:
            if barrier > after:
                async for batch in self._log.read(at, after + 1, barrier + 1, timeout_s=self._timeout_s):
                    for record in batch.records:
                        scan.take(record)
        except OffsetOutOfRange:  # replication and retention have moved on, or records are lost
            return None
        windows = scan.windows()
        if any(window.generation > layout.generation for window in windows.values()):
            return None  # the topic grows
        return _Pass(layout, at, replicated, barrier, windows)

    async def _pages_of(self, id_: str, done: _Pass) -> EventPages:
        stored = await self._store.meta(done.layout.topic, id_)
        known = KnownJournalState({done.at: done.replicated}, stored)
        view = view_of(id_, known, [done.windows.pop(id_)], Place(done.layout.generation, done.barrier))
        if not exists(view.meta):
            return
        given = False
        try:
            async for page in self._reader.stream(id_, view, 1):
                given = given or bool(page)
                yield page
            return
        except ReadAgain:
            if given:
                raise
        async for page in self._reader.pages(id_, 1):
            yield page


class _ManyScan:
    """The windows of many journals in one partition, as far as they fit into memory: at least that of one."""

    def __init__(self, at: TopicPartition, ids: Collection[str], generation: int, after: int, keep_bytes: int) -> None:
        self._at = at
        self._after = after
        self._left_bytes = keep_bytes
        self._boundaries = EntryScanner(BOUNDARY_KEY, generation, after=after)
        self._wanted = {id_.encode(): id_ for id_ in ids}
        self._scans: dict[bytes, KeyScan] = {}

    def take(self, record: Record) -> None:
        """Take the next record of the partition, whosever it is."""
        key = record.key
        if key == _BOUNDARY:
            self._boundaries.take(record)
            for begun in self._scans.values():
                begun.take(record)
        if key is None or key not in self._wanted:
            return
        scan = self._scans.get(key)
        if scan is None:
            scan = self._scans[key] = KeyScan(self._at, key, self._boundaries.generation, self._after)
        scan.take(record)
        self._left_bytes -= len(record.value or b"") + _ENTRY_BYTES
        while self._left_bytes < 0 and len(self._scans) > 1:
            self._leave_out()

    def _leave_out(self) -> None:
        """Forget the journal that came last."""
        key, scan = self._scans.popitem()
        del self._wanted[key]
        self._left_bytes += scan.size_bytes + _ENTRY_BYTES * len(scan.window.entries)

    def windows(self) -> dict[str, Window]:
        """Return the windows of the journals that fitted, also of those that the partition has no record of."""
        generation = self._boundaries.generation
        return {
            id_: self._scans[key].window if key in self._scans else Window(self._at, [], generation=generation)
            for key, id_ in self._wanted.items()
        }
