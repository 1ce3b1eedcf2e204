"""Removing from the log what replication has carried into the store, once it is older than the topic's retention.

Replication is the only one that knows what the store has, so the log is never left to delete journals by itself. Views
by tag lose their oldest buckets on the same occasion, where the settings name a retention.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import HeadraceError
from headrace.journal import (
    Topology,
    check_replay,
    check_retention,
    claim_topic,
    read_terms,
    remove_replicated,
    time_left,
    why_records_expire,
)
from headrace.log import Log
from headrace.observe import counter, gauge
from headrace.pipeline.logs.plan import Plan
from headrace.pipeline.spark.places import Endpoints
from headrace.pipeline.spark.process import log_of, store_of, tag_trim_of
from headrace.store import Store

__all__ = ["check_plan", "remove_old"]

REMOVED = counter("pipeline", "removed_records", "Replicated records that were removed from the log.", ["topic"])
REMOVAL_FAILURES = counter("pipeline", "removal_failures", "Attempts to remove records that failed.", ["topic"])
TIME_LEFT = gauge(
    "pipeline",
    "time_left",
    "seconds",
    "Time until the log drops records of a shared topic that the store lacks.",
    ["topic", "partition"],
)
_WARN_BELOW = 0.25


async def check_plan(places: Endpoints, plan: Plan, *, now_ms: int) -> None:
    """Raise RetentionTooLong or ReplayTooOld where the store forgets deletions before the log forgets records.

    The topics are claimed for the store, so that no other one removes what this one lacks.
    """
    log, store, settings = await log_of(places), await store_of(places), places.settings_of_store()
    kept = {"marker_ttl_s": settings.marker_ttl_s, "gc_grace_s": settings.gc_grace_s}
    for topic, layout in plan.layouts.items():
        terms = await read_terms(store.settings, topic)
        if not terms.is_shared:
            check_retention(topic, terms.retention_ms, **kept)
        await check_replay(log, store, layout, now_ms=now_ms, **kept)
        await claim_topic(log, store.settings, layout)


async def remove_old(places: Endpoints, topics: Iterable[str], *, now_ms: int) -> list[str]:
    """Remove what may go of some topics; returns what a person should know. A failure does not stop replication."""
    log, store = await log_of(places), await store_of(places)
    told: list[str] = []
    for topic in topics:
        try:
            told += await _remove(log, store, topic, now_ms)
        except HeadraceError as error:
            REMOVAL_FAILURES.labels(topic).inc()
            told.append(f"old records of {topic} stay in the log: {error}")
    return told + await _trim_tags(places, now_ms)


async def _trim_tags(places: Endpoints, now_ms: int) -> list[str]:
    """Remove what is older than the tags' retention; a failure is told, and tried again later."""
    try:
        trim = await tag_trim_of(places)
        if trim is not None:
            await trim.by_age(now_ms)
    except HeadraceError as error:
        return [f"old events stay in the views by tag: {error}"]
    return []


async def _remove(log: Log, store: Store, topic: str, now_ms: int) -> list[str]:
    terms = await read_terms(store.settings, topic)
    if terms.is_shared:
        return await _count_time_left(log, store, topic, now_ms)
    layout = await Topology(log, store.settings, topic).layout()
    removed = await remove_replicated(log, store, layout, retention_ms=terms.retention_ms, now_ms=now_ms)
    REMOVED.labels(topic).inc(removed)
    reason = why_records_expire((await log.admin.describe(topic)).config)
    if reason is None:
        return []
    return [f"topic {topic} is not safe: {reason}, replicated or not; headrace topic configure {topic} --journal"]


async def _count_time_left(log: Log, store: Store, topic: str, now_ms: int) -> list[str]:
    described = await log.admin.describe(topic)
    told = []
    for at, left_s in await time_left(log, store, described, now_ms=now_ms):
        TIME_LEFT.labels(at.topic, str(at.partition)).set(left_s)
        if left_s < _WARN_BELOW * (described.config.retention_ms or 0) / 1000:
            told.append(f"the log drops records of {at} that the store lacks in {left_s:.0f} s")
    return told
