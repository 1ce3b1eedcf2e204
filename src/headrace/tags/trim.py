"""Trimming of views by tag: the oldest buckets of a tag are removed, whole ones only.

What will be removed is stored first, so that a query before it fails with an error and no query misses events silently.
A bucket is removed only when replication can't add to it any more: it must lie below the log time that every partition
is replicated up to. Idle partitions get a Mark; if replication of a partition lags behind, trimming waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from headrace.config import TagSettings
from headrace.log import Log
from headrace.observe import SILENT, Progress
from headrace.runtime import crash_point
from headrace.store import Store, TagRow, tag_time_of
from headrace.tags.events import TagOffset
from headrace.tags.floors import Floors
from headrace.tags.metrics import TRIMMED
from headrace.tags.registry import TagRegistry
from headrace.tags.repair import TagRepair
from headrace.tags.seams import KnownSeam, SeamReader
from headrace.tags.view_rows import Trimmed, note_trimmed

__all__ = ["ALL_TAGS", "TagTrim", "kept_since_ms"]

# The name for all tags that have no retention of their own.
ALL_TAGS = "*"


def kept_since_ms(retention_s: Mapping[str, float], tag: str, now_ms: int) -> int | None:
    """Return the time from which on a tag's events are kept; None if all are kept."""
    age_s = retention_s.get(tag, retention_s.get(ALL_TAGS))
    return None if age_s is None else max(0, now_ms - int(age_s * 1000))


class TagTrim:
    """Removes old buckets. Several processes may do this at once; after a crash it can be run again."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._store = store
        self._retention_s = settings.retention_s
        self._registry = TagRegistry(store, settings)
        self._seams = SeamReader(log, store, self._registry, Floors(store, self._registry, log))
        self._repair = TagRepair(log, store, settings)
        self._done: dict[str, int] = {}

    async def by_age(self, now_ms: int, progress: Progress = SILENT) -> dict[str, int]:
        """Remove buckets that are older than the retention in the settings; return the number removed, by tag.

        Call it regularly: a tag is checked when its next bucket is old enough.
        """
        if not self._retention_s:
            return {}
        due = await self._due(now_ms)
        if not due:
            return {}
        horizon_ms = await self._horizon_ms(max(due.values()))
        removed = {}
        with progress.step("trimming views by tag", unit="tags") as step:
            for tag, since_ms in due.items():
                if count := await self._trim(tag, min(since_ms, horizon_ms)):
                    removed[tag] = count
                step.advance()
        return removed

    async def before(self, tag: str, moment: datetime) -> int:
        """Remove a tag's buckets that end before a time; return their number."""
        before_ms = TagOffset.at(moment).log_time_ms
        return await self._trim(tag, min(before_ms, await self._horizon_ms(before_ms)))

    async def _due(self, now_ms: int) -> dict[str, int]:
        """Return the tags with buckets beyond their retention, and the time from which on their events are kept."""
        await self._registry.open()
        views, due = self._store.tags.views, {}
        for tag in await views.tags():
            since_ms = kept_since_ms(self._retention_s, tag, now_ms)
            cut_ms = -1 if since_ms is None else self._registry.bucket.start_of(since_ms)
            if since_ms is None or self._done.get(tag, -1) >= cut_ms:
                continue
            if await views.buckets(tag, last_ms=cut_ms - 1):
                due[tag] = since_ms
            else:
                self._done[tag] = cut_ms
        return due

    async def _horizon_ms(self, wanted_ms: int) -> int:
        """Return the log time below which nothing can be added any more, after moving idle partitions up to it."""
        seam = await self._seams.read()
        idle = [known.at for known in seam.live if known.log_time_ms < wanted_ms and await self._is_idle(known)]
        for at in idle:
            await self._repair.mark(at)
        horizon = (await self._seams.read()).horizon if idle else seam.horizon
        return wanted_ms if horizon is None else horizon.log_time_ms

    async def _is_idle(self, known: KnownSeam) -> bool:
        end = await self._seams.end(known.at)
        return end is not None and end <= known.place.offset + 1

    async def _trim(self, tag: str, since_ms: int) -> int:
        cut_ms = self._registry.bucket.start_of(since_ms)
        fill = (await self._registry.read()).fills.get(tag)
        if fill is not None and not fill.is_ready:  # it is being back-filled, and keeps what it has
            return 0
        views = self._store.tags.views
        buckets = await views.buckets(tag, last_ms=cut_ms - 1)
        last = await self._last_row(tag, buckets)
        if last is not None:
            note = Trimmed(cut_ms, str(TagOffset.of(tag_time_of(last.timestamp), last.number, last.seq_nr)))
            await note_trimmed(self._store.settings, tag, note)
        crash_point("tags.trim.noted")
        for bucket_ms in buckets:
            await self._store.tags.drop_bucket(tag, bucket_ms)
            crash_point("tags.trim.dropped")
            TRIMMED.inc()
        self._done[tag] = cut_ms
        return len(buckets)

    async def _last_row(self, tag: str, buckets: Sequence[int]) -> TagRow | None:
        """Return the last row of some buckets; listed buckets may be empty."""
        for bucket_ms in reversed(buckets):
            last = None
            async for page in self._store.tags.views.read(tag, bucket_ms):
                last = page[-1] if page else last
            if last is not None:
                return last
        return None
