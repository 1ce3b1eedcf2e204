"""A rebuild from its begin to its end: pause, fence, write, resume. All aggregates are written by Spark, some here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec

from headrace.cluster import ensure_lease_topic, open_coordinator
from headrace.config import HeadraceSettings
from headrace.engine.auditing import JournalEvents, journal_topic_of
from headrace.engine.models import Engine
from headrace.engine.pausing import change_engine_phase
from headrace.engine.rebuilding import EngineGroup, fence_partition, rebuild_aggregates
from headrace.engine.records import AggregateValues
from headrace.engine.topics import check_state_there, make_topics
from headrace.errors import HeadraceError, RebuildRefused, WrongEngineTopic
from headrace.log import Log
from headrace.model import partition_of
from headrace.serde import Registry
from headrace.store import SharedSettings

__all__ = ["RebuildPlan", "begin_rebuild", "end_rebuild", "rebuild_some"]

_SIDE_BY_SIDE = 8


class RebuildPlan(msgspec.Struct, frozen=True):
    """What the tasks of a rebuild share: who owns the partitions, up to which epoch each is fenced, and their limit."""

    group: EngineGroup
    fenced: dict[int, int]
    max_record_bytes: int


async def begin_rebuild(
    log: Log, shared: SharedSettings, engine: Engine[Any], settings: HeadraceSettings, *, timeout_s: float = 60.0
) -> RebuildPlan:
    """Pause an engine for a rebuild of all aggregates, make its topics, and fence its partitions.

    From now on only a rebuild that comes to its end lets the engine be served again. A rebuild that was interrupted is
    begun in the same way, and writes everything again. If this itself fails, the engine is served as before. Raises
    BadArgument, WrongStateTopic, WrongEngineTopic, TimedOut.
    """
    journal_topic_of(engine)
    limits = await make_topics(log, shared, engine)
    group = await _group_of(log, settings)
    before = await change_engine_phase(log, settings.cluster.name, engine, "rebuilding")
    turn = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def fence(partition: int) -> int:
        async with turn:
            return await fence_partition(log, engine, group, partition, timeout_s=timeout_s)

    try:
        epochs = await asyncio.gather(*(fence(partition) for partition in range(engine.partitions)))
    except HeadraceError:
        if before != "rebuilding":  # nothing was written yet
            await change_engine_phase(log, settings.cluster.name, engine, before, ends_rebuild=True)
        raise
    return RebuildPlan(group, dict(enumerate(epochs)), limits.state_bytes)


async def end_rebuild(log: Log, engine: Engine[Any], settings: HeadraceSettings) -> None:
    """Let an engine be served again, all of whose partitions are written."""
    await change_engine_phase(log, settings.cluster.name, engine, "serving", ends_rebuild=True)


async def rebuild_some(
    log: Log,
    shared: SharedSettings,
    journal: JournalEvents,
    engine: Engine[Any],
    settings: HeadraceSettings,
    ids: Collection[str],
    *,
    registry: Registry | None = None,
) -> int:
    """Write the states of some aggregates again; returns how many. The engine is paused meanwhile, its callers wait.

    It is served again afterwards, unless it was paused before. If this process dies in between, each aggregate is as it
    was, or rebuilt, and `headrace engine resume` lets the engine be served. Raises RebuildRefused, EventsMissing,
    UpcastFailed, FoldFailed, TimedOut.
    """
    journal_topic_of(engine)
    await _check_partitions(log, engine, ids)
    cluster = settings.cluster.name
    before = await change_engine_phase(log, cluster, engine, "paused")
    try:
        limits = await make_topics(log, shared, engine)
        values = AggregateValues(engine.state_codec(registry))
        await values.open()
        group = await _group_of(log, settings)
        return await rebuild_aggregates(log, journal, engine, values, group, ids, max_record_bytes=limits.state_bytes)
    finally:
        if before == "serving":
            await change_engine_phase(log, cluster, engine, "serving")


async def _check_partitions(log: Log, engine: Engine[Any], ids: Collection[str]) -> None:
    """Refuse a partition that is lost as a whole: with one aggregate in it, it would seem to be all there."""
    for partition in sorted({partition_of(id_.encode(), engine.partitions) for id_ in ids}):
        try:
            await check_state_there(log, engine, partition)
        except WrongEngineTopic as error:
            reason = f"in topic {error.topic!r} {error.problem}"
            raise RebuildRefused(engine.name, reason, "rebuild all aggregates, without --id") from error


async def _group_of(log: Log, settings: HeadraceSettings) -> EngineGroup:
    """Return who owns the engine's partitions, as the cluster's coordinator knows it."""
    address = settings.cluster.coordinator or settings.log.address
    coordinator = await open_coordinator(address, settings=settings)
    try:
        cluster_id = (await coordinator.fresh_view()).cluster_id
    finally:
        await coordinator.close()
    await ensure_lease_topic(log, settings.cluster.name)
    return EngineGroup(prefix=settings.cluster.name, cluster_id=cluster_id)
