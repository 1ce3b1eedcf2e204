"""Back-fill of a tag: its steps, as all processes see them, and the numbering of history in one topic.

A fill starts, counts what is replicated, closes, counts the rest and finishes; replication continues up to the cut.
Rows are written as of `since`, so that they win over rows under the tag from before the fill, or of an attempt that
died. For this reason a fill never continues where another one died; it starts again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.config import TagSettings
from headrace.errors import BadArgument, OperationFailed, TagBuilding, UnknownTopic
from headrace.journal import Layout, layout_key
from headrace.log import Log
from headrace.model import NewRecord, TopicPartition
from headrace.protocol import Mark, encode_action, exists, stored_event
from headrace.runtime import crash_point
from headrace.store import EventRow, JournalMeta, Place, Store, TagNumber, TagRow, tag_time_of
from headrace.tags.events import TaggedEvent, TagOffset, tagged
from headrace.tags.floors import Floors, read_layout
from headrace.tags.marks import MARK_KEY
from headrace.tags.registry import Bucket, FillState, PlacesOfTopic, TagFacts, TagFill, TagRegistry
from headrace.tags.seams import SeamReader
from headrace.tags.view_rows import read_trimmed
from headrace.tags.write import Numbering

__all__ = ["Chooser", "Counted", "HistoryCount", "TagFills"]

Chooser: TypeAlias = Callable[[TaggedEvent], bool]

_PIDS_AT_ONCE = 32


class Counted(NamedTuple):
    """The result: journals and events that were read, and rows that were written under the tag."""

    journals: int = 0
    events: int = 0
    rows: int = 0


class HistoryCount:
    """Gives a tag to those events of one topic's journals that a function chooses.

    A numbering at or above the fill's `since` was made by this fill; a lower one is from before it. `since` is that of
    the partition where a journal is now. Its records may be in another one if the topic has grown.

    The work can be divided as one likes: `sweep` and `count` take some rows and some heads, in any order, and `settle`
    one journal at a time, after all of them.
    """

    def __init__(
        self, store: Store, settings: TagSettings, facts: TagFacts, tag: str, topic: str, choose: Chooser
    ) -> None:
        self._store = store
        self._tag = tag
        self._topic = topic
        self._choose = choose
        self._fill: TagFill = facts.fills[tag]
        self._layout: Layout | None = None
        self._is_redacted = tag in facts.redact
        self._numbering = Numbering(topic, facts.topics[topic].number, Bucket[settings.bucket])

    async def sweep(self, rows: Sequence[TagRow]) -> None:
        """Remove those of the topic's rows under the tag that are from before the fill.

        What the fill writes wins over the removal, so it does not matter which comes first.
        """
        for home, of_home in (await self._by_home(rows)).items():
            since = self._fill.since_of(home)
            old = [row for row in of_home if row.place <= since]
            await self._store.tags.views.delete(old, at=_before(since))
            for pid in {row.pid for row in old}:
                if await self._store.reader.meta(self._topic, pid) is None:
                    await self._store.tags.numbers.delete(self._topic, pid, self._tag, at=_before(since))

    async def count(self, metas: Iterable[JournalMeta]) -> Counted:
        """Number journals, as far as they were not numbered before."""
        limit = asyncio.Semaphore(_PIDS_AT_ONCE)

        async def one(meta: JournalMeta) -> Counted:
            async with limit:
                return await self._count(meta)

        found = await asyncio.gather(*map(one, metas))
        return Counted(len(found), sum(each.events for each in found), sum(each.rows for each in found))

    async def settle(self, meta: JournalMeta | None, rows: Sequence[TagRow]) -> None:
        """Check all rows of one journal under the tag, when everything is counted and replication waits at the cut.

        Rows of events that were deleted from the journal are redacted, if the tag is, also if the row came later. Rows
        from a replicator that learned of the fill late are removed.
        """
        if self._is_redacted and meta is not None:
            gone = [row for row in rows if _is_gone(row, meta)]
            if gone:
                await self._store.tags.views.redact(gone, at=max(meta.place, await self._since(meta)))
        for home, of_home in (await self._by_home(rows)).items():
            if not _is_consecutive(of_home):
                await self._sweep_late(home, of_home)

    async def _sweep_late(self, home: TopicPartition, rows: Sequence[TagRow]) -> None:
        """Remove rows of one journal that lie between our own rows, which win over the removal."""
        before = _before(self._fill.since_of(home))
        await self._store.tags.views.delete(rows, at=before)
        for pid in {row.pid for row in rows}:
            await self._store.tags.numbers.delete(self._topic, pid, self._tag, at=before)

    async def _count(self, meta: JournalMeta) -> Counted:
        numbers = await self._store.tags.numbers.of(meta.topic, meta.id)
        known, since = numbers.get(self._tag), await self._since(meta)
        if known is not None and known.place > max(meta.place, since):
            raise self._unreachable(meta, known)
        if known is not None and known.place < since:
            await self._store.tags.numbers.delete(meta.topic, meta.id, self._tag, at=_before(since))
            known = None
        last: TagRow | None = None
        count = events = 0
        async for read, rows in self._new_rows(meta, known):
            events, count = events + read, count + len(rows)
            if rows:
                await self._write(rows, since)
                last = rows[-1]
        crash_point("tags.fill-before-progress")
        if last is not None:
            await self._store.tags.numbers.write([self._progress(meta, last.number, since)])
        return Counted(1, events, count)

    def _unreachable(self, meta: JournalMeta, known: TagNumber) -> OperationFailed:
        """Return the error for a numbering at a place that the log has not reached: a write now can't replace it."""
        return OperationFailed(
            f"back-filling tag {self._tag!r}",
            f"the numbers of {meta.id!r} were noted at generation {known.generation}, offset {known.offset}, which its "
            f"partition has not come to; run: headrace topic grow {meta.topic} with more partitions, "
            "then the back-fill with --again",
        )

    async def _new_rows(self, meta: JournalMeta, known: TagNumber | None) -> AsyncIterator[tuple[int, list[TagRow]]]:
        """Yield how many events were read that were not numbered before, and the rows of those that are chosen."""
        number = known.number if known is not None else 0
        async for events in self._events(meta, known):
            rows = []
            for event in events:
                if self._choose(self._told(meta.id, event, number + 1)):
                    number += 1
                    rows.append(self._numbering.row(meta.id, event, self._tag, number))
            yield len(events), rows

    async def _events(self, meta: JournalMeta, known: TagNumber | None) -> AsyncIterator[list[EventRow]]:
        """Yield the events that were not read before; all of them if the journal was purged since then."""
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
        return tagged(stored_event(pid, event), self._tag, self._topic, pid, number, offset)

    async def _write(self, rows: Sequence[TagRow], since: Place) -> None:
        views = self._store.tags.views
        if old := [row for row in rows if row.place <= since]:
            await views.write(old, at=since)
        if new := [row for row in rows if row.place > since]:
            await views.write(new)

    def _progress(self, meta: JournalMeta, number: int, since: Place) -> TagNumber:
        """Return how far a journal is numbered: up to its state."""
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
        """Return the place below which a journal's rows and numbers are from before the fill."""
        return self._fill.since_of(await self._home(meta.id, meta.partition))

    async def _by_home(self, rows: Sequence[TagRow]) -> dict[TopicPartition, list[TagRow]]:
        """Return the topic's rows by the partition that their journals are in now, wherever they were before."""
        found: dict[TopicPartition, list[TagRow]] = {}
        for row in rows:
            if row.topic == self._topic:
                found.setdefault(await self._home(row.pid, row.partition), []).append(row)
        return found

    async def _home(self, id_: str, partition: int) -> TopicPartition:
        if self._layout is None:
            self._layout = await read_layout(self._store, self._topic)
        if self._layout is None:
            raise UnknownTopic(self._topic)
        return self._fill.home_of(self._layout, id_, partition)


