"""Writing of views by tag for a batch: rows first, then the numbers, so that a replay repairs a crash in between.

Replication calls the writer as its `Views`. A process keeps the numbers of the journals it saw as long as its batches
follow one another in one generation; if the replicated offset is not where it left it, or a journal is further than
that, it forgets them. Redacted events keep their rows, so that numbers have no gaps. Whether a store keeps views is a
fact of the store: a process with other settings would leave events out of the views for good, and nothing would show
it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from headrace.config import TagSettings
from headrace.errors import TagsInUse
from headrace.journal import Layout
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.protocol import KeyFold, Removal
from headrace.runtime import crash_point
from headrace.store import EventRow, Place, ReplicatedOffset, Store, TagNumber, TagRow, TagTime, tag_time_of, timeuuid
from headrace.tags.floors import Floors
from headrace.tags.metrics import ROWS
from headrace.tags.registry import Bucket, FillState, TagFacts, TagFill, TagRegistry, TagUse, check_use, reopened

__all__ = ["Numbered", "Numbering", "Redaction", "TagWriter", "UntaggedViews", "number_of", "unique_tags"]


class Numbered(NamedTuple):
    """What a batch adds for one pid: the rows, which are written first, and the last number of each tag."""

    rows: list[TagRow]
    numbers: dict[str, TagNumber]


def unique_tags(tags: Iterable[str]) -> list[str]:
    """Return an event's tags, each once: an event has one place under a tag."""
    return list(dict.fromkeys(tags))


def number_of(row: TagRow) -> TagNumber:
    """Return the state of the numbering after a row."""
    return TagNumber(
        topic=row.topic,
        pid=row.pid,
        tag=row.tag,
        seq_nr=row.seq_nr,
        number=row.number,
        generation=row.generation,
        offset=row.offset,
    )


class Numbering:
    """Numbers the events of one topic. Events that a tag's fill decides about are left to it."""

    def __init__(
        self, topic: str, topic_number: int, bucket: Bucket, fills: Mapping[str, TagFill] | None = None
    ) -> None:
        self.topic = topic
        self.topic_number = topic_number
        self.bucket = bucket
        self._fills = fills or {}

    def number(self, pid: str, events: Iterable[EventRow], known: Mapping[str, TagNumber]) -> Numbered:
        """Number the events of a pid, which come in the order of the log.

        An event at or below a tag's known place was numbered before, and its row exists: rows are written before
        numbers. Places are compared, never seq_nrs: those start again after a purge, and numbers do not.
        """
        done = Numbered([], {})
        for event in events:
            for tag in self._tags(event):
                last = known.get(tag)
                if last is not None and event.place <= last.place:
                    continue
                count = done.numbers.get(tag, last)
                row = self.row(pid, event, tag, count.number + 1 if count is not None else 1)
                done.rows.append(row)
                done.numbers[tag] = number_of(row)
        return done

    def _tags(self, event: EventRow) -> list[str]:
        tags = unique_tags(event.tags)
        if not self._fills:
            return tags
        at = TopicPartition(self.topic, event.partition)
        return [tag for tag in tags if tag not in self._fills or not self._fills[tag].leaves_out(at, event.place)]

    def time_of(self, event: EventRow) -> TagTime:
        """Return an event's place in the order of tagged events."""
        return TagTime(event.log_time_ms, self.topic_number, event.partition, event.offset)

    def row(self, pid: str, event: EventRow, tag: str, number: int) -> TagRow:
        """Return an event's row under a tag."""
        return TagRow(
            tag=tag,
            bucket_ms=self.bucket.start_of(event.log_time_ms),
            timestamp=timeuuid(self.time_of(event)),
            pid=pid,
            number=number,
            seq_nr=event.seq_nr,
            topic=self.topic,
            generation=event.generation,
            partition=event.partition,
            offset=event.offset,
            timestamp_ms=event.timestamp_ms,
            tags=event.tags,
            payload_type=event.payload_type,
            payload=event.payload,
            metadata=event.metadata,
            headers=event.headers,
            origin=event.origin,
            version=event.version,
        )


