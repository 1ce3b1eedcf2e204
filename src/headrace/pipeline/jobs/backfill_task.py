"""What one task of a back-fill does: write again what a range of its partition's records left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.journal.folding import Entry
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.comparing.judging import Verdict, expected_rows
from headrace.pipeline.comparing.key_looks import look_at_key
from headrace.pipeline.comparing.key_slices import EVENTS_AT_ONCE, slices, survey
from headrace.pipeline.comparing.key_windows import Window, open_window
from headrace.pipeline.jobs.backfill import Range
from headrace.pipeline.jobs.job_reports import BackfilledPartition, layout_of, report_batch
from headrace.pipeline.spark.errors_told import told
from headrace.pipeline.spark.opened import log_of, run, store_of
from headrace.pipeline.spark.places import Places
from headrace.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline.jobs.partition_jobs import Arguments

__all__ = ["backfill_partition"]

_AT_ONCE = 32


def backfill_partition(places: Places, at: TopicPartition, arguments: Arguments) -> Iterator[pa.RecordBatch]:
    """Back-fill one partition; in a worker."""
    started_s = time.perf_counter()
    report = BackfilledPartition(topic=at.topic, partition=at.partition)
    try:
        report = run(_backfill(places, at, msgspec.convert(arguments, Range)))
    except Exception as error:
        report = msgspec.structs.replace(report, error=told(error))
    yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))


async def _backfill(places: Places, at: TopicPartition, asked: Range) -> BackfilledPartition:
    log, store = await log_of(places), await store_of(places)
    window = await open_window(log, store, await layout_of(log, store, at.topic), at)
    first, last = await _offsets(log, window, asked)
    done = BackfilledPartition(topic=at.topic, partition=at.partition, first=first, last=last)
    if last < first:
        return done
    ttl_s = places.settings_of_store().marker_ttl_s
    found = await survey(log, window)
    async for by_id in slices(log, window, found, events_at_once=EVENTS_AT_ONCE):
        chosen = {id_: entries for id_, entries in by_id.items() if _touches(entries, at, first, last)}
        done = await _apply_all(store, window, chosen, done, ttl_s)
    return done


async def _offsets(log: Log, window: Window, asked: Range) -> tuple[int, int]:
    """Return the offsets that are asked for, the log has, and replication has passed."""
    home = window.home
    first, last = home.start, home.last
    if asked.first is not None:
        first = max(first, asked.first)
    if asked.last is not None:
        last = min(last, asked.last)
    if asked.since_ms is not None:
        since = await log.offset_at(home.at, timestamp_ms=asked.since_ms)
        first = max(first, since if since is not None else home.end)
    if asked.until_ms is not None:
        until = await log.offset_at(home.at, timestamp_ms=asked.until_ms)
        last = min(last, until - 1 if until is not None else last)
    return first, last


def _touches(entries: Sequence[Entry], at: TopicPartition, first: int, last: int) -> bool:
    return any(entry.partition == at.partition and first <= entry.offset <= last for entry in entries)


async def _apply_all(
    store: Store, window: Window, by_id: Mapping[str, Sequence[Entry]], done: BackfilledPartition, ttl_s: float
) -> BackfilledPartition:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(id_: str) -> tuple[int, int, int]:
        async with limit:
            look = await look_at_key(store, window, id_, by_id[id_], marker_ttl_s=ttl_s)
            if look.verdict is None:
                return 0, 0, 1
            rows = await _apply(store, window, id_, look.verdict, done)
            return rows, _restored(look.verdict, done), 0

    counts = await asyncio.gather(*(one(id_) for id_ in by_id))
    within = [e for entries in by_id.values() for e in entries if done.first <= e.offset <= done.last]
    return msgspec.structs.replace(
        done,
        records=done.records + len(within),
        journals=done.journals + len(by_id),
        rows=done.rows + sum(rows for rows, _, _ in counts),
        restored=done.restored + sum(restored for _, restored, _ in counts),
        busy=done.busy + sum(busy for _, _, busy in counts),
    )


async def _apply(store: Store, window: Window, id_: str, verdict: Verdict, done: BackfilledPartition) -> int:
    """Write what the records of the range left: rows, the head, deletions; at their own places, so none can harm."""
    topic, partition = window.at
    fold = verdict.fold

    def is_within(offset: int) -> bool:
        return done.first <= offset <= done.last

    rows = [row for row in expected_rows(fold) if row.partition == partition and is_within(row.offset)]
    if rows:
        await store.writer.write_rows(topic, id_, rows)
        await store.writer.write_gaps(topic, id_, [gap for piece in fold.pieces for gap in piece.gaps])
    meta = fold.meta
    if meta is not None and not verdict.is_guess and meta.partition == partition and is_within(meta.offset):
        await store.writer.write_meta(meta)
    for piece in fold.pieces:
        for deletion, place in piece.deletions:
            if is_within(place.offset):
                await store.writer.delete_rows(topic, id_, [deletion], at=place)
    return len(rows)


def _restored(verdict: Verdict, done: BackfilledPartition) -> int:
    """Count the rows of the range that were not right before."""
    return sum(
        finding.seq_nr is not None and finding.offset is not None and done.first <= finding.offset <= done.last
        for finding in verdict.findings
        if finding.kind.startswith("row") and not finding.kind.endswith("added")
    )
