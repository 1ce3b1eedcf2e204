"""Audit: does the store have what the log says? Each task compares its partition; findings are rows."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import CHECKED, Finding, checked_batch, findings_batch
from headrace.pipeline.audits.journals import KeyLook, look_at_key
from headrace.pipeline.audits.judge import pointer_findings
from headrace.pipeline.audits.repair import mend
from headrace.pipeline.audits.tag_views import TagLooks, open_tag_looks
from headrace.pipeline.audits.windows import (
    EVENTS_AT_ONCE,
    AuditWindow,
    KeySet,
    MovingWindow,
    entries_of,
    ids_in,
    open_window,
    slices,
    survey,
)
from headrace.pipeline.jobs.job_reports import AuditedPartition, check, layout_of, partitions_now
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.places import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of, told
from headrace.protocol import Entry
from headrace.store import JournalMeta, Place, Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["AuditReport", "audit", "audit_partition"]

_AT_ONCE = 32
_LOOKS = 4
_LOOK_AGAIN_S = 0.25
_HEADS_AT_ONCE = 1000
_FINDINGS_AT_ONCE = 1000


def audit_partition(places: Endpoints, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Audit one partition; in a worker. Yields findings as they are made, and the report."""
    started_s = time.perf_counter()
    task = AuditTask(
        places, at, repair=arguments["repair"], events_at_once=arguments.get("events_at_once", EVENTS_AT_ONCE)
    )
    error = None
    found = task.findings()
    try:
        while (some := run(_next(found))) is not None:
            for start in range(0, len(some), _FINDINGS_AT_ONCE):
                yield findings_batch(some[start : start + _FINDINGS_AT_ONCE])
    except Exception as failure:
        error = told(failure)
    report = msgspec.structs.replace(task.report, error=error, took_s=time.perf_counter() - started_s)
    yield checked_batch(at.topic, at.partition, msgspec.json.encode(report))


