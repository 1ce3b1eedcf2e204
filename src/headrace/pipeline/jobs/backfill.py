"""The back-fill: each task applies a range of its partition's records to the store again.

Correct rows stay as they are, and lost rows are restored. Records before the range are read too, because they decide
which records of the range count. Records that are not replicated yet are left to replication.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadArgument
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.audits.findings import FindingKind
from headrace.pipeline.audits.journals import look_at_key
from headrace.pipeline.audits.judge import Judgement, expected_rows
from headrace.pipeline.audits.windows import (
    EVENTS_AT_ONCE,
    AuditWindow,
    MovingWindow,
    WindowStretch,
    open_window,
    slices,
    survey,
)
from headrace.pipeline.jobs.job_reports import BackfilledPartition, layout_of, partitions_now, report_batch, reports_of
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.protocol import Entry
from headrace.store import EventRow, Place, Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["BackfillSummary", "Range", "backfill", "backfill_partition"]

_AT_ONCE = 32


def backfill_partition(endpoints: Endpoints, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Back-fill one partition, in a worker."""
    started_s = time.perf_counter()
    report = BackfilledPartition(topic=at.topic, partition=at.partition)
    try:
        report = run(_backfill(endpoints, at, msgspec.convert(arguments, Range)))
    except Exception as error:
        report = msgspec.structs.replace(report, error=one_line(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


class BackfillRanges(msgspec.Struct, frozen=True):
    """The first and last offset (inclusive) to apply, by partition. A journal that moved has records in several."""

    of: Mapping[int, tuple[int, int]]

    def has(self, partition: int, offset: int) -> bool:
        """Return True if the record lies within the range of its partition."""
        first, last = self.of.get(partition, (0, -1))
        return first <= offset <= last


async def _backfill(endpoints: Endpoints, at: TopicPartition, asked: Range) -> BackfilledPartition:
    log, store = await log_of(endpoints), await store_of(endpoints)

    async def open_now() -> AuditWindow:
        return await open_window(log, store, await layout_of(log, store, at.topic), at)

    moving = MovingWindow(await open_now(), open_now)
    ranges = await ranges_of(log, moving.window, asked)
    first, last = ranges.of[at.partition]
    done = BackfilledPartition(topic=at.topic, partition=at.partition, first=first, last=last)
    ttl_s = endpoints.settings_of_store().marker_ttl_s
    found = await moving.read(lambda window: survey(log, window))
    async for by_id in slices(log, moving, found, events_at_once=EVENTS_AT_ONCE):
        chosen = {id_: entries for id_, entries in by_id.items() if _touches(entries, ranges)}
        done = await _apply_all(store, moving.window, chosen, ranges, done, ttl_s)
    # Records that were removed meanwhile are in the store, and were not applied again.
    return msgspec.structs.replace(done, first=max(first, moving.window.home.start))


async def ranges_of(log: Log, window: AuditWindow, asked: Range) -> BackfillRanges:
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


async def _apply_all(
    store: Store,
    window: AuditWindow,
    by_id: Mapping[str, Sequence[Entry]],
    ranges: BackfillRanges,
    done: BackfilledPartition,
    ttl_s: float,
) -> BackfilledPartition:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(id_: str) -> tuple[int, int, int]:
        async with limit:
            look = await look_at_key(store, window, id_, by_id[id_], marker_ttl_s=ttl_s)
            if look.verdict is None:
                return 0, 0, 1
            rows = await _apply(store, window, id_, look.verdict, ranges)
            return len(rows), _restored(look.verdict, rows), 0

    counts = await asyncio.gather(*(one(id_) for id_ in by_id))
    within = [e for entries in by_id.values() for e in entries if ranges.has(e.partition, e.offset)]
    return msgspec.structs.replace(
        done,
        records=done.records + len(within),
        journals=done.journals + len(by_id),
        rows=done.rows + sum(rows for rows, _, _ in counts),
        restored=done.restored + sum(restored for _, restored, _ in counts),
        busy=done.busy + sum(busy for _, _, busy in counts),
    )


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


class Range(msgspec.Struct, frozen=True):
    """Offsets of each partition from `first` to `last` (inclusive), or times from `since_ms` up to `until_ms`."""

    first: int | None = None
    last: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """The result of a back-fill: records in the range, rows written, and how many of those were missing or wrong."""

    partitions: int
    records: int
    journals: int
    rows: int
    restored: int
    busy: int


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
    from headrace.pipeline.jobs.job_sources import BackfillJob
    from headrace.pipeline.jobs.partition_jobs import job_frame

    _check(first, last, "last")
    _check(since_ms, until_ms, "until_ms")
    partitions = partitions_now(endpoints, selection or Selection())
    if not partitions:
        return BackfillSummary(0, 0, 0, 0, 0, 0)
    asked = Range(first, last, since_ms, until_ms)
    frame = job_frame(spark, BackfillJob, endpoints, partitions, msgspec.to_builtins(asked))
    reports = reports_of(frame, BackfilledPartition, "back-filling")
    names = ("records", "journals", "rows", "restored", "busy")
    totals = {name: sum(getattr(report, name) for report in reports) for name in names}
    return BackfillSummary(len(reports), **totals)


def _check(start: int | None, end: int | None, name: str) -> None:
    if start is not None and end is not None and end < start:
        raise BadArgument(name, end, f"the range begins at {start}")
