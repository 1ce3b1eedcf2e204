"""Repairing views by tag: writing them again from the journals, all of them or one pid's under one tag.

A repair has a place in the order, as all else has: that of a Mark written for it, so that it wins over what was there.
Replication is brought there first: what it wrote afterwards of records below the Mark would lose. Events that were
deleted from their journals can't be brought back under their tags; numbers go on all the same where the numbering is
still known.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence

import msgspec

from headrace.config import TagSettings
from headrace.errors import BadArgument, UnknownTopic
from headrace.journal import Layout
from headrace.journal.actions import Mark
from headrace.journal.barriers import write_mark
from headrace.journal.folding import exists
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.observe import SILENT, Progress
from headrace.store import EventRow, JournalMeta, Place, Store, TagNumber, TagRow
from headrace.tags.catching_up import CatchingUp
from headrace.tags.fills import TagFill
from headrace.tags.floors import Floors, read_layout
from headrace.tags.marking import MARK_KEY
from headrace.tags.numbering import Numbering
from headrace.tags.registry import TagRegistry
from headrace.tags.seams import SeamReader

__all__ = ["TagRepair"]

_ROWS_AT_ONCE = 2000


class TagRepair:
    """Rebuilds and deletes views by tag. Replication may go on, except where the tables were emptied: then it waits."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._log = log
        self._store = store
        self._registry = TagRegistry(store, settings)
        self._seams = SeamReader(log, store, self._registry, Floors(store, self._registry, log))
        self._catching_up = CatchingUp(log, store, settings)

    async def rebuild_all(self, progress: Progress = SILENT) -> int:
        """Write all views again from what the journals hold, then let replication go on; returns the rows written."""
        await self._store.tags.prepare()
        count = 0
        topics = await self._seams.discover()
        for topic in topics.topics:
            with progress.step(f"rebuilding the views of {topic}", unit="journals") as step:
                async for meta in self._metas(topic):
                    count += await self._rebuild(meta, None, at=None)
                    step.advance()
        await self._registry.begin_epoch()
        return count

    async def rebuild(self, topic: str, id_: str, tag: str) -> int:
        """Write a journal's rows under a tag again; returns how many. Raises BadArgument for a tag that was filled."""
        registry = await self._registry.open()
        if (fill := registry.fills.get(tag)) is not None:
            rule = f"history was given it afterwards; run: headrace tags backfill {tag} {fill.function} --again"
            raise BadArgument("tag", tag, rule)
        place = await self._place(topic, id_)
        meta = await self._store.reader.meta(topic, id_)
        return 0 if meta is None or not exists(meta) else await self._rebuild(meta, tag, at=place)

    async def delete(self, topic: str, id_: str, tag: str) -> int:
        """Remove a journal's rows under a tag, and their numbering; returns how many. New events count from 1."""
        await self._registry.open()
        place = await self._place(topic, id_)
        count = 0
        for bucket_ms in await self._store.tags.views.buckets(tag):
            async for page in self._store.tags.views.read(tag, bucket_ms):
                rows = [row for row in page if (row.topic, row.pid) == (topic, id_)]
                await self._store.tags.views.delete(rows, at=place)
                count += len(rows)
        await self._store.tags.numbers.delete(topic, id_, tag, at=place)
        return count

    async def mark(self, at: TopicPartition) -> Place:
        """Write a Mark into a partition and return its place, once replication is there."""
        layout = await self._layout(at.topic)
        offset = await write_mark(self._log, at, MARK_KEY.decode(), Mark(id=uuid.uuid4().hex))
        await self._catching_up.reach({at: offset})
        return Place(layout.generation, offset)

    async def mend(
        self,
        topic: str,
        id_: str,
        right: Sequence[TagRow],
        wrong: Sequence[TagRow],
        numbers: Sequence[TagNumber],
        *,
        at: Place,
    ) -> None:
        """Put a journal's rows right: remove what is wrong, whoever wrote it and when, then write what is right.

        `at` is the place of a `mark` in the journal's partition, from before it was judged. The numbering comes first.
        Where it stays as it was, because it was noted at a place that the log has not come to, nothing of its tag is
        changed: replication would give the numbers of rows that are written now to later events.
        """
        kept = await self._put_numbers(topic, id_, numbers, at)
        right, wrong = ([row for row in rows if row.tag not in kept] for rows in (right, wrong))
        await self._store.tags.views.delete([*wrong, *right], at=Place(at.generation, at.offset - 1))
        await self._write(right, at)
        if redacted := [row for row in right if row.is_redacted]:
            await self._store.tags.views.redact(redacted, at=at)

    async def _put_numbers(self, topic: str, id_: str, numbers: Sequence[TagNumber], at: Place) -> set[str]:
        """Write numbers; returns the tags whose numbers are lower all the same."""
        if not numbers:
            return set()
        await self._store.tags.numbers.write(numbers, at=at)
        found = await self._store.tags.numbers.of(topic, id_)
        return {right.tag for right in numbers if (known := found.get(right.tag)) is None or not _covers(known, right)}

    async def _rebuild(self, meta: JournalMeta, tag: str | None, *, at: Place | None) -> int:
        registry = await self._seams.announced()
        # Journals don't say which events a tag was filled with.
        filled = {tag: TagFill(fill.id, fill.function) for tag, fill in registry.fills.items()}
        numbering = Numbering(meta.topic, registry.topics[meta.topic].number, self._registry.bucket, filled)
        known = dict(await self._store.tags.numbers.of(meta.topic, meta.id))
        before = await self._before(meta, known)
        last: dict[str, TagNumber] = {tag: _numbered(known[tag], number) for tag, number in before.items()}
        count = 0
        async for events in self._events(meta):
            done = numbering.number(meta.id, events, last)
            last |= done.numbers
            rows = [row for row in done.rows if tag is None or row.tag == tag]
            await self._write(rows, at)
            count += len(rows)
        fresh = [number for name, number in last.items() if name not in known and (tag is None or name == tag)]
        await self._store.tags.numbers.write(fresh, at=at)
        return count

    async def _write(self, rows: list[TagRow], at: Place | None) -> None:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            await self._store.tags.views.write(rows[start : start + _ROWS_AT_ONCE], at=at)

    async def _before(self, meta: JournalMeta, known: dict[str, TagNumber]) -> dict[str, int]:
        """Return the numbers before the first event that is left, by tag, where the numbering is known."""
        left = dict.fromkeys(known, 0)
        async for events in self._events(meta):
            for event in events:
                for tag in set(event.tags) & set(known):
                    left[tag] += event.place <= known[tag].place
        return {tag: known[tag].number - count for tag, count in left.items()}

    async def _events(self, meta: JournalMeta) -> AsyncIterator[list[EventRow]]:
        pages = self._store.reader.rows(
            meta.topic, meta.id, segment_size=meta.segment_size, first=meta.delete_to + 1, last=meta.seq_nr
        )
        async for page in pages:
            yield [row for row in page if row.tags and row.record_id == meta.record_id and row.place <= meta.place]

    async def _metas(self, topic: str) -> AsyncIterator[JournalMeta]:
        async for page in self._store.reader.metas(topic):
            for meta in page:
                if exists(meta):
                    yield meta

    async def _place(self, topic: str, id_: str) -> Place:
        """Write a Mark into the journal's partition and return its place, once replication is there.

        What it wrote later, of records below the Mark, would lose to the repair.
        """
        layout = await self._layout(topic)
        at = layout.route(id_)
        offset = await write_mark(self._log, at, id_, Mark(id=uuid.uuid4().hex))
        await self._catching_up.reach({at: offset})
        return Place(layout.generation, offset)

    async def _layout(self, topic: str) -> Layout:
        layout = await read_layout(self._store, topic)
        if layout is None:
            raise UnknownTopic(topic)
        return layout


def _covers(known: TagNumber, right: TagNumber) -> bool:
    """Say whether the numbering is what it should be, or has gone on from there."""
    return known == right or (known.number > right.number and known.place > right.place)


def _numbered(number: TagNumber, before: int) -> TagNumber:
    """Return a number as it stood before all that is left."""
    return msgspec.structs.replace(number, number=before, generation=-1, offset=-1)
