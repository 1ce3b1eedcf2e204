"""The plan of replication: its topics and partitions, and their first offsets.

Only the stored offsets count: there is no checkpoint that could disagree with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import (
    BadArgument,
    LayoutLost,
    OffsetOutOfRange,
    RecordsLost,
    UnknownTopic,
    WrongPartitionCount,
)
from headrace.journal import Layout, Topology
from headrace.log import Log
from headrace.model import Bounds, TopicPartition
from headrace.pipeline.spark.process import side_by_side
from headrace.store import ReplicatedOffset, Store

__all__ = [
    "PartitionLook",
    "Plan",
    "Selection",
    "look_at_partition",
    "plan_of",
    "start_of",
    "topics_of",
]

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of journals: of the named topics, of topics with a prefix, or of all topics that the store knows."""

    topics: tuple[str, ...] = ()
    prefix: str | None = None

    def __post_init__(self) -> None:
        """Raise BadArgument for a text in place of a list: its letters would be the topics."""
        if not isinstance(self.topics, tuple | list) or not all(isinstance(each, str) for each in self.topics):
            raise BadArgument("topics", self.topics, 'they are a tuple of names, as in Selection(("accounts",))')
        if not isinstance(self.prefix, str | None):
            raise BadArgument("prefix", self.prefix, "it is text, with which the names of the topics begin")

    def __str__(self) -> str:
        if self.topics:
            return ", ".join(self.topics)
        return "all journals" if self.prefix is None else f"topics {self.prefix}…"


@dataclass(frozen=True, slots=True)
class Plan:
    """The layouts of the topics, and the offsets to replicate by partition: `starts` up to `ends` (exclusive)."""

    layouts: Mapping[str, Layout]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @property
    def lags(self) -> dict[TopicPartition, int]:
        """The number of offsets that are not replicated yet, by partition."""
        return {at: self.ends[at] - start for at, start in self.starts.items()}

    @property
    def lag(self) -> int:
        """The number of offsets that are not replicated yet."""
        return sum(self.lags.values())

    def shape(self) -> dict[str, tuple[int, int, bool]]:
        """Return what a running query depends on. If it changes, a new query is needed."""
        return {
            topic: (layout.generation, layout.partitions, layout.growing_to is not None)
            for topic, layout in self.layouts.items()
        }


async def topics_of(log: Log, store: Store, selection: Selection) -> Sequence[str]:
    """Return the selected topics that exist. Raises UnknownTopic for a named topic that does not."""
    names = await log.admin.topics()
    if selection.topics:
        for topic in selection.topics:
            if topic not in names:
                raise UnknownTopic(topic)
        return sorted(selection.topics)
    if selection.prefix is not None:
        return [name for name in names if name.startswith(selection.prefix)]
    known = {key.removeprefix("topic/") for key in await store.settings.all("topic/")}
    return [name for name in names if name in known]


async def plan_of(log: Log, store: Store, selection: Selection) -> Plan:
    """Return the plan for the present log and store. Raises RecordsLost, OffsetOutOfRange, WrongPartitionCount."""
    layouts = {}
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    topics = await topics_of(log, store, selection)
    for layout, looks in await side_by_side(_look_at_topic(log, store, topic) for topic in topics):
        layouts[layout.topic] = layout
        starts |= {look.at: look.start for look in looks}
        ends |= {look.at: look.bounds.end for look in looks}
    return Plan(layouts, starts, ends)


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """One partition: the bounds of its log, its replicated offset, and the first offset that the store lacks."""

    at: TopicPartition
    bounds: Bounds
    replicated: ReplicatedOffset | None
    start: int


async def look_at_partition(log: Log, store: Store, layout: Layout, at: TopicPartition) -> PartitionLook:
    """Compare a partition's log with the store. Raises RecordsLost, OffsetOutOfRange.

    The bounds are read first: what a removal took from the log before that is replicated. But between both reads
    records may be appended and replicated, so a replicated offset behind the log's end counts only if it stays there.
    """
    for _ in range(_LOOKS - 1):
        bounds, replicated = await log.bounds(at), await store.reader.replicated(at)
        with contextlib.suppress(OffsetOutOfRange):
            return PartitionLook(at, bounds, replicated, start_of(layout, at, bounds, replicated))
    bounds, replicated = await log.bounds(at), await store.reader.replicated(at)
    return PartitionLook(at, bounds, replicated, start_of(layout, at, bounds, replicated))


async def _look_at_topic(log: Log, store: Store, topic: str) -> tuple[Layout, list[PartitionLook]]:
    layout = await _layout(log, store, topic)
    while True:
        partitions = [TopicPartition(topic, number) for number in range(layout.partitions)]
        looks = await side_by_side(look_at_partition(log, store, layout, at) for at in partitions)
        newest = max(looks, key=_generation, default=None)
        if newest is None or _generation(newest) <= layout.generation:
            return layout, looks
        layout = await _newer_layout(log, store, newest.at, _generation(newest))


def _generation(look: PartitionLook) -> int:
    return look.replicated.generation if look.replicated is not None else -1


async def _layout(log: Log, store: Store, topic: str) -> Layout:
    layout = await Topology(log, store.settings, topic).layout()
    actual = (await log.admin.describe(topic)).partitions
    if actual > layout.partitions and layout.growing_to is None:
        raise WrongPartitionCount(topic, actual, layout.partitions)
    return layout


async def _newer_layout(log: Log, store: Store, at: TopicPartition, generation: int) -> Layout:
    """Return the layout of a topic that grew a moment ago. Raises LayoutLost if the store's layout is older."""
    layout = await _layout(log, store, at.topic)
    if generation > layout.generation:
        known = f"{at} is replicated in generation {generation}, the layout knows {layout.generation}"
        raise LayoutLost(at.topic, known)
    return layout


def start_of(layout: Layout, at: TopicPartition, bounds: Bounds, replicated: ReplicatedOffset | None) -> int:
    """Return the first offset that the store does not have. Raises RecordsLost, OffsetOutOfRange."""
    start = 0
    if replicated is not None and replicated.generation >= layout.first_generation(at.partition):
        start = replicated.offset + 1
    if start < bounds.start:
        raise RecordsLost(at.topic, at.partition, start, bounds.start - 1)
    if start > bounds.high_watermark:
        raise OffsetOutOfRange(at.topic, at.partition, start - 1, bounds.start, bounds.high_watermark)
    return min(start, bounds.end)
