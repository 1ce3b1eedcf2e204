"""Marks: the barrier of a read, and a topic's layout as the marks in the log state it.

Growing a topic writes its steps into the log: the layout that it starts from, then a mark at each boundary, which
carries that layout too. Replication writes the layout again before it removes such a mark. So a store that is empty, or
older than the last growth, gets the exact layout back from the marks. Where they are gone, LayoutLost is raised.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.errors import LayoutLost
from headrace.log import Log
from headrace.model import NewRecord, Record, Topic, TopicPartition
from headrace.protocol import BOUNDARY_KEY, Generation, Layout, Mark, decode_action, encode_action

__all__ = [
    "Barrier",
    "MarkBarrier",
    "PartitionMarks",
    "WatermarkBarrier",
    "layout_from_log",
    "rebuilt",
    "state_layout",
    "write_mark",
]


class Barrier(Protocol):
    """Finds the offset up to which (inclusive) a read that begins now must look; -1 for an empty partition."""

    async def place(self, at: TopicPartition, id_: str) -> int:
        """Return the offset."""
        ...


class MarkBarrier:
    """Writes a Mark: everything that was acknowledged before lies below it."""

    def __init__(self, log: Log, origin: str | None) -> None:
        self._log = log
        self._origin = origin

    async def place(self, at: TopicPartition, id_: str) -> int:
        """Write the Mark and return the offset before it: the Mark itself changes nothing."""
        return await write_mark(self._log, at, id_, Mark(id=uuid.uuid4().hex, origin=self._origin)) - 1


class WatermarkBarrier:
    """Uses the high watermark, open transactions included; for readers that may not write."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def place(self, at: TopicPartition, id_: str) -> int:
        """Return the last offset that was written."""
        return (await self._log.bounds(at)).high_watermark - 1


async def write_mark(log: Log, at: TopicPartition, id_: str, mark: Mark) -> int:
    """Append a Mark with the journal's key and return its offset."""
    record = NewRecord(at.topic, id_.encode(), None, encode_action(mark), partition=at.partition)
    (position,) = await log.append([record])
    return position.offset


_KEYS_SAMPLED = 200
_MISPLACED_AT_LEAST = 2
_MISPLACED_SHARE = 0.25

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Layout).decode


@dataclass(slots=True)
class PartitionMarks:
    """The marks of one partition: the first of each generation, and the layouts they state; and some of its keys."""

    start: int
    firsts: dict[int, int] = field(default_factory=dict)
    layouts: list[Layout] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Add what a record states."""
        if record.key != BOUNDARY_KEY.encode():
            if record.key and len(self.keys) < _KEYS_SAMPLED and decode_action(record) is not None:
                self.keys.add(record.key)
            return
        action = decode_action(record)
        if isinstance(action, Mark) and action.layout is not None:
            self.layouts.append(_decode(action.layout))
        if isinstance(action, Mark) and action.generation is not None:
            self.firsts.setdefault(action.generation, record.offset)


async def state_layout(log: Log, layout: Layout, *, partition: int = 0) -> int:
    """Write the layout into the log; return the offset of the mark that carries it."""
    mark = Mark(id=uuid.uuid4().hex, layout=_encode(layout).decode())
    return await write_mark(log, TopicPartition(layout.topic, partition), BOUNDARY_KEY, mark)


async def layout_from_log(log: Log, topic: Topic, known: Layout | None) -> Layout:
    """Return the layout that the log states, or `known` if that is as new. Raises LayoutLost if the marks are gone."""
    found = []
    for partition in range(topic.partitions):
        at = TopicPartition(topic.name, partition)
        bounds = await log.bounds(at)
        marks = PartitionMarks(bounds.start)
        if bounds.end > bounds.start and topic.partitions > 1:  # a topic with one partition has never grown
            async for batch in log.read(at, bounds.start, bounds.end, headers_only=True):
                for record in batch.records:
                    marks.take(record)
        found.append(marks)
    return rebuilt(topic, known, found)


def rebuilt(topic: Topic, known: Layout | None, found: Sequence[PartitionMarks]) -> Layout:
    """Return the newest layout among those that the marks state and `known`. Raises LayoutLost."""
    stated = [layout for marks in found for layout in marks.layouts]
    if known is not None:
        stated.append(known)
    if not stated:
        layout = _inferred(topic, found)
        _check_keys(layout, found)
        return layout
    newest = max(stated, key=lambda layout: (layout.generation, layout.growing_to is not None))
    newest = msgspec.structs.replace(newest, topic=topic.name, topic_id=topic.topic_id)
    return newest if newest.growing_to is None else _finished(newest, found)


def _finished(growing: Layout, found: Sequence[PartitionMarks]) -> Layout:
    """Return the layout with its boundaries; it is still growing if some were not written yet."""
    generation = growing.generation + 1
    old = range(growing.partitions)
    boundaries = {p: found[p].firsts[generation] for p in old if generation in found[p].firsts}
    lost = [p for p in old if p not in boundaries and found[p].start > growing.since.get(p, 0)]
    if lost:
        raise _lost(growing.topic, generation, lost)
    return growing.grown(boundaries) if len(boundaries) == growing.partitions else growing


def _inferred(topic: Topic, found: Sequence[PartitionMarks]) -> Layout:
    """Return the layout that follows from boundaries alone: a growth leaves one in each partition that existed."""
    generations = sorted({generation for marks in found for generation in marks.firsts})
    if not generations:
        return Layout(topic.name, topic.topic_id, (Generation(topic.partitions),))
    boundaries = [{p: m.firsts[g] for p, m in enumerate(found) if g in m.firsts} for g in generations]
    for generation, before, after in zip(
        generations, boundaries, [*(len(b) for b in boundaries[1:]), topic.partitions], strict=True
    ):
        missing = [p for p in range(max(before) + 1) if p not in before]
        if missing or len(before) >= after:
            raise _lost(topic.name, generation, missing)
    if generations != list(range(generations[0], generations[-1] + 1)):
        raise LayoutLost(topic.name, f"the log has marks of the generations {generations} only")
    counts = [*(len(b) for b in boundaries[1:]), topic.partitions]
    earlier = (Generation(len(boundaries[0])),) * generations[0]
    grown = [Generation(count, offsets) for count, offsets in zip(counts, boundaries, strict=True)]
    return Layout(topic.name, topic.topic_id, (*earlier, *grown))


def _check_keys(layout: Layout, found: Sequence[PartitionMarks]) -> None:
    """Raise LayoutLost if keys lie where the layout would never have put them: the topic grew without marks."""
    places = [(key.decode(), TopicPartition(layout.topic, p)) for p, marks in enumerate(found) for key in marks.keys]
    numbers = range(len(layout.generations))
    misplaced = [at for id_, at in places if not any(layout.is_home(id_, number, at) for number in numbers)]
    if len(misplaced) < _MISPLACED_AT_LEAST or len(misplaced) < _MISPLACED_SHARE * len(places):
        return
    where = f"{len(misplaced)} of {len(places)} keys are not where {layout.partitions} partitions would put them"
    raise LayoutLost(layout.topic, f"{where}, so it had fewer once, and no mark in the log says when it grew")


def _lost(topic: str, generation: int, partitions: Sequence[int]) -> LayoutLost:
    which = ", ".join(str(partition) for partition in partitions) or "some partitions"
    return LayoutLost(topic, f"the marks that began generation {generation} are gone from the log in {which}")
