"""Repair of views by tag: writing them again from the journals, after replicating up to a place.

A repair has a place in the order, as every write has: that of a Mark written for it, so that it wins over what was
there. Replication is brought there first, because what it wrote later of records below the Mark would lose. Events that
were deleted from their journals can't be restored under their tags. Numbers are never given twice and never go back,
because readers remember them: a removal leaves the numbering as it is, and the store notes where the rows begin.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.config import TagSettings
from headrace.errors import BadArgument, OperationFailed, UnknownTopic
from headrace.journal import Layout, replicate_batch, write_mark
from headrace.log import Log
from headrace.model import TopicPartition, partition_of
from headrace.observe import SILENT, Progress
from headrace.protocol import Mark, exists
from headrace.store import EventRow, JournalMeta, Place, Store, TagNumber, TagRow
from headrace.tags.floors import Floors, read_layout
from headrace.tags.marks import MARK_KEY
from headrace.tags.registry import NUMBERS_TABLE, TagFill, TagRegistry, TagUse
from headrace.tags.seams import SeamReader
from headrace.tags.view_rows import Trimmed, all_trimmed, is_trimmed
from headrace.tags.write import Numbering, TagWriter, number_of

__all__ = ["CatchingUp", "TagRepair", "highest_gone"]

_LOOK_AGAIN_S = 0.05
_RECORDS_AT_ONCE = 1000


class CatchingUp:
    """Replicates partitions up to given offsets, unless they are replicated that far."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._log = log
        self._store = store
        self._writer = TagWriter(store, settings, log=log)

    async def wait(self, offsets: Mapping[TopicPartition, int], *, patience_s: float) -> None:
        """Wait for running replicators to reach the offsets, as long as they make progress."""
        loop = asyncio.get_running_loop()
        before, since_s = -1, loop.time()
        while (left := await self.missing(offsets)) > 0 and loop.time() - since_s < patience_s:
            if left != before:
                before, since_s = left, loop.time()
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def reach(self, offsets: Mapping[TopicPartition, int], *, within_s: float = 60.0) -> None:
        """Return when all partitions are replicated up to their offset (inclusive).

        Raises OperationFailed if there is no progress, OffsetOutOfRange if the log lost records that the store lacks.
        """
        loop = asyncio.get_running_loop()
        left, deadline_s = dict(offsets), loop.time() + within_s
        while left:
            before = dict(left)
            left = {at: offset for at, offset in before.items() if not await self._advance(at, offset)}
            if len(left) < len(before):
                deadline_s = loop.time() + within_s
            elif loop.time() > deadline_s:
                at, offset = next(iter(left.items()))
                raise OperationFailed(f"replicating {at} up to offset {offset}", "it is held up")
            elif left:
                await asyncio.sleep(_LOOK_AGAIN_S)  # some wait for others at the boundary of a growth

    async def missing(self, offsets: Mapping[TopicPartition, int]) -> int:
        """Return the number of offsets that are still to be replicated."""
        return sum([max(0, offset + 1 - await self._next(at)) for at, offset in offsets.items()])

    async def _advance(self, at: TopicPartition, offset: int) -> bool:
        start = await self._next(at)
        if start > offset:
            return True
        layout = await read_layout(self._store, at.topic)
        if layout is None:
            raise UnknownTopic(at.topic)
        async for batch in self._log.read(at, start, offset + 1, max_records=_RECORDS_AT_ONCE):
            last = min(batch.next_offset - 1, offset)
            done = await replicate_batch(self._store, layout, at, batch.records, up_to=last, views=self._writer)
            if done.offset < last:
                return False
        return True

    async def _next(self, at: TopicPartition) -> int:
        """Return the first offset of a partition that is not replicated. Of a recreated topic nothing is replicated."""
        known = await self._store.reader.replicated(at)
        layout = await read_layout(self._store, at.topic)
        is_of_topic = known is not None and (
            layout is None or known.generation >= layout.first_generation(at.partition)
        )
        return known.offset + 1 if known is not None and is_of_topic else 0


_ROWS_AT_ONCE = 2000
_ATTEMPTS = 20
_WAIT_FOR_BATCHES_S = 60.0
_NOWHERE = Place(-1, -1)
_OFFSET_BITS = 34
_EVENT_BITS = 20


@dataclass(frozen=True)
class _Rebuilding:
    """What a rebuild writes: of one `tag`, or of all, at a place; nothing that was trimmed.

    With `is_lost` there are no rows any more. With `is_replicated` batches that were begun are brought to their end.
    """

    tag: str | None
    trimmed: Mapping[str, Trimmed]
    at: Place | None
    is_lost: bool
    is_replicated: bool


class _EventsGone(Exception):
    """Events that a rebuild is about to count were deleted from their journal meanwhile."""


