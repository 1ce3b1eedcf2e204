"""The audit: each task compares its partition of the log with the store, and returns the differences as rows.

A task first judges all journals that have records in the window, slice by slice, with their views by tag, and then
the journals that only the store knows. Suspects are judged again with the replicated offset of that time, because
replication may have been changing them.
"""

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
from headrace.pipeline.audits.repair import repair_journal
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
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
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


def audit_partition(endpoints: Endpoints, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Audit one partition, in a worker. Yields the findings as they are made, and the report at the end."""
    started_s = time.perf_counter()
    task = AuditTask(
        endpoints, at, repair=arguments["repair"], events_at_once=arguments.get("events_at_once", EVENTS_AT_ONCE)
    )
    error = None
    found = task.findings()
    try:
        while (some := run(_next(found))) is not None:
            for start in range(0, len(some), _FINDINGS_AT_ONCE):
                yield findings_batch(some[start : start + _FINDINGS_AT_ONCE])
    except Exception as failure:
        error = one_line(failure)
    report = msgspec.structs.replace(task.report, error=error, took_s=time.perf_counter() - started_s)
    yield checked_batch(at.topic, at.partition, msgspec.json.encode(report))


async def _next(found: AsyncIterator[list[Finding]]) -> list[Finding] | None:
    return await anext(found, None)


@dataclass(frozen=True, slots=True)
class _CloseLook:
    """A second look at some journals. If `mark` is set, nothing below that place has changed since before the look."""

    window: AuditWindow
    by_id: Mapping[str, Sequence[Entry]]
    looks: Sequence[KeyLook]
    mark: Place | None = None

    @property
    def wrong(self) -> list[KeyLook]:
        """The journals that differ from the log."""
        return [look for look in self.looks if look.verdict is not None and look.findings]


class AuditTask:
    """The audit of one partition."""

    def __init__(
        self, endpoints: Endpoints, at: TopicPartition, *, repair: bool, events_at_once: int = EVENTS_AT_ONCE
    ) -> None:
        self._endpoints = endpoints
        self._at = at
        self._is_repair = repair
        self._events_at_once = events_at_once
        self._marker_ttl_s = endpoints.settings_of_store().marker_ttl_s
        self._tags: TagLooks | None = None
        self.report = AuditedPartition(topic=at.topic, partition=at.partition)

    async def findings(self) -> AsyncIterator[list[Finding]]:
        """Yield the findings, in lists of bounded size."""
        log, store = await log_of(self._endpoints), await store_of(self._endpoints)
        self._tags = await open_tag_looks(log, store, self._endpoints.settings_of_tags(), self._at.topic)
        moving = MovingWindow(await self._window(log, store), lambda: self._window(log, store))
        if wrong := pointer_findings(moving.window, round(time.time() * 1000)):
            self._count(findings=len(wrong))
            yield [msgspec.structs.replace(each, repaired=False if self._is_repair else None) for each in wrong]
        found = await moving.read(lambda window: survey(log, window))
        self._count(first=moving.window.home.start, last=moving.window.home.last, records=found.records)
        judged = KeySet()  # not the surveyed keys: their records may have been removed before their slice was read
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
        if self._tags is not None and (
            ids_without_records := await self._tags.ids_without_records(window, judged.__contains__)
        ):
            yield await self._look_again(log, store, ids_without_records)

    async def _window(self, log: Log, store: Store) -> AuditWindow:
        return await open_window(log, store, await layout_of(log, store, self._at.topic), self._at)

    async def _unlogged(self, log: Log, store: Store, window: AuditWindow, ids: Sequence[str]) -> list[Finding]:
        """Judge journals without a record in the window. Their rows in views by tag are checked later, together."""
        looks = await self._look_at_keys(store, window, {id_: [] for id_ in ids})
        suspects = self._suspects(looks)
        return await self._look_again(log, store, suspects) if suspects else []

    async def _first_look(self, store: Store, window: AuditWindow, by_id: Mapping[str, Sequence[Entry]]) -> list[str]:
        return self._suspects(await self._look(store, window, by_id))

    def _suspects(self, looks: Sequence[KeyLook]) -> list[str]:
        self._count(journals=len(looks), rows=sum(look.stored.rows for look in looks if look.stored is not None))
        return [look.id for look in looks if not look.is_clean]

    async def _look_again(self, log: Log, store: Store, suspects: Collection[str]) -> list[Finding]:
        """Look again, up to `_LOOKS` times, until replication is not changing any of the suspects; return findings."""
        findings: list[Finding] = []
        for turn in range(_LOOKS):
            seen = await self._look_closely(log, store, suspects)
            if self._is_repair and self._tags is not None and any(look.has_tag_findings for look in seen.looks):
                # What is written at the Mark's place must include everything below it, so the second look comes after.
                at = await self._tags.mark(self._at)
                seen = dataclasses.replace(await self._look_closely(log, store, suspects), mark=at)
            looks = seen.looks
            findings += await self._repaired(store, seen) if self._is_repair else _findings_of(seen.wrong)
            suspects = [look.id for look in looks if look.verdict is None]
            if not suspects or turn == _LOOKS - 1:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        repaired = sum(finding.repaired is True for finding in findings)
        self._count(busy=len(suspects), findings=len(findings), repaired=repaired)
        return findings

    async def _look_closely(self, log: Log, store: Store, suspects: Collection[str]) -> _CloseLook:
        """Look with the window as it is now. A journal that has since moved to another partition is left out."""
        moving = MovingWindow(await self._window(log, store), lambda: self._window(log, store))
        by_id = await moving.read(lambda window: entries_of(log, window, suspects))
        window = moving.window
        here = {id_: entries for id_, entries in by_id.items() if window.has_home_of(id_)}
        moved = [KeyLook(id_) for id_ in by_id if id_ not in here]
        return _CloseLook(window, here, [*await self._look(store, window, here), *moved])

    async def _repaired(self, store: Store, seen: _CloseLook) -> list[Finding]:
        """Repair journals. Each finding says whether it is gone and whether queries can read its tag."""
        findings: list[Finding] = []
        for look in seen.wrong:
            if look.stored is None or look.verdict is None:
                continue
            if look.verdict.findings:
                await repair_journal(store, seen.window, look.id, look.stored, look.verdict)
            if self._tags is not None and look.tags is not None and look.has_tag_findings and seen.mark is not None:
                await self._tags.repair_journal(look.id, look.tags, at=seen.mark)
            (after,) = await self._look(store, seen.window, {look.id: seen.by_id[look.id]})
            left = after.findings if after.verdict is not None else look.findings
            names = {_name(finding) for finding in left}
            findings += [
                msgspec.structs.replace(finding, repaired=_name(finding) not in names) for finding in look.findings
            ]
        return await self._checked(seen.window, findings)

    async def _checked(self, window: AuditWindow, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings; those of a tag whose events a query would not return are not repaired."""
        tags: dict[str, set[str]] = {}
        for finding in findings:
            if finding.tag is not None:
                tags.setdefault(finding.id, set()).add(finding.tag)
        if self._tags is None or not tags:
            return list(findings)
        unreadable = await self._tags.unreadable(window, tags)
        return [
            msgspec.structs.replace(finding, repaired=False) if (finding.id, finding.tag) in unreadable else finding
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
        bounds = {name: count for name, count in seen.items() if name in ("first", "last")}
        self.report = msgspec.structs.replace(report, **added, **bounds)


def _findings_of(wrong: Sequence[KeyLook]) -> list[Finding]:
    return [finding for look in wrong for finding in look.findings]


def _name(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.seq_nr, finding.tag, finding.offset if finding.tag is not None else None


async def _without_records(log: Log, window: AuditWindow, metas: Sequence[JournalMeta]) -> list[str]:
    """Return the journals without records, except those that a foreign producer wrote to another partition.

    The task of that partition judges them.
    """
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
    """The result of an audit: counts by kind, the first findings, and all findings as a table.

    Spark keeps `table` on disk; `close` releases it.
    """

    partitions: Sequence[AuditedPartition]
    counts: Mapping[str, int]
    findings: Sequence[Finding]
    table: DataFrame | None = None

    @property
    def found(self) -> int:
        """The number of findings."""
        return sum(partition.findings for partition in self.partitions)

    @property
    def repaired(self) -> int:
        """The number of findings that were repaired."""
        return sum(partition.repaired for partition in self.partitions)

    @property
    def is_clean(self) -> bool:
        """Whether the store agrees with the log now: nothing was found, or everything was repaired."""
        return self.found == self.repaired

    def total(self, what: str) -> int:
        """Return the sum of one count over all partitions: `records`, `journals`, `rows` or `busy`."""
        return sum(getattr(partition, what) for partition in self.partitions)

    def close(self) -> None:
        """Release the table."""
        if self.table is not None:
            self.table.unpersist()


def audit(
    spark: SparkSession,
    endpoints: Endpoints,
    selection: Selection | None = None,
    *,
    repair: bool = False,
    shown: int = SHOWN,
    events_at_once: int | None = None,
) -> AuditReport:
    """Compare the store with the replicated part of the log; with `repair`, correct the differences.

    Replication may run meanwhile. Raises OperationFailed if a partition could not be audited.
    """
    from pyspark.storagelevel import StorageLevel

    from headrace.pipeline.jobs.job_sources import AuditJob
    from headrace.pipeline.jobs.partition_jobs import job_frame

    partitions = partitions_now(endpoints, selection or Selection())
    if not partitions:
        return AuditReport((), {}, ())
    arguments = {"repair": repair, **({"events_at_once": events_at_once} if events_at_once else {})}
    # It is kept on disk, because every action on the frame would run the audit again.
    frame = job_frame(spark, AuditJob, endpoints, partitions, arguments).persist(StorageLevel.DISK_ONLY)
    rows = frame.filter(frame.kind == CHECKED).select("detail").collect()
    reports = [msgspec.json.decode(row.detail, type=AuditedPartition) for row in rows]
    check(reports, "auditing")
    table = frame.filter(frame.kind != CHECKED)
    counts = {row.kind: row["count"] for row in table.groupBy("kind").count().collect()} if _any(reports) else {}
    first = table.limit(shown).collect() if _any(reports) else []
    findings = [msgspec.convert(row.asDict(), Finding) for row in first]
    return AuditReport(sorted(reports, key=lambda each: (each.topic, each.partition)), counts, findings, frame)


def _any(reports: Sequence[AuditedPartition]) -> bool:
    return any(report.findings for report in reports)
