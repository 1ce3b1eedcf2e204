"""The ids of a topic's journals: those that the store has, and those that only the log has yet.

What the log adds is folded on what the store has, so that a journal with void appends only is not listed, and one that
was purged is not either. Of each journal with actions that are not replicated its state is kept, and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec

from headrace.errors import JournalHeld, OffsetOutOfRange, ReadAgain, RecordsLost, UnknownTopic
from headrace.journal.read import JournalReader
from headrace.journal.topology import Topology
from headrace.journal.window import fold
from headrace.log import Log
from headrace.model import Batch, TopicPartition
from headrace.protocol import Entry, Layout, Mark, Poison, bare_entries, exists, next_generation
from headrace.store import JournalMeta, StoreReader

__all__ = ["JournalIds"]

_ATTEMPTS = 5


class JournalIds:
    """Lists the journals of one topic."""

    def __init__(
        self, log: Log, topology: Topology, store: StoreReader, reader: JournalReader, *, timeout_s: float
    ) -> None:
        self._log = log
        self._topology = topology
        self._store = store
        self._reader = reader
        self._timeout_s = timeout_s

    async def stored(self) -> AsyncGenerator[str, None]:
        """Yield the ids of the journals that are replicated at least in part."""
        async for page in self._store.metas(self._topology.topic):
            for meta in page:
                if exists(meta):
                    yield meta.id

    async def all(self) -> AsyncGenerator[str, None]:
        """Yield the ids of all journals that existed when the call began, and perhaps of some that came later."""
        in_log = await self._in_log()
        async for page in self._store.metas(self._topology.topic):
            for meta in page:
                if meta.id not in in_log and exists(meta):
                    yield meta.id
        for id_, is_there in in_log.items():
            if is_there:
                yield id_

    async def _in_log(self) -> dict[str, bool]:
        """Return the journals with actions that are not replicated, and whether they exist."""
        for _ in range(_ATTEMPTS):
            try:
                layout = await self._topology.grown()
            except UnknownTopic:
                return {}
            found = await self._try_in_log(layout)
            if found is not None:
                return found
            await self._topology.refresh()
        raise ReadAgain(self._topology.topic, "replication, or the topic's growth, kept overtaking the list")

    async def _try_in_log(self, layout: Layout) -> dict[str, bool] | None:
        """Try once; None if the topic has grown, or retention has moved on, meanwhile."""
        states = _States(layout, self._store)
        for partition in range(layout.partitions):
            if not await self._scan(layout, TopicPartition(layout.topic, partition), states):
                return None
        await states.fold_moved()
        found = {id_: exists(meta) for id_, meta in states.metas.items()}
        for id_ in states.held:
            found[id_] = await self._exists(id_, found.get(id_, False))
        return found

    async def _scan(self, layout: Layout, at: TopicPartition, states: _States) -> bool:
        """Read what is not replicated of a partition; False if it must be read again."""
        replicated = await self._store.replicated(at)
        generation, after = layout.first_generation(at.partition), -1
        if replicated is not None and replicated.generation >= generation:
            generation, after = replicated.generation, replicated.offset
        end = (await self._log.bounds(at)).high_watermark
        if end <= after + 1:
            return True
        try:
            async for batch in self._log.read(at, after + 1, end, headers_only=True, timeout_s=self._timeout_s):
                generation = await states.take(batch, at, generation)
                if generation > layout.generation:
                    return False
        except OffsetOutOfRange as error:
            if error.offset < error.start and await self._store.replicated(at) == replicated:
                raise RecordsLost(at.topic, at.partition, error.offset, error.start - 1) from error
            return False
        return True

    async def _exists(self, id_: str, otherwise: bool) -> bool:
        """Return True if a journal with a record that can't be decoded exists: as a read sees it, or before that."""
        try:
            return exists((await self._reader.view(id_)).meta)
        except JournalHeld:
            return otherwise


class _States:
    """The journals that the log has actions of, as these leave them."""

    def __init__(self, layout: Layout, store: StoreReader) -> None:
        self._layout = layout
        self._store = store
        self.metas: dict[str, JournalMeta | None] = {}
        self.held: set[str] = set()
        self._moved: dict[str, list[Entry]] = {}  # in several partitions, so that their order is known at the end

    async def take(self, batch: Batch, at: TopicPartition, generation: int) -> int:
        """Fold the records of a batch; return the generation behind them."""
        by_id: dict[str, list[Entry]] = {}
        for entry in bare_entries(batch.records, generation):
            if isinstance(entry.action, Mark):
                generation = next_generation(generation, entry.action)
            elif generation <= self._layout.generation and self._layout.is_home(entry.id, generation, at):
                by_id.setdefault(entry.id, []).append(msgspec.structs.replace(entry, generation=generation))
        for id_ in [id_ for id_ in by_id if len(self._layout.stays(id_)) > 1]:
            self._moved.setdefault(id_, []).extend(by_id.pop(id_))
        await self._fold(by_id)
        return generation

    async def fold_moved(self) -> None:
        """Fold the actions of the journals that were in several partitions."""
        ordered = {id_: sorted(entries, key=lambda entry: entry.place) for id_, entries in self._moved.items()}
        await self._fold(ordered)

    async def _fold(self, by_id: dict[str, list[Entry]]) -> None:
        new = [id_ for id_ in by_id if id_ not in self.metas]
        stored = await self._store.metas_of(self._layout.topic, new) if new else {}
        for id_, entries in by_id.items():
            before = self.metas[id_] if id_ in self.metas else stored.get(id_)
            self.metas[id_] = fold(before, entries)[0]
            if _has_poison(entries):
                self.held.add(id_)


def _has_poison(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry.action, Poison) for entry in entries)
