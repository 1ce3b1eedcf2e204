"""The back-fill: a range of each partition's records is applied to the store again.

Correct rows stay as they are, and lost rows are restored. The other records of the same journals are read too, because
they decide which records of the range count. So the range is read first, for its keys, and then the log once, for the
journals with these keys. Records that are not replicated yet are left to replication.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadArgument
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import OUTCOME_COLUMNS, FindingKind, Tally, tally_of
from headrace.pipeline.audits.journal_work import JournalRows, JournalWork, KeyCase, by_partition, cases_of
from headrace.pipeline.audits.journals import look_at_key
from headrace.pipeline.audits.judge import Judgement, expected_rows
from headrace.pipeline.audits.windows import AuditWindow, TopicWindow, WindowStretch
from headrace.pipeline.jobs.job_reports import BackfilledPartition, windows_now
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run
from headrace.protocol import Entry
from headrace.store import EventRow, Place, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BackfillPlan", "BackfillSummary", "BackfillWork", "Range", "backfill"]

_AT_ONCE = 32
_FEW_RECORDS = 100_000


class Range(msgspec.Struct, frozen=True):
    """Offsets of each partition from `first` to `last` (inclusive), or times from `since_ms` up to `until_ms`."""

    first: int | None = None
    last: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class BackfillRanges(msgspec.Struct, frozen=True):
    """The first and last offset (inclusive) to apply, by partition. A journal that moved has records in several."""

    of: Mapping[int, tuple[int, int]]

    def has(self, partition: int, offset: int) -> bool:
        """Return True if the record lies within the range of its partition."""
        first, last = self.of.get(partition, (0, -1))
        return first <= offset <= last


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What to apply again: the requested offsets that the log still has and that are replicated, by topic."""

    windows: Sequence[TopicWindow]
    ranges: Mapping[str, BackfillRanges]

    @classmethod
    async def of(cls, endpoints: Endpoints, selection: Selection, asked: Range) -> BackfillPlan:
        """Plan a back-fill."""
        log, windows = await log_of(endpoints), await windows_now(endpoints, selection)
        return cls(windows, {window.layout.topic: await ranges_of(log, window, asked) for window in windows})

    @property
    def involved(self) -> list[TopicWindow]:
        """The windows of the partitions with a range. Journals of a topic that grew may be in any partition."""
        return [
            each if each.layout.generation > 0 else each.only(self._with_range(each))
            for each in self.windows
            if self._with_range(each)
        ]

    @property
    def is_whole(self) -> bool:
        """Whether the ranges are everything in the windows."""
        return all(
            self.ranges[window.layout.topic].of[partition] == (stretch.start, stretch.last)
            for window in self.windows
            for partition, stretch in self._with_range(window).items()
        )

    @property
    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """The first and last offsets (inclusive) of the partitions with a range."""
        return {
            stretch.at: self.ranges[window.layout.topic].of[partition]
            for window in self.windows
            for partition, stretch in self._with_range(window).items()
        }

    @property
    def records(self) -> int:
        """The number of offsets in all ranges."""
        return sum(last + 1 - first for first, last in self.bounds.values())

    def _with_range(self, window: TopicWindow) -> dict[int, WindowStretch]:
        found = self.ranges[window.layout.topic].of
        return {number: each for number, each in window.stretches.items() if found[number][0] <= found[number][1]}

    def reports(self, tally: Tally) -> list[BackfilledPartition]:
        """Return the reports of all partitions. Raises OperationFailed if a task could not finish."""
        tally.check("back-filling")
        return [
            self._report(stretch, tally.of(stretch.at))
            for window in self.windows
            for stretch in window.stretches.values()
        ]

    def _report(self, stretch: WindowStretch, counts: Mapping[str, int]) -> BackfilledPartition:
        first, last = self.ranges[stretch.at.topic].of[stretch.at.partition]
        return BackfilledPartition(
            topic=stretch.at.topic,
            partition=stretch.at.partition,
            first=max(first, counts["first"]),  # what was removed meanwhile is in the store, and was not applied again
            last=last,
            read=counts["read"] + (0 if self.is_whole else max(0, last + 1 - first)),
            records=counts["records"],
            journals=counts["journals"],
            rows=counts["rows"],
            restored=counts["restored"],
            busy=counts["busy"],
        )


async def ranges_of(log: Log, window: TopicWindow, asked: Range) -> BackfillRanges:
    """Return for each partition the requested offsets that the log still has and that are replicated."""
    return BackfillRanges({partition: await _offsets(log, each, asked) for partition, each in window.stretches.items()})


async def _offsets(log: Log, stretch: WindowStretch, asked: Range) -> tuple[int, int]:
    first, last = stretch.start, stretch.last
    if asked.first is not None:
        first = max(first, asked.first)
    if asked.last is not None:
        last = min(last, asked.last)
    if asked.since_ms is not None:
        since = await log.offset_at(stretch.at, timestamp_ms=asked.since_ms)
        first = max(first, since if since is not None else stretch.end)
    if asked.until_ms is not None:
        until = await log.offset_at(stretch.at, timestamp_ms=asked.until_ms)
        last = min(last, until - 1 if until is not None else last)
    return first, last


def _touches(entries: Sequence[Entry], ranges: BackfillRanges) -> bool:
    return any(ranges.has(entry.partition, entry.offset) for entry in entries)


