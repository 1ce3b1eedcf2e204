"""Removal of replicated records from the log, once they are older than the topic's retention.

Only replication knows what the store has, so the log itself never deletes records of journals. The oldest buckets of
views by tag are removed at the same time, if the settings name a retention.
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
from headrace.model import Topic
from headrace.observe import counter, gauge
from headrace.pipeline.logs.plan import Plan
from headrace.pipeline.spark.endpoints import Endpoints
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
_AHEAD_MS = 365 * 24 * 60 * 60 * 1000


async def check_plan(endpoints: Endpoints, plan: Plan, *, now_ms: int) -> None:
    """Raise RetentionTooLong or ReplayTooOld if the store forgets deletions before the log forgets records.

    Also claim the topics for this store, so that no other store's replication removes records that this store lacks.
    """
    log, store, settings = await log_of(endpoints), await store_of(endpoints), endpoints.settings_of_store()
    kept = {"marker_ttl_s": settings.marker_ttl_s, "gc_grace_s": settings.gc_grace_s}
    for topic, layout in plan.layouts.items():
        terms = await read_terms(store.settings, topic)
        if not terms.is_shared:
            check_retention(topic, terms.retention_ms, **kept)
        await check_replay(log, store, layout, now_ms=now_ms, **kept)
        await claim_topic(log, store.settings, layout)


async def remove_old(endpoints: Endpoints, topics: Iterable[str], *, now_ms: int) -> list[str]:
    """Remove old records of some topics; return notices for the operator. A failure does not stop replication."""
    log, store = await log_of(endpoints), await store_of(endpoints)
    notices: list[str] = []
    for topic in topics:
        try:
            notices += await _remove(log, store, topic, now_ms)
        except HeadraceError as error:
            REMOVAL_FAILURES.labels(topic).inc()
            notices.append(f"old records of {topic} stay in the log: {error}")
    return notices + await _trim_tags(endpoints, now_ms)


async def _trim_tags(endpoints: Endpoints, now_ms: int) -> list[str]:
    """Remove events older than the tags' retention. A failure becomes a notice, and is tried again later."""
    try:
        trim = await tag_trim_of(endpoints)
        if trim is not None:
            await trim.by_age(now_ms)
    except HeadraceError as error:
        return [f"old events stay in the views by tag: {error}"]
    return []


async def _remove(log: Log, store: Store, topic: str, now_ms: int) -> list[str]:
    terms = await read_terms(store.settings, topic)
    if terms.is_shared:
        described = await log.admin.describe(topic)
        return [*await _count_time_left(log, store, described, now_ms), *_times_notices(described)]
    layout = await Topology(log, store.settings, topic).layout()
    removed = await remove_replicated(log, store, layout, retention_ms=terms.retention_ms, now_ms=now_ms)
    REMOVED.labels(topic).inc(removed)
    reason = why_records_expire((await log.admin.describe(topic)).config)
    if reason is None:
        return []
    return [f"topic {topic} is not safe: {reason}, replicated or not; headrace topic configure {topic} --journal"]


def _times_notices(described: Topic) -> list[str]:
    """Return a notice if the log takes records of any time: the order by tag can't hold one that is too late."""
    if described.config.timestamp_ahead_ms <= _AHEAD_MS:
        return []
    rule = "one in microseconds or nanoseconds stops replication of its partition; bound message.timestamp.after.max.ms"
    return [f"topic {described.name} takes records of any time in the future: {rule}"]


async def _count_time_left(log: Log, store: Store, described: Topic, now_ms: int) -> list[str]:
    notices = []
    for at, left_s in await time_left(log, store, described, now_ms=now_ms):
        TIME_LEFT.labels(at.topic, str(at.partition)).set(left_s)
        if left_s < _WARN_BELOW * (described.config.retention_ms or 0) / 1000:
            notices.append(f"the log drops records of {at} that the store lacks in {left_s:.0f} s")
    return notices