async def _next(found: AsyncIterator[list[Finding]]) -> list[Finding] | None:
    return await anext(found, None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A close look at some journals; `mark` is a place below which nothing has changed since before it."""

    window: AuditWindow
    by_id: Mapping[str, Sequence[Entry]]
    looks: Sequence[KeyLook]
    mark: Place | None = None

    @property
    def wrong(self) -> list[KeyLook]:
        """The journals of which something is wrong."""
        return [look for look in self.looks if look.verdict is not None and look.findings]


class AuditTask:
    """The audit of one partition."""

    def __init__(
        self, places: Endpoints, at: TopicPartition, *, repair: bool, events_at_once: int = EVENTS_AT_ONCE
    ) -> None:
        self._places = places
        self._at = at
        self._is_repair = repair
        self._events_at_once = events_at_once
        self._marker_ttl_s = places.settings_of_store().marker_ttl_s
        self._tags: TagLooks | None = None
        self.report = AuditedPartition(topic=at.topic, partition=at.partition)

    async def findings(self) -> AsyncIterator[list[Finding]]:
        """Yield what is wrong, some at a time."""
        log, store = await log_of(self._places), await store_of(self._places)
        self._tags = await open_tag_looks(log, store, self._places.settings_of_tags(), self._at.topic)
        moving = MovingWindow(await self._window(log, store), lambda: self._window(log, store))
        if wrong := pointer_findings(moving.window, round(time.time() * 1000)):
            self._count(findings=len(wrong))
            yield [msgspec.structs.replace(each, mended=False if self._is_repair else None) for each in wrong]
        found = await moving.read(lambda window: survey(log, window))
        self._count(first=moving.window.home.start, last=moving.window.home.last, records=found.records)
        judged = KeySet()  # not what was surveyed: its records may have been removed before its slice was read
        async for by_id in slices(log, moving, found, events_at_once=self._events_at_once):
            for id_ in by_id:
                judged.add(id_)
            suspects = await self._first_look(store, moving.window, by_id)
            if suspects:
                yield await self._look_again(log, store, suspects)
        window, heads = moving.window, list[str]()
        async for page in store.reader.metas(self._at.topic):
            ours = [meta for meta in page if window.layout.route(meta.id) == self._at and meta.id not in judged]
            heads += await _without_records(log, window, ours)
            if len(heads) >= _HEADS_AT_ONCE:
                yield await self._unlogged(log, store, window, heads)
                heads = []
        if heads:
            yield await self._unlogged(log, store, window, heads)
        if self._tags is not None and (strangers := await self._tags.strangers(window, judged.__contains__)):
            yield await self._look_again(log, store, strangers)

    async def _window(self, log: Log, store: Store) -> AuditWindow:
        return await open_window(log, store, await layout_of(log, store, self._at.topic), self._at)

    async def _unlogged(self, log: Log, store: Store, window: AuditWindow, ids: Sequence[str]) -> list[Finding]:
        """Judge journals that the window has no record of; rows under tags are looked for at the end, all at once."""
        looks = await self._look_at_keys(store, window, {id_: [] for id_ in ids})
        suspects = self._suspects(looks)
        return await self._look_again(log, store, suspects) if suspects else []

    async def _first_look(self, store: Store, window: AuditWindow, by_id: Mapping[str, Sequence[Entry]]) -> list[str]:
        return self._suspects(await self._look(store, window, by_id))

    def _suspects(self, looks: Sequence[KeyLook]) -> list[str]:
        self._count(journals=len(looks), rows=sum(look.stored.rows for look in looks if look.stored is not None))
        return [look.id for look in looks if not look.is_clean]

    async def _look_again(self, log: Log, store: Store, suspects: Collection[str]) -> list[Finding]:
        """Look until replication is not at work at any of them, some times at most; findings count then."""
        findings: list[Finding] = []
        for turn in range(_LOOKS):
            seen = await self._look_closely(log, store, suspects)
            if self._is_repair and self._tags is not None and any(look.has_tag_findings for look in seen.looks):
                # What is written at the Mark's place must take in all that lies below it, so it is looked for after it.
                at = await self._tags.mark(self._at)
                seen = dataclasses.replace(await self._look_closely(log, store, suspects), mark=at)
            looks = seen.looks
            findings += await self._mended(store, seen) if self._is_repair else _all(seen.wrong)
            suspects = [look.id for look in looks if look.verdict is None]
            if not suspects or turn == _LOOKS - 1:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        mended = sum(finding.mended is True for finding in findings)
        self._count(busy=len(suspects), findings=len(findings), mended=mended)
        return findings

    async def _look_closely(self, log: Log, store: Store, suspects: Collection[str]) -> _Seen:
        """Look with the window as it is now. A journal that has moved away since is left to a later audit."""
        moving = MovingWindow(await self._window(log, store), lambda: self._window(log, store))
        by_id = await moving.read(lambda window: entries_of(log, window, suspects))
        window = moving.window
        here = {id_: entries for id_, entries in by_id.items() if window.has_home_of(id_)}
        moved = [KeyLook(id_) for id_ in by_id if id_ not in here]
        return _Seen(window, here, [*await self._look(store, window, here), *moved])

    async def _mended(self, store: Store, seen: _Seen) -> list[Finding]:
        """Mend journals, and say of each finding whether it is gone, and its tag can be read by queries."""
        findings: list[Finding] = []
        for look in seen.wrong:
            if look.stored is None or look.verdict is None:
                continue
            if look.verdict.findings:
                await mend(store, seen.window, look.id, look.stored, look.verdict)
            if self._tags is not None and look.tags is not None and look.has_tag_findings and seen.mark is not None:
                await self._tags.mend(look.id, look.tags, at=seen.mark)
            (after,) = await self._look(store, seen.window, {look.id: seen.by_id[look.id]})
            left = after.findings if after.verdict is not None else look.findings
            names = {_name(finding) for finding in left}
            findings += [
                msgspec.structs.replace(finding, mended=_name(finding) not in names) for finding in look.findings
            ]
        return await self._checked(seen.window, findings)

    async def _checked(self, window: AuditWindow, findings: Sequence[Finding]) -> list[Finding]:
        """Don't say that a tag is mended whose events a query would not give."""
        tags: dict[str, set[str]] = {}
        for finding in findings:
            if finding.tag is not None:
                tags.setdefault(finding.id, set()).add(finding.tag)
        if self._tags is None or not tags:
            return list(findings)
        unreadable = await self._tags.unreadable(window, tags)
        return [
            msgspec.structs.replace(finding, mended=False) if (finding.id, finding.tag) in unreadable else finding
            for finding in findings
        ]

    async def _look(self, store: Store, window: AuditWindow, by_id: Mapping[str, Sequence[Entry]]) -> list[KeyLook]:
        looks = await self._look_at_keys(store, window, by_id)
        if self._tags is None:
            return looks
        of_tags = await self._tags.look(window, looks, by_id)
        return [dataclasses.replace(look, tags=of_tags.get(look.id)) for look in looks]

    async def _look_at_keys(
        self, store: Store, window: AuditWindow, by_id: Mapping[str, Sequence[Entry]]
    ) -> list[KeyLook]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(id_: str) -> KeyLook:
            async with limit:
                return await look_at_key(store, window, id_, by_id[id_], marker_ttl_s=self._marker_ttl_s)

        return await asyncio.gather(*(one(id_) for id_ in by_id))

    def _count(self, **seen: int) -> None:
        report = self.report
        added = {name: count + getattr(report, name) for name, count in seen.items() if name not in ("first", "last")}
        places = {name: count for name, count in seen.items() if name in ("first", "last")}
        self.report = msgspec.structs.replace(report, **added, **places)


def _all(wrong: Sequence[KeyLook]) -> list[Finding]:
    return [finding for look in wrong for finding in look.findings]


def _name(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.seq_nr, finding.tag, finding.offset if finding.tag is not None else None


async def _without_records(log: Log, window: AuditWindow, metas: Sequence[JournalMeta]) -> list[str]:
    """Leave out journals that a foreign producer keeps in another partition than their key's: its task judges them."""
    elsewhere: dict[int, set[str]] = {}
    if window.layout.generation == 0:
        for meta in metas:
            if meta.partition != window.at.partition and meta.partition in range(window.layout.partitions):
                elsewhere.setdefault(meta.partition, set()).add(meta.id)
    logged: set[str] = set()
    for partition, ids in elsewhere.items():
        logged |= await ids_in(log, TopicPartition(window.at.topic, partition), ids)
    return [meta.id for meta in metas if meta.id not in logged]


SHOWN = 100


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found: how much of each kind, the first of the findings, and all of them as a table.

    `table` is kept on disk by Spark; `close` lets it go.
    """

    partitions: Sequence[AuditedPartition]
    counts: Mapping[str, int]
    findings: Sequence[Finding]
    table: DataFrame | None = None

    @property
    def found(self) -> int:
        """How many findings there are."""
        return sum(partition.findings for partition in self.partitions)

    @property
    def mended(self) -> int:
        """How many of them were put right."""
        return sum(partition.mended for partition in self.partitions)

    @property
    def is_clean(self) -> bool:
        """Whether the store is right now: nothing was found, or all of it was mended."""
        return self.found == self.mended

    def total(self, what: str) -> int:
        """Add up a number of the partitions: `records`, `journals`, `rows`, `busy`."""
        return sum(getattr(partition, what) for partition in self.partitions)

    def close(self) -> None:
        """Let the table go."""
        if self.table is not None:
            self.table.unpersist()


def audit(
    spark: SparkSession,
    places: Endpoints,
    selection: Selection | None = None,
    *,
    repair: bool = False,
    shown: int = SHOWN,
    events_at_once: int | None = None,
) -> AuditReport:
    """Compare the store with what the log holds and replication has passed; with `repair` put right what is wrong.

    Replication may run meanwhile. Raises OperationFailed when a partition could not be looked through.
    """
    from pyspark.storagelevel import StorageLevel

    from headrace.pipeline.jobs.job_sources import AuditJob
    from headrace.pipeline.jobs.partition_jobs import job_frame

    partitions = partitions_now(places, selection or Selection())
    if not partitions:
        return AuditReport((), {}, ())
    arguments = {"repair": repair, **({"events_at_once": events_at_once} if events_at_once else {})}
    # Kept on disk, because each action on it would do the work again.
    frame = job_frame(spark, AuditJob, places, partitions, arguments).persist(StorageLevel.DISK_ONLY)
    told = frame.filter(frame.kind == CHECKED).select("detail").collect()
    reports = [msgspec.json.decode(row.detail, type=AuditedPartition) for row in told]
    check(reports, "auditing")
    table = frame.filter(frame.kind != CHECKED)
    counts = {row.kind: row["count"] for row in table.groupBy("kind").count().collect()} if _any(reports) else {}
    first = table.limit(shown).collect() if _any(reports) else []
    findings = [msgspec.convert(row.asDict(), Finding) for row in first]
    return AuditReport(sorted(reports, key=lambda each: (each.topic, each.partition)), counts, findings, frame)


def _any(reports: Sequence[AuditedPartition]) -> bool:
    return any(report.findings for report in reports)
