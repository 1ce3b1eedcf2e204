"""Giving a keyspace another number of partitions: its values are copied to new topics, the old ones are closed.

Nobody serves the keyspace meanwhile; callers wait. The order keeps everything that was acknowledged: say that it is
being copied, take over and close every old partition, copy, say that the new generation is served. Whoever dies in
between is followed by a second run, which copies again, to other topics. All of it is written under one transactional
id: a run that was thought to be dead can't write any more, and nothing that it deletes is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from headrace.cluster import HostingNode, OwnedPartition, Owner, seed_records
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, PartitionClosed, UnknownTopic
from headrace.keyspace.calls import REPLIES, replies_spec
from headrace.keyspace.declaration import Keyspace, KeyspaceSpec
from headrace.keyspace.inputs import INPUTS, inputs_spec
from headrace.keyspace.layouts import KeyspaceLayout, KeyspaceLayouts, StateShapes, topic_of
from headrace.log import Log
from headrace.model import NewRecord, Record, TopicPartition, partition_of
from headrace.observe import get_logger
from headrace.state import BATCH_HEADER, OrderedKeys, ProducerWriter, StateSpec, ensure_changelog, is_reserved

__all__ = ["ResizeReport", "resize_keyspace", "specs_of"]

_logger = get_logger(__name__)
_BATCH = 1000
_CLOSING_S = 60.0
_SIDE_BY_SIDE = 8


class ResizeReport(NamedTuple):
    """What a resize did."""

    keyspace: str
    partitions: int
    generation: int
    records: int
    old_topics: tuple[str, ...]


def specs_of(spec: KeyspaceSpec, layout: KeyspaceLayout, *, replies_kept_s: float) -> dict[str, StateSpec[Any, Any]]:
    """Return the states of a keyspace in one generation, in the order that names its partitions.

    The replies, which every keyspace has, come first: a partition has the same transactional id in all versions of an
    application, whichever states they declare, and so their owners fence one another.
    """
    specs = {
        REPLIES: replies_spec(spec.name, partitions=layout.partitions, kept_s=replies_kept_s),
        **spec.state_specs(partitions=layout.partitions),
        **({INPUTS: inputs_spec(spec.name, partitions=layout.partitions)} if spec.inputs else {}),
    }
    return {name: _in_generation(each, layout.generation) for name, each in specs.items()}


def _in_generation(spec: StateSpec[Any, Any], generation: int) -> StateSpec[Any, Any]:
    if spec.is_external:
        return spec
    return spec.replaced(topic=topic_of(spec.topic, generation))


async def resize_keyspace(
    log: Log,
    settings: HeadraceSettings,
    kind: type[Keyspace],
    partitions: int,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ResizeReport:
    """Copy a keyspace to topics with another number of partitions. Callers wait meanwhile; nodes go on automatically.

    Raises BadArgument for a keyspace that was never served, that has input topics, or that has states which `kind` does
    not declare; StateRedeclared for states that it declares differently; and Fenced if another run has begun.
    """
    spec = kind.spec
    if partitions < 1:
        raise BadArgument("partitions", partitions, "a keyspace has at least one")
    if spec.inputs:
        rule = f"its input topics {sorted(spec.inputs)} are partitioned alike, and can't be copied with it"
        raise BadArgument("keyspace", spec.name, rule)
    async with _opened(log, settings, spec.name) as (layouts, node, writer):
        await _check_states(log, settings, layouts, spec)
        layout = await _begin_copy(layouts, spec.name, writer)
        resizing = _Resizing(log, settings, spec, layout, partitions, node, writer)
        on_progress(f"closing {layout.partitions} partitions")
        epoch = await resizing.close_old()
        on_progress("copying")
        records = await resizing.copy(epoch)
        new = KeyspaceLayout(
            partitions=partitions,
            generation=layout.generation + layout.copies,
            earlier=tuple(dict.fromkeys((*layout.earlier, layout.partitions))),
        )
        await layouts.put(spec.name, new, writer)
        await resizing.delete_unfinished()
        return ResizeReport(spec.name, partitions, new.generation, records, resizing.old_topics)


async def _check_states(log: Log, settings: HeadraceSettings, layouts: KeyspaceLayouts, spec: KeyspaceSpec) -> None:
    """See that the release that resizes knows what is stored. Raises BadArgument, StateRedeclared.

    The program that resizes need not be the one that is served. What is new in it has no changelogs yet: they are made.
    """
    layout = layouts.get(spec.name)
    if layout is None:
        raise _never_served(spec.name)
    specs = specs_of(spec, layout, replies_kept_s=settings.keyspace.replies_kept_s)
    shapes = StateShapes(log, layouts)
    await shapes.check(spec, specs)
    if unknown := await shapes.undeclared(spec):
        topics = ", ".join(each.topic for each in unknown.values())
        rule = (
            f"it has states {sorted(unknown)}, which the class does not declare, so that they would not be copied. "
            f"Resize with the release that is served; if their values are not needed any more, delete {topics} first"
        )
        raise BadArgument("keyspace", spec.name, rule)
    for each in _written(specs).values():
        await ensure_changelog(log.admin, each.topic, partitions=layout.partitions, config=each.config)


def _never_served(keyspace: str) -> BadArgument:
    return BadArgument("keyspace", keyspace, "no node of the cluster has served it yet")


async def _begin_copy(layouts: KeyspaceLayouts, name: str, writer: ProducerWriter) -> KeyspaceLayout:
    """Say that the keyspace is being copied, and return the layout that says so: no other run has the same."""
    while True:
        layout = layouts.get(name)
        if layout is None:
            raise _never_served(name)
        begun = layout.in_copy()
        await layouts.put(name, begun, writer)
        if layouts.get(name) == begun:
            return begun


@contextlib.asynccontextmanager
async def _opened(
    log: Log, settings: HeadraceSettings, keyspace: str
) -> AsyncIterator[tuple[KeyspaceLayouts, HostingNode, ProducerWriter]]:
    # First of all: what an earlier run has said until now is read afterwards, and it says nothing more.
    producer = await log.transactional(f"{settings.cluster.name}-resize-{keyspace}")
    layouts = KeyspaceLayouts(log, settings.cluster.name)
    try:
        await layouts.open()
        cluster = settings.cluster.model_copy(update={"node_id": None, "listen": "127.0.0.1:0", "advertise": None})
        async with HostingNode(log, settings=settings.model_copy(update={"cluster": cluster})) as node:
            yield layouts, node, ProducerWriter(producer)
    finally:
        await layouts.close()
        await producer.close()


class _Resizing:
    """One run."""

    def __init__(
        self,
        log: Log,
        settings: HeadraceSettings,
        spec: KeyspaceSpec,
        layout: KeyspaceLayout,
        partitions: int,
        node: HostingNode,
        writer: ProducerWriter,
    ) -> None:
        self._log = log
        self._writer = writer
        self._prefix = settings.cluster.name
        self._node = node
        self._old_count = layout.partitions
        self._new_count = partitions
        kept_s = settings.keyspace.replies_kept_s

        def written(generation: int) -> dict[str, StateSpec[Any, Any]]:
            copied = KeyspaceLayout(partitions=partitions, generation=generation)
            return _written(specs_of(spec, copied, replies_kept_s=kept_s))

        self._old = _written(specs_of(spec, layout, replies_kept_s=kept_s))
        generation = layout.generation + layout.copies
        self._new = written(generation)
        self._unfinished = [
            each.topic for number in range(layout.generation + 1, generation) for each in written(number).values()
        ]

    @property
    def old_topics(self) -> tuple[str, ...]:
        """The topics that are not used any more afterwards."""
        return tuple(spec.topic for spec in self._old.values())

    async def close_old(self) -> int:
        """Own and close every old partition; returns the highest epoch."""
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def close(partition: int) -> int:
            async with turn:
                return await self._close_partition(partition)

        return max(await asyncio.gather(*(close(n) for n in range(self._old_count))))

    async def _close_partition(self, partition: int) -> int:
        changelogs = tuple(TopicPartition(spec.topic, partition) for spec in self._old.values())
        listener = _Listener()
        owner = Owner(self._log, OwnedPartition(self._prefix, changelogs), self._node.keeper, listener)
        owner.propose(0)
        running = asyncio.create_task(owner.run(), name=f"headrace-close-{changelogs[0]}")
        try:
            async with asyncio.timeout(_CLOSING_S):
                owned = asyncio.create_task(listener.owned.wait())
                await asyncio.wait({running, owned}, return_when=asyncio.FIRST_COMPLETED)
                owned.cancel()
                if running.done():
                    running.result()
                await owner.close_partition()
                return listener.epoch
        except PartitionClosed as error:
            return error.epoch  # by an earlier run
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def copy(self, epoch: int) -> int:
        """Make the new topics and copy all records to them, in order; returns how many."""
        for spec in self._new.values():
            with contextlib.suppress(UnknownTopic):
                await self._log.admin.delete(spec.topic)  # of a version whose runs shared their topics
            await ensure_changelog(self._log.admin, spec.topic, partitions=self._new_count, config=spec.config)
        for partition in range(self._new_count):
            changelogs = [TopicPartition(spec.topic, partition) for spec in self._new.values()]
            await self._writer.commit(seed_records(changelogs, epoch, self._node.keeper.me))
        count = 0
        for name, spec in self._old.items():
            for partition in range(self._old_count):
                count += await self._copy_partition(spec, self._new[name], partition)
        return count

    async def delete_unfinished(self) -> None:
        """Delete the topics of earlier runs that did not end."""
        for topic in self._unfinished:
            with contextlib.suppress(UnknownTopic):
                await self._log.admin.delete(topic)

    async def _copy_partition(self, old: StateSpec[Any, Any], new: StateSpec[Any, Any], partition: int) -> int:
        at = TopicPartition(old.topic, partition)
        bounds = await self._log.bounds(at)
        keys: OrderedKeys[Any] = OrderedKeys(old.key)
        count = 0
        async for batch in self._log.read(at, bounds.start, bounds.high_watermark, max_records=_BATCH):
            records = [self._moved(record, keys, new.topic) for record in batch.records if not is_reserved(record.key)]
            if records:
                await self._writer.commit(records)
                count += len(records)
        return count

    def _moved(self, record: Record, keys: OrderedKeys[Any], topic: str) -> NewRecord:
        """Return a record as it is written to the new topic: the same key, value and time, in the key's partition."""
        headers = tuple(header for header in record.headers if header[0] != BATCH_HEADER)
        routing = keys.routing_bytes(keys.decode(record.key or b""))
        return NewRecord(
            topic,
            record.key,
            record.value,
            headers,
            partition=partition_of(routing, self._new_count),
            timestamp_ms=record.timestamp_ms,
        )


def _written(specs: Mapping[str, StateSpec[Any, Any]]) -> dict[str, StateSpec[Any, Any]]:
    return {name: spec for name, spec in specs.items() if not spec.is_external}


class _Listener:
    """Waits for a partition to be owned."""

    def __init__(self) -> None:
        self.owned = asyncio.Event()
        self.epoch = 0

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        """Take note."""
        self.epoch = epoch
        self.owned.set()

    async def lost(self) -> None:
        """Wait to own it again."""
        self.owned.clear()
