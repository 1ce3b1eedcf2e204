"""Floors: the lowest log time of a topic that joins the others, and of a generation after a topic has grown.

A topic is announced first, then takes the maximum of all log times, then opens. A query that read the heads and saw no
announcement afterwards has delivered nothing above that maximum. A generation begins above the log times at all its
boundaries, so that a key's events keep their order when it moves. A topic that was deleted and created again joins as
a new one does, and above all log times that were known of the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec

from headrace.errors import BadArgument, UnknownTopic
from headrace.journal import Layout, layout_key
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import ReplicatedOffset, Store
from headrace.tags.registry import TagFacts, TagRegistry, TopicEntry, check_use

__all__ = ["Floors", "decode_layout", "read_layout"]

decode_layout = msgspec.json.Decoder(Layout).decode


async def read_layout(store: Store, topic: str) -> Layout | None:
    """Return a topic's published layout; None before its first use."""
    stored = await store.settings.get(layout_key(topic))
    return None if stored is None else decode_layout(stored)


class Floors:
    """Determines and stores the floors. Without a log it only reads those that other processes have stored."""

    def __init__(self, store: Store, registry: TagRegistry, log: Log | None) -> None:
        self._store = store
        self._registry = registry
        self._log = log

    async def open_topic(self, topic: str) -> TagFacts:
        """Return the facts after opening the topic, if it was not open."""
        return await self.open_topics([topic])

    async def open_topics(self, topics: Sequence[str]) -> TagFacts:
        """Return the facts after opening those topics that were not open.

        Those that open together begin at one floor: one after the other, the events of the second would be moved behind
        those of the first, whatever their times are.
        """
        facts = await self._registry.change(lambda known: reduce(_announced, topics, known))
        if all(facts.topics[topic].floor_ms is not None for topic in topics):
            return facts
        floor_ms = await self._highest(facts)
        return await self._registry.change(
            lambda known: reduce(lambda facts, topic: _opened(facts, topic, floor_ms), topics, known)
        )

    async def generation(self, facts: TagFacts, layout: Layout, generation: int) -> tuple[TagFacts, int]:
        """Return the facts, and the lowest log time of a generation, which is determined if it was not."""
        topic = layout.topic
        if facts.floor_ms(topic, 0) is None:
            facts = await self.open_topic(topic)
        before_ms = facts.floor_ms(topic, 0) or 0
        for number in range(1, generation + 1):
            known = facts.floor_ms(topic, number)
            if known is None:
                facts = await self._registry.read()
                known = facts.floor_ms(topic, number)
            if known is None:
                if not layout.generations[number].boundaries:
                    facts = await self._registry.change(
                        lambda facts, n=number: _recreated(facts, topic, n)  # type: ignore[misc]
                    )
                floor_ms = await self._boundary_time(facts, layout, number, before_ms) + 1
                facts = await self._registry.change(
                    lambda facts, n=number, ms=floor_ms: _begun(facts, topic, n, ms)  # type: ignore[misc]
                )
                known = facts.floor_ms(topic, number) or floor_ms
            before_ms = max(before_ms, known)
        return facts, before_ms

    async def views_checked(self) -> TagFacts:
        """Return the facts as they are now. Raises TagsIncomplete, TagViewsLost."""
        facts = check_use(await self._registry.read())
        await self._registry.check(facts)
        return facts

    async def note_gone(self, topic: str, last_ms: int) -> TagFacts:
        """Store how far queries had read a topic that is gone: if it is created again, it begins above that."""
        return await self._registry.change(lambda facts: _gone(facts, topic, last_ms))

    async def _highest(self, facts: TagFacts, *, without: str | None = None) -> int:
        """Return the highest log time of all partitions of all open topics but `without`."""
        highest_ms = 0
        for topic, entry in facts.topics.items():
            layout = await read_layout(self._store, topic)
            if entry.floor_ms is None or layout is None or topic == without:
                continue
            highest_ms = max(highest_ms, entry.floor_ms, *entry.generations.values(), 0)
            for partition in range(layout.partitions):
                head_ms = await self._time_at(layout, TopicPartition(topic, partition), None)
                highest_ms = max(highest_ms, head_ms)
        return highest_ms

    async def _boundary_time(self, facts: TagFacts, layout: Layout, generation: int, before_ms: int) -> int:
        """Return the highest log time at a generation's boundaries; that of all topics if this one was recreated."""
        began = layout.generations[generation]
        if began.boundaries:
            times = [
                await self._time_at(layout, TopicPartition(layout.topic, partition), boundary)
                for partition, boundary in began.boundaries.items()
            ]
        else:
            old = range(layout.generations[generation - 1].partitions)
            found = [await self._store.reader.replicated(TopicPartition(layout.topic, p)) for p in old]
            times = [known.log_time_ms for known in found if known is not None]
            times += [facts.topics[layout.topic].last_ms, await self._highest(facts, without=layout.topic)]
        return max(before_ms, *times, 0)

    async def _time_at(self, layout: Layout, at: TopicPartition, offset: int | None) -> int:
        """Return the highest timestamp up to an offset (inclusive) or the end; at least the replicated log time.

        The offset of an earlier topic of the same name does not say where to read this one; its log time counts.
        """
        known = await self._store.reader.replicated(at)
        highest_ms = known.log_time_ms if known is not None else 0
        of_topic = layout.of_topic(known)
        start = of_topic.offset + 1 if of_topic is not None else 0
        if self._log is None:
            rule = f"the log is needed to settle where {at.topic!r} begins; open the topic where the log is at hand"
            raise BadArgument("log", None, rule)
        try:
            bounds = await self._log.bounds(at)
        except UnknownTopic:
            return highest_ms
        end = bounds.end if offset is None else min(offset + 1, bounds.end)
        start = max(start, bounds.start)
        if start >= end:
            return highest_ms
        async for batch in self._log.read(at, start, end, headers_only=True):
            highest_ms = max([highest_ms, *(record.timestamp_ms for record in batch.records)])
        return highest_ms

    async def log_time_ms(self, facts: TagFacts, layout: Layout, start: ReplicatedOffset) -> tuple[TagFacts, int]:
        """Return the facts, and the log time that a partition goes on from after `start`."""
        facts, floor_ms = await self.generation(facts, layout, start.generation)
        return facts, max(floor_ms, start.log_time_ms)


def _announced(facts: TagFacts, topic: str) -> TagFacts:
    if topic in facts.topics:
        return facts
    return facts.with_topic(topic, TopicEntry(len(facts.topics)))


def _opened(facts: TagFacts, topic: str, floor_ms: int) -> TagFacts:
    entry = facts.topics[topic]
    if entry.floor_ms is not None:
        return facts
    return facts.with_topic(topic, msgspec.structs.replace(entry, floor_ms=floor_ms))


def _recreated(facts: TagFacts, topic: str, generation: int) -> TagFacts:
    entry = facts.topics[topic]
    if entry.announced >= generation:
        return facts
    return facts.with_topic(topic, msgspec.structs.replace(entry, announced=generation))


def _gone(facts: TagFacts, topic: str, last_ms: int) -> TagFacts:
    entry = facts.topics.get(topic)
    if entry is None or entry.last_ms >= last_ms:
        return facts
    return facts.with_topic(topic, msgspec.structs.replace(entry, last_ms=last_ms))


def _begun(facts: TagFacts, topic: str, generation: int, floor_ms: int) -> TagFacts:
    entry = facts.topics[topic]
    generations = {str(generation): floor_ms, **entry.generations}
    return facts.with_topic(topic, msgspec.structs.replace(entry, generations=generations))
