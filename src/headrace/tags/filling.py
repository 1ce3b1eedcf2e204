"""Giving a tag to history: the steps of a fill, as all processes see them.

Whoever fills begins, counts what is replicated, closes, counts the rest and finishes; replication goes on up to the
cut. Rows are written as of `since`, so that they win over what is swept away: rows under the tag from before the fill,
or of an attempt that died. For this reason a fill never goes on where another one died; it begins anew.
"""

from __future__ import annotations

import uuid

import msgspec

from headrace.config import TagSettings
from headrace.errors import BadArgument, OperationFailed, TagBuilding
from headrace.journal import Layout
from headrace.journal.actions import Mark
from headrace.journal.headers import encode_action
from headrace.journal.topology import layout_key
from headrace.log import Log
from headrace.model import NewRecord, TopicPartition
from headrace.store import Store
from headrace.tags.fills import FillState, PlacesOfTopic, TagFill
from headrace.tags.floors import Floors, read_layout
from headrace.tags.marking import MARK_KEY
from headrace.tags.registry import Registry, TagRegistry
from headrace.tags.seams import SeamReader
from headrace.tags.trimmed import read_trimmed

__all__ = ["TagFills"]


class TagFills:
    """Begins, closes and finishes the fills of tags."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._log = log
        self._store = store
        self._registry = TagRegistry(store, settings)
        self._seams = SeamReader(log, store, self._registry, Floors(store, self._registry, log))

    async def begin(self, tag: str, function: str, *, again: bool = False) -> TagFill:
        """Say that a tag is being filled; a tag that was filled by this function stays as it is.

        With `again` it is filled anew, whoever may have been at it. Raises TagBuilding, and BadArgument where there
        is no journal: addresses that are wrong lead to an empty place.
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
        registry = await self._registry.change(lambda known: _begun(known, tag, fresh, again=again))
        fill = registry.fills[tag]
        if fill.id != fresh.id:
            return fill
        since = await self._mark()
        return await self._change(tag, fill, since=since)

    async def close(self, tag: str, fill: TagFill) -> TagFill:
        """Choose the cut; replication waits there from now on. Raises OperationFailed if a topic has grown."""
        closing = await self._change(tag, fill, state=FillState.CLOSING, close_id=uuid.uuid4().hex, cut={})
        cut = await self._mark()
        for topic, places in cut.items():
            if topic in fill.since and fill.since[topic].generation != places.generation:
                await self._change(tag, closing, state=FillState.BUILDING, close_id="")
                raise OperationFailed(f"back-filling tag {tag!r}", f"topic {topic!r} has grown meanwhile; begin again")
        return await self._change(tag, closing, cut=cut)

    async def finish(self, tag: str, fill: TagFill) -> bool:
        """Let replication and queries go on; False if replication has gone on by itself: then close again."""

        def edit(registry: Registry) -> Registry:
            known = _same(registry.fills.get(tag), tag, fill.id)
            if known.close_id != fill.close_id:
                return registry
            return registry.with_fill(tag, msgspec.structs.replace(known, state=FillState.READY))

        return (await self._registry.change(edit)).fills[tag].is_ready

    async def current(self, tag: str, fill_id: str) -> TagFill:
        """Return a fill as it is now. Raises OperationFailed if it is not this one any more."""
        return _same((await self._registry.read()).fills.get(tag), tag, fill_id)

    async def _change(self, tag: str, fill: TagFill, **changes: object) -> TagFill:
        """Change a fill, unless somebody else did."""

        def edit(registry: Registry) -> Registry:
            known = _same(registry.fills.get(tag), tag, fill.id)
            return registry.with_fill(tag, msgspec.structs.replace(known, **changes))

        return (await self._registry.change(edit)).fills[tag]

    async def _mark(self) -> dict[str, PlacesOfTopic]:
        """Write a Mark into every partition, after what it stands for was said, and return where they are."""
        topics = (await self._seams.discover()).topics
        there = set(await self._log.admin.topics())
        layouts = [layout for topic in topics if (layout := await read_layout(self._store, topic)) is not None]
        return {layout.topic: await self._mark_topic(layout, is_gone=layout.topic not in there) for layout in layouts}

    async def _mark_topic(self, layout: Layout, *, is_gone: bool) -> PlacesOfTopic:
        """Mark one topic. Partitions that it had before it was made anew, or all if it is gone, get no more records."""
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


def _begun(known: Registry, tag: str, fresh: TagFill, *, again: bool) -> Registry:
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