class Redaction:
    """Redacts the rows of deleted events under the tags that are named in the store.

    It runs before the journals of a batch are written: the deleted events must still exist to find their rows. If a
    replay finds them gone, the rows were redacted before.
    """

    def __init__(self, store: Store, facts: TagFacts) -> None:
        self._store = store
        self._tags = frozenset(facts.redact)
        self._filled = self._tags.intersection(facts.fills)  # events do not have these tags themselves

    async def apply(self, topic: str, folds: Mapping[str, KeyFold], numbering: Numbering) -> None:
        """Redact what the batch deletes."""
        if not self._tags:
            return
        for pid, fold in folds.items():
            for removal in fold.removals:
                await self._remove(topic, pid, fold, removal, numbering)

    async def _remove(self, topic: str, pid: str, fold: KeyFold, removal: Removal, numbering: Numbering) -> None:
        gone = [row for row in fold.tagged if row.place <= removal.place and row.seq_nr <= removal.last]
        gone += await self._stored(topic, pid, removal, any_tags=bool(self._filled))
        for event in gone:
            for tag in self._tags.intersection(unique_tags(event.tags)) | self._filled:
                rows = await self._rows(numbering.row(pid, event, tag, 0))
                await self._store.tags.views.redact(rows, at=removal.place)

    async def _stored(self, topic: str, pid: str, removal: Removal, *, any_tags: bool) -> list[EventRow]:
        """Return the stored events that a removal covers and that have one of the tags; with `any_tags` all of them."""
        meta = await self._store.reader.meta(topic, pid)
        if meta is None or removal.last < removal.first:
            return []
        pages = self._store.reader.rows(
            topic, pid, segment_size=meta.segment_size, first=removal.first, last=removal.last
        )
        return [
            row
            async for page in pages
            for row in page
            if row.record_id == meta.record_id and row.place < removal.place
            if any_tags or self._tags.intersection(row.tags)
        ]

    async def _rows(self, like: TagRow) -> list[TagRow]:
        """Return an event's rows under a tag; the event alone does not show their numbers."""
        at = tag_time_of(like.timestamp)
        pages = self._store.tags.views.read(like.tag, like.bucket_ms, first=at, last=at)
        return [row async for page in pages for row in page if row.pid == like.pid and row.seq_nr == like.seq_nr]


class UntaggedViews:
    """Takes the place of TagWriter in a store without views by tag, and stores that there are none.

    Promises: nothing is replicated into a store that keeps views by tag. Raises TagsInUse.
    """

    def __init__(self, store: Store, settings: TagSettings) -> None:
        self._registry = TagRegistry(store, settings)

    async def open_topic(self, layout: Layout) -> None:
        """Store that there are no views, before anything is replicated."""
        await self._check()

    async def log_time_ms(self, layout: Layout, start: ReplicatedOffset) -> int:
        """Return the log time that the partition goes on from: its own."""
        await self._check()
        return start.log_time_ms

    async def last_offset(self, start: ReplicatedOffset) -> int | None:
        """Return None: replication never has to wait."""
        return None

    async def write(self, at: TopicPartition, folds: Mapping[str, KeyFold], *, up_to: int) -> None:
        """Write nothing, but check again: views may have been switched on since the batch began. Raises TagsInUse."""
        await self._check()

    async def _check(self) -> None:
        if (await self._registry.settle(TagUse.OFF)).use is not TagUse.OFF:
            raise TagsInUse


T = TypeVar("T")

_PIDS_AT_ONCE = 64
_ROWS_AT_ONCE = 20_000
_REMEMBERED = 100_000
_CHECK_EVERY_S = 1.0
_WAIT_FOR_FILL_S = 60.0
_NOWHERE = Place(-1, -1)


@dataclass(slots=True)
class _Followed:
    """A partition whose batches this process applies: the end of the last batch, and the numbers after it."""

    end: int = -2
    start: Place = _NOWHERE
    numbers: OrderedDict[str, dict[str, TagNumber]] = field(default_factory=OrderedDict)
    facts: TagFacts | None = None


