"""Growth of a topic: more partitions, without losing the order of any key.

After a crash between any two steps, running them again finishes the growth: the intent is stored first, a boundary is
the first mark of the new generation whichever process wrote it, and the generation is published last.
"""

from __future__ import annotations

import asyncio
import uuid

import msgspec

from headrace.errors import BadArgument, ImpossibleTopicChange
from headrace.journal.marks import state_layout, write_mark
from headrace.journal.retention import read_terms
from headrace.journal.topology import LEASE_S, Topology, layout_key, longest_lease_s
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.protocol import BOUNDARY_KEY, Layout, Mark, decode_action
from headrace.runtime import crash_point
from headrace.store import SharedSettings

__all__ = ["grow_topic"]


async def grow_topic(
    log: Log, settings: SharedSettings, topic: str, *, partitions: int, lease_s: float = LEASE_S
) -> Layout:
    """Grow a topic to a number of partitions and publish the new generation. Writers wait meanwhile.

    It waits for the longest lease that a writer of the topic has stored, or for `lease_s` if that is longer.
    Running it again after a crash finishes the growth; several runs at once have one result.
    """
    topology = Topology(log, settings, topic, lease_s=lease_s)
    layout = await topology.refresh()
    engine = (await read_terms(settings, topic)).engine
    if engine:
        change = f"it is the journal of engine {engine!r}, whose state topic has as many partitions"
        raise ImpossibleTopicChange(topic, change, "declare another engine with more partitions, and copy the events")
    if layout.growing_to is None:
        layout = await _announce(log, settings, layout, partitions)
    elif layout.growing_to != partitions:
        change = f"it is growing to {layout.growing_to} partitions already"
        command = f"headrace topic grow {topic} --partitions {layout.growing_to}"
        raise ImpossibleTopicChange(topic, change, f"finish that first: {command}")
    crash_point("grow.announced")
    await state_layout(log, layout)
    lease_s = max(lease_s, await longest_lease_s(settings, topic))  # stored by each writer that trusts a layout
    await asyncio.sleep(lease_s)  # after this no writer trusts an older layout
    if (await log.admin.describe(topic)).partitions < partitions:
        await log.admin.add_partitions(topic, total=partitions)
    crash_point("grow.added")
    await asyncio.sleep(lease_s)  # nor does one that can't reach the store and has not seen the new partitions
    boundaries = {
        partition: await _boundary(log, TopicPartition(topic, partition), layout)
        for partition in range(layout.partitions)
    }
    crash_point("grow.marked")
    grown = layout.grown(boundaries)
    await settings.put(layout_key(topic), _encode(grown), expected=_encode(layout))
    return await topology.refresh()


async def _announce(log: Log, settings: SharedSettings, layout: Layout, partitions: int) -> Layout:
    if partitions <= layout.partitions:
        rule = f"topic {layout.topic!r} has {layout.partitions}; it can only grow"
        raise BadArgument("partitions", partitions, rule)
    actual = (await log.admin.describe(layout.topic)).partitions
    if actual > partitions:
        rule = f"the log has {actual} by now; grow to {actual}"
        raise BadArgument("partitions", partitions, rule)
    ends = {
        partition: (await log.bounds(TopicPartition(layout.topic, partition))).high_watermark
        for partition in range(layout.partitions)
    }
    growing = layout.growing(partitions, ends)
    if not await settings.put(layout_key(layout.topic), _encode(growing), expected=_encode(layout)):
        raise ImpossibleTopicChange(layout.topic, "another process has changed its layout", "run the command again")
    return growing


async def _boundary(log: Log, at: TopicPartition, layout: Layout) -> int:
    """Write the mark of the new generation and return the offset of the first such mark in the partition."""
    generation = layout.generation + 1
    mark = Mark(id=uuid.uuid4().hex, generation=generation, layout=_encode(layout))
    written = await write_mark(log, at, BOUNDARY_KEY, mark)
    async for batch in log.read(at, layout.since.get(at.partition, 0), written + 1, headers_only=True):
        for record in batch.records:
            action = decode_action(record)
            if isinstance(action, Mark) and action.generation == generation:
                return record.offset
    return written


def _encode(layout: Layout) -> str:
    return msgspec.json.encode(layout).decode()
