"""Counting history under a tag that is being filled: the journals of one partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.config import TagSettings
from headrace.errors import OperationFailed, UnknownTopic
from headrace.journal import Layout
from headrace.journal.decoding import event_of_row
from headrace.journal.folding import exists
from headrace.model import TopicPartition
from headrace.runtime import crash_point
from headrace.store import EventRow, JournalMeta, Place, Store, TagNumber, TagRow
from headrace.tags.buckets import Bucket
from headrace.tags.events import TaggedEvent, tagged
from headrace.tags.fills import TagFill
from headrace.tags.floors import read_layout
from headrace.tags.numbering import Numbering
from headrace.tags.offsets import TagOffset
from headrace.tags.registry import Registry

__all__ = ["Chooser", "Counted", "HistoryCount"]

Chooser: TypeAlias = Callable[[TaggedEvent], bool]

_PIDS_AT_ONCE = 32


@dataclass(slots=True)
class Counted:
    """What was looked at: journals and their events, and rows written under the tag."""

    journals: int = 0
    events: int = 0
    rows: int = 0


class HistoryCount:
    """Gives a tag to the events of one partition's journals that a function chooses.

    A number at or above the fill's `since` is one that this fill has counted to; a lower one is from before it. Each
    journal has the `since` of the partition it lives in, which is another than its records' if its topic has grown.
    """

    def __init__(
        self, store: Store, settings: TagSettings, registry: Registry, tag: str, at: TopicPartition, choose: Chooser
    ) -> None:
        self._store = store
        self._tag = tag
        self._at = at
        self._choose = choose
        self._fill: TagFill = registry.fills[tag]
        self._layout: Layout | None = None
        self._is_redacted = tag in registry.redact
        self._numbering = Numbering(at.topic, registry.topics[at.topic].number, Bucket[settings.bucket])
        self._removed: dict[str, JournalMeta] = {}
        self.counted = Counted()

    async def sweep(self) -> None:
        """Remove the partition's rows under the tag that are from before the fill."""
        since = self._fill.since_of(self._at)
        async for rows in self._rows():
            old = [row for row in rows if row.place <= since]
            await self._store.tags.views.delete(old, at=_before(since))
            for pid in {row.pid for row in old}:
                if await self._store.reader.meta(self._at.topic, pid) is None:
                    await self._store.tags.numbers.delete(self._at.topic, pid, self._tag, at=_before(since))

    async def sweep_late(self) -> None:
        """Remove what a replicator wrote under the tag that was slow to learn of the fill.

        Its rows come between ours, which win over the removal. A journal without them has the numbers 1, 2, 3, …
        """
        last: dict[str, int] = {}
        torn: set[str] = set()
        async for rows in self._rows():
            for row in rows:
                if row.number != last.get(row.pid, 0) + 1:
                    torn.add(row.pid)
                last[row.pid] = row.number
        if not torn:
            return
        before = _before(self._fill.since_of(self._at))
        async for rows in self._rows():
            await self._store.tags.views.delete([row for row in rows if row.pid in torn], at=before)
        for pid in torn:
            await self._store.tags.numbers.delete(self._at.topic, pid, self._tag, at=before)

    async def count(self, *, after: Place) -> None:
        """Count the journals that were changed after a place."""
        limit = asyncio.Semaphore(_PIDS_AT_ONCE)

        async def one(meta: JournalMeta) -> None:
            async with limit:
                await self._count(meta)

        async for page in self._store.reader.metas(self._at.topic, partition=self._at.partition):
            await asyncio.gather(*(one(meta) for meta in page if meta.place > after))

    async def redact(self) -> None:
        """Redact rows of deleted events, of the journals that `count` met: rows may have been written after that."""
        if not self._removed:
            return
        async for rows in self._rows_of_topic():
            for row in rows:
                meta = self._removed.get(row.pid)
                if meta is not None and _is_gone(row, meta):
                    await self._store.tags.views.redact([row], at=max(meta.place, await self._since(meta)))

    async def _count(self, meta: JournalMeta) -> None:
        numbers = await self._store.tags.numbers.of(meta.topic, meta.id)
        known, since = numbers.get(self._tag), await self._since(meta)
        self.counted.journals += 1
        if self._is_redacted and (meta.is_purged or meta.delete_to or meta.purged_at is not None):
            self._removed[meta.id] = meta
        if known is not None and known.place > max(meta.place, since):
            raise self._unreachable(meta, known)
        if known is not None and known.place < since:
            await self._store.tags.numbers.delete(meta.topic, meta.id, self._tag, at=_before(since))
            known = None
        last: TagRow | None = None
        async for rows in self._new_rows(meta, known):
            await self._write(rows, since)
            self.counted.rows += len(rows)
            last = rows[-1]
        crash_point("tags.fill-before-progress")
        if last is not None:
            await self._store.tags.numbers.write([self._progress(meta, last.number, since)])

    def _unreachable(self, meta: JournalMeta, known: TagNumber) -> OperationFailed:
        """Return the error of a numbering that nothing written now could win over, and counting on from would lose."""
        return OperationFailed(
            f"back-filling tag {self._tag!r}",
            f"the numbers of {meta.id!r} were noted at generation {known.generation}, offset {known.offset}, which its "
            f"partition has not come to; run: headrace topic grow {meta.topic} with more partitions, "
            "then the back-fill with --again",
        )

    async def _new_rows(self, meta: JournalMeta, known: TagNumber | None) -> AsyncIterator[list[TagRow]]:
        """Yield rows of the chosen events that were not counted before."""
        number = known.number if known is not None else 0
        async for events in self._events(meta, known):
            self.counted.events += len(events)
            rows = []
            for event in events:
                if self._choose(self._told(meta.id, event, number + 1)):
                    number += 1
                    rows.append(self._numbering.row(meta.id, event, self._tag, number))
            if rows:
                yield rows

    async def _events(self, meta: JournalMeta, known: TagNumber | None) -> AsyncIterator[list[EventRow]]:
        """Yield what was not looked at before. A journal that was purged since then begins anew."""
        if not exists(meta):
            return
        first = meta.delete_to + 1
        if known is not None and (meta.purged_at is None or meta.purged_at < known.place):
            first = max(first, known.seq_nr + 1)
        pages = self._store.reader.rows(
            meta.topic, meta.id, segment_size=meta.segment_size, first=first, last=meta.seq_nr
        )
        async for page in pages:
            yield [row for row in page if row.record_id == meta.record_id and row.place <= meta.place]

    def _told(self, pid: str, event: EventRow, number: int) -> TaggedEvent:
        offset = TagOffset.of(self._numbering.time_of(event), number, event.seq_nr)
        return tagged(event_of_row(event), self._tag, self._at.topic, pid, number, offset)

    async def _write(self, rows: Sequence[TagRow], since: Place) -> None:
        views = self._store.tags.views
        if old := [row for row in rows if row.place <= since]:
            await views.write(old, at=since)
        if new := [row for row in rows if row.place > since]:
            await views.write(new)

    def _progress(self, meta: JournalMeta, number: int, since: Place) -> TagNumber:
        """Return how far a journal is counted: up to its state."""
        generation, offset = max(meta.place, since)
        return TagNumber(
            topic=meta.topic,
            pid=meta.id,
            tag=self._tag,
            seq_nr=meta.seq_nr,
            number=number,
            generation=generation,
            offset=offset,
        )

    async def _since(self, meta: JournalMeta) -> Place:
        """Return the place that the journal's rows and numbers from before the fill lie below."""
        return self._fill.since_of(await self._home(meta.id, meta.partition))

    async def _rows(self) -> AsyncIterator[list[TagRow]]:
        """Yield the rows under the tag of the journals that live in the partition, wherever those were before."""
        async for rows in self._rows_of_topic():
            yield [row for row in rows if await self._home(row.pid, row.partition) == self._at]

    async def _rows_of_topic(self) -> AsyncIterator[list[TagRow]]:
        views = self._store.tags.views
        for bucket_ms in await views.buckets(self._tag):
            async for page in views.read(self._tag, bucket_ms):
                yield [row for row in page if row.topic == self._at.topic]

    async def _home(self, id_: str, partition: int) -> TopicPartition:
        if self._layout is None:
            self._layout = await read_layout(self._store, self._at.topic)
        if self._layout is None:
            raise UnknownTopic(self._at.topic)
        return self._fill.home_of(self._layout, id_, partition)


def _before(since: Place) -> Place:
    return Place(since.generation, since.offset - 1)


def _is_gone(row: TagRow, meta: JournalMeta) -> bool:
    """Say whether a row's event is not in its journal any more."""
    if row.is_redacted:
        return False
    is_purged = meta.is_purged or (meta.purged_at is not None and row.place <= meta.purged_at)
    return is_purged or row.seq_nr <= meta.delete_to