class TagWriter:
    """Writes the views by tag of replicated batches.

    Promises: an event that counts has one row under each of its tags, with the next number of its (pid, tag), however
    often its batch is applied and by whichever process. Raises TagViewsLost if the tables were emptied.
    """

    def __init__(self, store: Store, settings: TagSettings, *, log: Log | None = None) -> None:
        self._store = store
        self._registry = TagRegistry(store, settings)
        self._floors = Floors(store, self._registry, log)
        self._facts: TagFacts | None = None
        self._checked_s = 0.0
        self._held_since_s: dict[str, float] = {}
        self._followed: dict[TopicPartition, _Followed] = {}

    async def open_topic(self, layout: Layout) -> None:
        """Determine everything about a topic that needs the log. Workers without a log rely on it."""
        facts = await self._open()
        self._facts, _ = await self._floors.generation(facts, layout, layout.generation)

    async def log_time_ms(self, layout: Layout, start: ReplicatedOffset) -> int:
        """Return the log time that the partition goes on from.

        The facts are read again for each batch: those of a fill are written before the Marks that stand for them.
        """
        followed = self._followed.setdefault(start.at, _Followed())
        await self._open()
        facts = check_use(await self._registry.read())
        facts, log_time_ms = await self._floors.log_time_ms(facts, layout, start)
        is_same_generation = followed.start.generation == start.generation
        is_continued = followed.end == start.offset and is_same_generation and followed.facts is not None
        if not is_continued or followed.facts is None or not _is_same_numbering(followed.facts, facts):
            followed.numbers.clear()
        self._facts = followed.facts = facts
        followed.start = Place(start.generation, start.offset)
        return log_time_ms

    async def last_offset(self, start: ReplicatedOffset) -> int | None:
        """Return the offset at which the partition must wait for a back-fill; None if it need not."""
        facts = self._followed[start.at].facts or await self._open()
        limits = [
            limit
            for tag, fill in facts.fills.items()
            if (limit := fill.last_offset(start.at, start.offset)) is not None and not await self._gives_up(tag, fill)
        ]
        return min(limits, default=None)

    async def _gives_up(self, tag: str, fill: TagFill) -> bool:
        """Open a fill again that holds up replication for too long: its process is dead, or will close it again."""
        now_s = time.monotonic()
        since_s = self._held_since_s.setdefault(fill.close_id, now_s)
        if now_s - since_s < _WAIT_FOR_FILL_S:
            return False
        facts = await self._registry.change(lambda known: reopened(known, tag, fill))
        return facts.fills[tag].state is FillState.BUILDING

    async def write(self, at: TopicPartition, folds: Mapping[str, KeyFold], *, up_to: int) -> None:
        """Write rows, then numbers, of all events that count; then redact what the batch deletes."""
        followed = self._followed.setdefault(at, _Followed())
        facts = followed.facts or await self._open()
        followed.end = -2  # until this batch is written
        _forget_counted_elsewhere(followed, folds)
        numbering = Numbering(at.topic, facts.topics[at.topic].number, self._registry.bucket, facts.fills)
        for pids in _slices(folds):
            await self._write_some(at.topic, pids, folds, numbering, followed)
        await Redaction(self._store, facts).apply(at.topic, folds, numbering)
        followed.end = up_to
        while len(followed.numbers) > _REMEMBERED:
            followed.numbers.popitem(last=False)

    async def _write_some(
        self, topic: str, pids: Sequence[str], folds: Mapping[str, KeyFold], numbering: Numbering, followed: _Followed
    ) -> None:
        async def number(pid: str) -> Numbered:
            known = followed.numbers.get(pid)
            if known is None:
                known = followed.numbers[pid] = dict(await self._store.tags.numbers.of(topic, pid))
            followed.numbers.move_to_end(pid)
            return numbering.number(pid, folds[pid].tagged, known)

        done = await _each(pids, number)
        rows = [row for one in done for row in one.rows]
        if not rows:
            return
        await self._store.tags.views.write(rows)
        crash_point("tags.before-progress")
        await self._store.tags.numbers.write([progress for one in done for progress in one.numbers.values()])
        crash_point("tags.after-progress")
        for pid, one in zip(pids, done, strict=True):
            followed.numbers[pid].update(one.numbers)
        ROWS.labels(topic).inc(len(rows))

    async def _open(self) -> TagFacts:
        """Return the facts; check the tables' epochs from time to time."""
        if self._facts is None or time.monotonic() - self._checked_s > _CHECK_EVERY_S:
            self._facts = await self._registry.open()
            self._checked_s = time.monotonic()
        return self._facts


def _forget_counted_elsewhere(followed: _Followed, folds: Mapping[str, KeyFold]) -> None:
    """Forget the numbers of pids that may have been raised without this process.

    Another process may have raised them and died without moving the offset: their records are not folded again. And a
    pid that the topic's growth moved to another partition, and a later one back, was numbered there meanwhile.
    """
    generation = followed.start.generation
    for pid, fold in folds.items():
        is_raised = fold.stored is not None and fold.stored > followed.start
        if is_raised or any(row.generation > generation for row in fold.tagged):
            followed.numbers.pop(pid, None)


def _is_same_numbering(one: TagFacts, other: TagFacts) -> bool:
    """Return True if numbers that are correct under one version of the facts are correct under the other."""
    return (one.epoch, one.fills) == (other.epoch, other.fills)


def _slices(folds: Mapping[str, KeyFold]) -> Iterable[list[str]]:
    """Yield the pids that have tagged events, in slices of limited size."""
    pids: list[str] = []
    size = 0
    for pid, fold in folds.items():
        if not fold.tagged:
            continue
        pids.append(pid)
        size += sum(len(row.tags) for row in fold.tagged)
        if size >= _ROWS_AT_ONCE:
            yield pids
            pids, size = [], 0
    if pids:
        yield pids


async def _each(pids: Sequence[str], do: Callable[[str], Awaitable[T]]) -> list[T]:
    limit = asyncio.Semaphore(_PIDS_AT_ONCE)

    async def one(pid: str) -> T:
        async with limit:
            return await do(pid)

    return list(await asyncio.gather(*(one(pid) for pid in pids)))