class BackfillWork(JournalWork):
    """Applies the records of the ranges to the store again, journal by journal."""

    def __init__(self, endpoints: Endpoints, plan: BackfillPlan) -> None:
        super().__init__(endpoints, plan.involved)
        self._ranges = plan.ranges
        self._marker_ttl_s = endpoints.settings_of_store().marker_ttl_s

    async def opened(self, log: Log, store: Store, window: TopicWindow) -> None:
        """Nothing is needed but the journals themselves."""

    async def work(self, log: Log, store: Store, journals: Sequence[JournalRows]) -> None:
        """Apply the records of some journals."""
        for window, cases in by_partition(case for journal in journals for case in cases_of(journal)):
            ranges = self._ranges[window.at.topic]
            await self._apply_all(store, window, [case for case in cases if _touches(case.entries, ranges)])

    async def _apply_all(self, store: Store, window: AuditWindow, cases: Sequence[KeyCase]) -> None:
        limit, ranges = asyncio.Semaphore(_AT_ONCE), self._ranges[window.at.topic]

        async def one(case: KeyCase) -> None:
            async with limit:
                look = await look_at_key(store, window, case.id, case.entries, marker_ttl_s=self._marker_ttl_s)
                if look.verdict is None:
                    self.outcomes.count(window.at, busy=1)
                    return
                rows = await _apply(store, window, case.id, look.verdict, ranges)
                self.outcomes.count(window.at, rows=len(rows), restored=_restored(look.verdict, rows))

        await asyncio.gather(*map(one, cases))
        within = sum(ranges.has(entry.partition, entry.offset) for case in cases for entry in case.entries)
        self.outcomes.count(window.at, records=within, journals=len(cases))


async def _apply(
    store: Store, window: AuditWindow, id_: str, verdict: Judgement, ranges: BackfillRanges
) -> list[EventRow]:
    """Write the rows, the head and the deletions that come from records of the range.

    Each write carries the place of its record, so it never replaces anything newer.
    """
    topic, fold = window.at.topic, verdict.fold
    rows = [row for row in expected_rows(fold) if ranges.has(row.partition, row.offset)]
    if rows:
        await store.writer.write_rows(topic, id_, rows)
        await store.writer.write_gaps(topic, id_, [gap for piece in fold.pieces for gap in piece.gaps])
    meta = fold.meta
    if meta is not None and not verdict.is_guess and ranges.has(meta.partition, meta.offset):
        await store.writer.write_meta(meta)
    for piece in fold.pieces:
        for deletion, place in piece.deletions:
            if ranges.has(_partition_at(window, id_, place), place.offset):
                await store.writer.delete_rows(topic, id_, [deletion], at=place)
    return rows


def _partition_at(window: AuditWindow, id_: str, place: Place) -> int:
    """Return the partition that held the journal's records in the generation of a place."""
    layout = window.layout
    if layout.generation == 0:
        return window.at.partition
    return next(p for p in window.stretches if layout.is_home(id_, place.generation, TopicPartition(layout.topic, p)))


def _restored(verdict: Judgement, rows: Sequence[EventRow]) -> int:
    """Count the written rows that had been missing or wrong before."""
    kinds = (FindingKind.ROW_MISSING, FindingKind.ROW_CHANGED)
    wrong = {(finding.seq_nr, finding.offset) for finding in verdict.findings if finding.kind in kinds}
    return sum((row.seq_nr, row.offset) in wrong for row in rows)


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """The result of a back-fill: records in the range, rows written, and how many of those were missing or wrong."""

    partitions: int
    records: int
    journals: int
    rows: int
    restored: int
    busy: int
    read: int = 0


def backfill(
    spark: SparkSession,
    endpoints: Endpoints,
    selection: Selection | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> BackfillSummary:
    """Apply a range of each partition again: offsets `first` to `last` (inclusive), or times (`until_ms` is exclusive).

    Without a range everything in the log is applied. Journals that replication was just changing are skipped and
    counted as `busy`. Raises BadArgument for an empty range, OperationFailed.
    """
    _check(first, last, "last")
    _check(since_ms, until_ms, "until_ms")
    asked = Range(first, last, since_ms, until_ms)
    plan = run(BackfillPlan.of(endpoints, selection or Selection(), asked))
    reports = plan.reports(_run(spark, endpoints, plan) if plan.bounds else Tally())
    names = ("records", "journals", "rows", "restored", "busy", "read")
    totals = {name: sum(getattr(report, name) for report in reports) for name in names}
    return BackfillSummary(len(reports), **totals)


def _run(spark: SparkSession, endpoints: Endpoints, plan: BackfillPlan) -> Tally:
    from headrace.pipeline.audits.journal_frames import log_rows, only_of, shuffled, tasks_for

    tasks = tasks_for(spark, plan.involved)
    rows = log_rows(spark, endpoints, plan.involved, tasks=tasks)
    if not plan.is_whole:
        topics, keys = [window.layout.topic for window in plan.involved], _keys(spark, endpoints, plan)
        rows = only_of(rows, keys, topics, is_few=plan.records <= _FEW_RECORDS)
    work = BackfillWork(endpoints, plan)
    return tally_of(shuffled(rows, tasks=tasks).mapInArrow(work, OUTCOME_COLUMNS))


def _keys(spark: SparkSession, endpoints: Endpoints, plan: BackfillPlan) -> DataFrame:
    """Return the keys of the records in the ranges."""
    from headrace.pipeline.logs.frames import log_table

    starts = {at: first for at, (first, _) in plan.bounds.items()}
    ends = {at: last + 1 for at, (_, last) in plan.bounds.items()}
    return log_table(spark, endpoints, starts, ends, skips_removed=True).where("key IS NOT NULL")


def _check(start: int | None, end: int | None, name: str) -> None:
    if start is not None and end is not None and end < start:
        raise BadArgument(name, end, f"the range begins at {start}")