class TagRepair:
    """Rebuilds and deletes views by tag. Replication may go on meanwhile; it waits only if the tables were emptied."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._log = log
        self._store = store
        self._registry = TagRegistry(store, settings)
        self._seams = SeamReader(log, store, self._registry, Floors(store, self._registry, log))
        self._catching_up = CatchingUp(log, store, settings)

    async def rebuild_all(self, progress: Progress = SILENT) -> int:
        """Write all views again from the journals, then let replication go on; return the number of rows.

        Tables that were not emptied keep their epoch and their back-filled tags. A store that was replicated without
        views gets them.
        """
        await self._store.tags.prepare()
        is_off = (await self._registry.begin_building()).use is not TagUse.ON
        facts = await self._seams.discover()
        lost = await self._registry.lost_tables(facts)
        if lost == (NUMBERS_TABLE,):
            await self._count_rows()
        trimmed = await all_trimmed(self._store.settings)
        count = 0
        for topic in facts.topics:
            with progress.step(f"rebuilding the views of {topic}", unit="journals") as step:
                async for meta in self._metas(topic):
                    is_lost = bool(set(lost) - {NUMBERS_TABLE})
                    work = _Rebuilding(None, trimmed, None, is_lost=is_lost, is_replicated=not lost and not is_off)
                    count += await self._rebuild(meta, work)
                    step.advance()
        if lost or is_off:
            await self._registry.begin_epoch()
        return count

    async def give_up(self) -> bool:
        """Keep no views by tag from now on, so that processes may replicate without; False if there were none."""
        return await self._registry.switch_off()

    async def rebuild(self, topic: str, id_: str, tag: str) -> int:
        """Write a journal's rows under a tag again; return their number. Raises BadArgument for a back-filled tag."""
        facts = await self._registry.open()
        if (fill := facts.fills.get(tag)) is not None:
            rule = f"history was given it afterwards; run: headrace tags backfill {tag} {fill.function} --again"
            raise BadArgument("tag", tag, rule)
        place = await self._place(topic, id_)
        meta = await self._store.reader.meta(topic, id_)
        if meta is None or not exists(meta):
            return 0
        trimmed = await all_trimmed(self._store.settings)
        count = await self._rebuild(meta, _Rebuilding(tag, trimmed, place, is_lost=False, is_replicated=True))
        await self._find_first(topic, id_, tag, place)
        return count

    async def delete(self, topic: str, id_: str, tag: str) -> int:
        """Remove a journal's rows under a tag up to now; return their number. New events get the numbers after theirs.

        Readers that had not reached the rows go on with what comes later.
        """
        await self._registry.open()
        place = await self._place(topic, id_)
        count = highest = 0
        async for rows in self._rows(topic, id_, tag):
            gone = [row for row in rows if row.place <= place]
            await self._store.tags.views.delete(gone, at=place)
            count, highest = count + len(gone), max([highest, *(row.number for row in gone)])
        if count:
            await self._store.tags.numbers.begin_at(topic, id_, tag, highest + 1, at=place)
        return count

    async def mark(self, at: TopicPartition) -> Place:
        """Write a Mark into a partition and return its place after replication has reached it."""
        layout = await self._layout(at.topic)
        offset = await write_mark(self._log, at, MARK_KEY.decode(), Mark(id=uuid.uuid4().hex))
        await self._catching_up.reach({at: offset})
        return Place(layout.generation, offset)

    async def repair_journal(
        self,
        topic: str,
        id_: str,
        right: Sequence[TagRow],
        wrong: Sequence[TagRow],
        numbers: Sequence[TagNumber],
        *,
        at: Place,
    ) -> None:
        """Repair a journal's rows: remove the wrong ones, however they came there, then write the right ones.

        `at` is the place of a `mark` in the journal's partition, from before the journal was checked. The numbering is
        written first. If it does not change, because it was stored at a place that the log has not reached, nothing of
        that tag is changed: replication would give the numbers of the new rows to later events.
        """
        kept = await self._put_numbers(topic, id_, numbers, at)
        right, wrong = ([row for row in rows if row.tag not in kept] for rows in (right, wrong))
        await self._store.tags.views.delete([*wrong, *right], at=Place(at.generation, at.offset - 1))
        await self._write(right, at)
        if redacted := [row for row in right if row.is_redacted]:
            await self._store.tags.views.redact(redacted, at=at)

    async def _put_numbers(self, topic: str, id_: str, numbers: Sequence[TagNumber], at: Place) -> set[str]:
        """Write numbers; return the tags whose stored numbers are still lower."""
        if not numbers:
            return set()
        await self._store.tags.numbers.write(numbers, at=at)
        found = await self._store.tags.numbers.of(topic, id_)
        return {right.tag for right in numbers if (known := found.get(right.tag)) is None or not _covers(known, right)}

    async def _count_rows(self) -> None:
        """Write the numbering again from the rows: the last number of each journal under each tag.

        Rows beyond the replicated offset do not count: rows before them may be missing after a batch that failed.
        """
        views, replicated = self._store.tags.views, await self._replicated()
        for tag in await views.tags():
            first: dict[tuple[str, str], TagRow] = {}
            last: dict[tuple[str, str], TagNumber] = {}
            for bucket_ms in await views.buckets(tag):
                async for page in views.read(tag, bucket_ms):
                    for row in page:
                        if row.place > replicated.get(TopicPartition(row.topic, row.partition), _NOWHERE):
                            continue
                        first.setdefault((row.topic, row.pid), row)
                        last[row.topic, row.pid] = number_of(row)
            numbers = list(last.values())
            for start in range(0, len(numbers), _ROWS_AT_ONCE):
                await self._store.tags.numbers.write(numbers[start : start + _ROWS_AT_ONCE])
            for (topic, pid), row in first.items():
                if row.number > 1:
                    await self._store.tags.numbers.begin_at(topic, pid, tag, row.number, at=row.place)

    async def _replicated(self) -> dict[TopicPartition, Place]:
        """Return the replicated offsets of all partitions."""
        found: dict[TopicPartition, Place] = {}
        for topic in (await self._seams.announced()).topics:
            layout = await read_layout(self._store, topic)
            most = max(generation.partitions for generation in layout.generations) if layout is not None else 0
            for at in (TopicPartition(topic, partition) for partition in range(most)):
                if (known := await self._store.reader.replicated(at)) is not None:
                    found[at] = Place(known.generation, known.offset)
        return found

    async def _find_first(self, topic: str, id_: str, tag: str, at: Place) -> None:
        """Find where a journal's rows begin: at the lowest number from which on there is no gap."""
        known = (await self._store.tags.numbers.of(topic, id_)).get(tag)
        if known is None:
            return
        found = {row.number async for rows in self._rows(topic, id_, tag) for row in rows if row.place <= at}
        first = max(found, default=known.number) + 1
        while first - 1 in found:
            first -= 1
        if first != known.first:
            await self._store.tags.numbers.begin_at(topic, id_, tag, first, at=at)

    async def _rows(self, topic: str, id_: str, tag: str) -> AsyncIterator[list[TagRow]]:
        views = self._store.tags.views
        for bucket_ms in await views.buckets(tag):
            async for page in views.read(tag, bucket_ms):
                yield [row for row in page if (row.topic, row.pid) == (topic, id_)]

    async def _rebuild(self, meta: JournalMeta, work: _Rebuilding) -> int:
        """Write a journal's rows; return their number. Replication may go on and delete some of its events meanwhile.

        Raises OperationFailed if that happens again and again.
        """
        for _ in range(_ATTEMPTS):
            settled = await self._settled(meta, work)
            if settled is None:
                return 0
            try:
                return await self._rebuild_settled(*settled, work)
            except _EventsGone:
                continue
        raise OperationFailed(
            f"rebuilding the views of {meta.id!r}", "its events are being deleted; run it again later"
        )

    async def _settled(self, meta: JournalMeta, work: _Rebuilding) -> tuple[JournalMeta, dict[str, TagNumber]] | None:
        """Return a journal's head, and the numbering as it stood with that; None if the journal is gone.

        A batch that is being replicated has written its numbers and not yet its journals. If its numbers were taken
        for those of the events that the journal has, these would get numbers twice.
        """
        fills = (await self._seams.announced()).fills
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _WAIT_FOR_BATCHES_S
        while True:
            found = await self._store.reader.meta(meta.topic, meta.id)
            known = dict(await self._store.tags.numbers.of(meta.topic, meta.id))
            if found is None or not exists(found):
                return None
            ahead = [tag for tag, number in known.items() if tag not in fills and number.place > found.place]
            if not ahead or not work.is_replicated:
                return found, known
            if not await self._end_batch(found, max(known[tag].place for tag in ahead)):
                return found, known
            if loop.time() > deadline_s:
                reason = "its events are being replicated all the time; run it again later"
                raise OperationFailed(f"rebuilding the views of {meta.id!r}", reason)

    async def _end_batch(self, meta: JournalMeta, place: Place) -> bool:
        """Replicate up to the place of a journal's number: the replicator that wrote it may have died.

        Returns False if the log has no such place: the number is damaged, and no batch wrote it.
        """
        layout = await self._layout(meta.topic)
        partition = meta.partition  # that of the key, unless producers ignore the key and the topic has never grown
        if layout.generation > 0:
            partition = partition_of(meta.id.encode(), layout.generations[place.generation].partitions)
        at = TopicPartition(meta.topic, partition)
        end = await self._seams.end(at)
        if end is None or place.offset >= end:
            return False
        await self._catching_up.reach({at: place.offset})
        return True

    async def _rebuild_settled(self, meta: JournalMeta, known: dict[str, TagNumber], work: _Rebuilding) -> int:
        facts, tag, at = await self._seams.announced(), work.tag, work.at
        # Journals do not have back-filled tags.
        filled = {tag: TagFill(fill.id, fill.function) for tag, fill in facts.fills.items()}
        numbering = Numbering(meta.topic, facts.topics[meta.topic].number, self._registry.bucket, filled)
        counted = await self._before(meta, known)
        before = {name: number for name, number in counted.items() if name not in filled and tag in (None, name)}
        last = {name: _numbered(meta, name, number) for name, number in before.items()}
        count = 0
        async for events in self._counted_events(meta):
            done = numbering.number(meta.id, events, last)
            last |= done.numbers
            # Older versions counted from 1 again after a removal: what comes before number 1 stays removed.
            wanted = [row for row in done.rows if row.number > 0 and (tag is None or row.tag == tag)]
            rows = [row for row in wanted if not is_trimmed(work.trimmed, row)]
            await self._write(rows, at)
            count += len(rows)
        fresh = [last[name] for name in before if name not in known or last[name].place > known[name].place]
        await self._store.tags.numbers.write(fresh, at=at)
        for name, number in before.items():
            if number > 0 and (work.is_lost or name not in known):
                await self._store.tags.numbers.begin_at(meta.topic, meta.id, name, number + 1, at=at or meta.place)
        return count

    async def _write(self, rows: list[TagRow], at: Place | None) -> None:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            await self._store.tags.views.write(rows[start : start + _ROWS_AT_ONCE], at=at)

    async def _before(self, meta: JournalMeta, known: dict[str, TagNumber]) -> dict[str, int]:
        """Return, by tag, the number before that of the first event that is left."""
        left = dict.fromkeys(known, 0)
        unknown: set[str] = set()
        async for events in self._events(meta):
            for event in events:
                unknown |= set(event.tags) - set(known)
                for tag in set(event.tags) & set(known):
                    left[tag] += event.place <= known[tag].place
        return {
            **{tag: known[tag].number - count for tag, count in left.items()},
            **dict.fromkeys(unknown, highest_gone(meta)),
        }

    async def _events(self, meta: JournalMeta) -> AsyncIterator[list[EventRow]]:
        async for page in self._pages(meta):
            yield _tagged(meta, page)

    async def _counted_events(self, meta: JournalMeta) -> AsyncIterator[list[EventRow]]:
        """Yield the events that were counted before. Raises _EventsGone if some have been deleted since then.

        Replication moves a journal's head before it removes rows, so the head is read after each page.
        """
        read_to = meta.delete_to
        async for page in self._pages(meta):
            now = await self._store.reader.meta(meta.topic, meta.id)
            if now is None or now.record_id != meta.record_id or now.delete_to > read_to:
                raise _EventsGone
            read_to = max([read_to, *(row.seq_nr for row in page)])
            yield _tagged(meta, page)

    def _pages(self, meta: JournalMeta) -> AsyncIterator[Sequence[EventRow]]:
        return self._store.reader.rows(
            meta.topic, meta.id, segment_size=meta.segment_size, first=meta.delete_to + 1, last=meta.seq_nr
        )

    async def _metas(self, topic: str) -> AsyncIterator[JournalMeta]:
        async for page in self._store.reader.metas(topic):
            for meta in page:
                if exists(meta):
                    yield meta

    async def _place(self, topic: str, id_: str) -> Place:
        """Write a Mark into the journal's partition and return its place after replication has reached it.

        If replication wrote rows of records below the Mark later, they would lose to the repair.
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


def _tagged(meta: JournalMeta, page: Sequence[EventRow]) -> list[EventRow]:
    return [row for row in page if row.tags and row.record_id == meta.record_id and row.place <= meta.place]


def _covers(known: TagNumber, right: TagNumber) -> bool:
    """Return True if the numbering is as it should be, or has gone on from there."""
    is_same = (known.number, known.place) == (right.number, right.place)
    return is_same or (known.number > right.number and known.place > right.place)


def highest_gone(meta: JournalMeta) -> int:
    """Return a number that is at least as high as that of any event that is gone from a journal.

    An event's number under a tag is at most its seq_nr, but numbers go on over purges. Of the events that a purge
    removed only the place of the purge is known; no record holds 2²⁰ events.
    """
    if meta.purged_at is None:
        return meta.delete_to
    generation, offset = meta.purged_at
    return (((generation << _OFFSET_BITS) + offset + 1) << _EVENT_BITS) + meta.delete_to


def _numbered(meta: JournalMeta, tag: str, number: int) -> TagNumber:
    """Return a number as it stood before all that is left."""
    return TagNumber(topic=meta.topic, pid=meta.id, tag=tag, seq_nr=0, number=number, generation=-1, offset=-1)