def _before(since: Place) -> Place:
    return Place(since.generation, since.offset - 1)


def _is_consecutive(rows: Sequence[TagRow]) -> bool:
    """Return True if the rows of a journal have the numbers 1, 2, 3, … in their order."""
    ordered = sorted(rows, key=lambda row: (row.bucket_ms, tag_time_of(row.timestamp), row.number))
    return [row.number for row in ordered] == list(range(1, len(ordered) + 1))


def _is_gone(row: TagRow, meta: JournalMeta) -> bool:
    """Return True if a row's event is not in its journal any more."""
    if row.is_redacted:
        return False
    is_purged = meta.is_purged or (meta.purged_at is not None and row.place <= meta.purged_at)
    return is_purged or row.seq_nr <= meta.delete_to


class TagFills:
    """Begins, closes and finishes the fills of tags."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._log = log
        self._store = store
        self._registry = TagRegistry(store, settings)
        self._seams = SeamReader(log, store, self._registry, Floors(store, self._registry, log))

    async def begin(self, tag: str, function: str, *, again: bool = False) -> TagFill:
        """Begin to fill a tag; a tag that was filled by the same function stays as it is.

        With `again` it is filled again, also if another process was filling it. Raises TagBuilding, and BadArgument if
        there are no journals: the addresses may be wrong.
        """
        if not await self._store.settings.all(layout_key("")):
            raise BadArgument(
                "tag", tag, "there are no journals here to give it to; check the addresses of log and store"
            )
        known = (await self._registry.open()).fills.get(tag)
        trimmed = await read_trimmed(self._store.settings, tag)
        if trimmed is not None and (again or known is None):
            rule = f"its events up to offset {trimmed.last} were removed because of their age; give history another tag"
            raise BadArgument("tag", tag, rule)
        fresh = TagFill(uuid.uuid4().hex, function)
        facts = await self._registry.change(lambda known: _begun(known, tag, fresh, again=again))
        fill = facts.fills[tag]
        if fill.id != fresh.id:
            return fill
        since = await self._mark()
        return await self._change(tag, fill, since=since)

    async def close(self, tag: str, fill: TagFill) -> TagFill:
        """Choose the cut, where replication waits from now on. Raises OperationFailed if a topic has grown."""
        closing = await self._change(tag, fill, state=FillState.CLOSING, close_id=uuid.uuid4().hex, cut={})
        cut = await self._mark()
        for topic, places in cut.items():
            if topic in fill.since and fill.since[topic].generation != places.generation:
                await self._change(tag, closing, state=FillState.BUILDING, close_id="")
                raise OperationFailed(f"back-filling tag {tag!r}", f"topic {topic!r} has grown meanwhile; begin again")
        return await self._change(tag, closing, cut=cut)

    async def finish(self, tag: str, fill: TagFill) -> bool:
        """Let replication and queries go on; False if replication stopped waiting before: then close the fill again."""

        def edit(facts: TagFacts) -> TagFacts:
            known = _same(facts.fills.get(tag), tag, fill.id)
            if known.close_id != fill.close_id:
                return facts
            return facts.with_fill(tag, msgspec.structs.replace(known, state=FillState.READY))

        return (await self._registry.change(edit)).fills[tag].is_ready

    async def current(self, tag: str, fill_id: str) -> TagFill:
        """Return a fill as it is now. Raises OperationFailed if another one has replaced it."""
        return _same((await self._registry.read()).fills.get(tag), tag, fill_id)

    async def _change(self, tag: str, fill: TagFill, **changes: object) -> TagFill:
        """Change a fill. Raises OperationFailed if another one has replaced it."""

        def edit(facts: TagFacts) -> TagFacts:
            known = _same(facts.fills.get(tag), tag, fill.id)
            return facts.with_fill(tag, msgspec.structs.replace(known, **changes))

        return (await self._registry.change(edit)).fills[tag]

    async def _mark(self) -> dict[str, PlacesOfTopic]:
        """Write a Mark into every partition and return their places. What they stand for must be stored before."""
        topics = (await self._seams.discover()).topics
        there = set(await self._log.admin.topics())
        layouts = [layout for topic in topics if (layout := await read_layout(self._store, topic)) is not None]
        return {layout.topic: await self._mark_topic(layout, is_gone=layout.topic not in there) for layout in layouts}

    async def _mark_topic(self, layout: Layout, *, is_gone: bool) -> PlacesOfTopic:
        """Mark one topic. If it was deleted, or recreated with fewer partitions, some places get no more records."""
        most = max(generation.partitions for generation in layout.generations)
        offsets = dict.fromkeys(range(most), -1)
        ats = [TopicPartition(layout.topic, partition) for partition in range(layout.partitions)]
        if is_gone:
            found = [await self._store.reader.replicated(at) for at in ats]
            offsets |= {known.at.partition: known.offset + 1 for known in found if known is not None}
        else:
            positions = await self._log.append([_mark_of(at) for at in ats])
            offsets |= {position.partition: position.offset for position in positions}
        return PlacesOfTopic(layout.generation, offsets, is_gone)


def _begun(known: TagFacts, tag: str, fresh: TagFill, *, again: bool) -> TagFacts:
    found = known.fills.get(tag)
    if found is not None and not again:
        if found.is_ready and found.function == fresh.function:
            return known
        raise TagBuilding(tag, found.function)
    return known.with_fill(tag, fresh)


def _same(found: TagFill | None, tag: str, fill_id: str) -> TagFill:
    if found is None or found.id != fill_id:
        raise OperationFailed(f"back-filling tag {tag!r}", "another back-fill of it has begun")
    return found


def _mark_of(at: TopicPartition) -> NewRecord:
    return NewRecord(at.topic, MARK_KEY, None, encode_action(Mark(id=uuid.uuid4().hex)), partition=at.partition)
