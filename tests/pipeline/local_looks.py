"""The tasks of an audit and of a back-fill, run here, one after the other: only Spark's shuffle is done by hand."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline import Endpoints, Selection
from headrace.pipeline.audits.findings import COUNTED, FAILED, SUSPECT, Tally
from headrace.pipeline.audits.journal_frames import HeadRowReader, LogScan, ViewRowReader
from headrace.pipeline.audits.journal_work import EVENTS_AT_ONCE, FirstLook, JournalWork
from headrace.pipeline.audits.second_look import SecondLook
from headrace.pipeline.audits.shuffle import ROW_ORDER, RowKind, batch_of_values
from headrace.pipeline.audits.tag_views import ViewScan, view_scan_of
from headrace.pipeline.audits.windows import TopicWindow, first_time_ms
from headrace.pipeline.jobs.audit import audited_partitions
from headrace.pipeline.jobs.backfill import BackfillPlan, BackfillWork, Range
from headrace.pipeline.jobs.job_reports import AuditedPartition, BackfilledPartition
from headrace.pipeline.logs.records import batch_of_records
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.store import HeadShare

TASKS = 2
RECORDS_OF_SCAN = 12  # so few that most partitions are read in several stretches

Between = Callable[[], None]


def audit_here(
    endpoints: Endpoints,
    topic: str,
    *,
    repair: bool = False,
    events_at_once: int = EVENTS_AT_ONCE,
    between: Between | None = None,
) -> tuple[list[AuditedPartition], list[dict[str, Any]]]:
    """Audit a topic; returns the reports of its partitions and the findings. `between` follows the reading."""
    looks = LocalLooks(endpoints, repair=repair, events_at_once=events_at_once, between=between)
    partitions, _, wrong = audited_partitions(looks, endpoints, Selection((topic,)), repair=repair)
    return partitions, [*(_as_row(finding) for finding in wrong), *looks.findings]


def backfill_here(
    endpoints: Endpoints, topic: str, *, between: Between | None = None, **asked: int
) -> list[BackfilledPartition]:
    """Back-fill a topic; returns the reports of its partitions."""
    plan = run(BackfillPlan.of(endpoints, Selection((topic,)), Range(**asked)))
    rows = _log_rows(endpoints, plan.involved, with_unreplicated=False)
    if not plan.is_whole:
        keys = {
            record.key
            for at, (first, last) in plan.bounds.items()
            for record in _records(endpoints, at, first, last + 1)
        }
        rows = [_only(batch, keys) for batch in rows]
    if between is not None:
        between()
    return plan.reports(_tally(_worked(rows, BackfillWork(endpoints, plan))))


class LocalLooks:
    """The two looks of an audit."""

    def __init__(self, endpoints: Endpoints, *, repair: bool, events_at_once: int, between: Between | None) -> None:
        self._endpoints = endpoints
        self._is_repair = repair
        self._events_at_once = events_at_once
        self._between = between
        self._suspects: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []

    def first(self, windows: Sequence[TopicWindow]) -> Tally:
        async def first_ms() -> int:
            return await first_time_ms(await log_of(self._endpoints), windows)

        rows = self._rows(windows, first_ms=run(first_ms()))
        for window in windows:
            for number in range(TASKS):
                rows += HeadRowReader(self._endpoints)((window.layout.topic, HeadShare(number, TASKS)))
        if self._between is not None:
            self._between()
        found = _worked(rows, FirstLook(self._endpoints, windows, events_at_once=self._events_at_once))
        self._suspects = [row for row in found if row["kind"] == SUSPECT]
        return _tally(found)

    def again(self, windows: Sequence[TopicWindow]) -> Tally:
        keys = {row["id"].encode() for row in self._suspects}
        rows = [_only(batch, keys) for batch in self._rows(windows, with_unreplicated=True)]
        for row in self._suspects:
            key, value = row["id"].encode(), row["detail"].encode() or None
            rows.append(batch_of_values(RowKind.SUSPECT, row["topic"], row["partition"], [key], [value]))  # type: ignore[list-item]
        work = SecondLook(self._endpoints, windows, repair=self._is_repair, events_at_once=self._events_at_once)
        found = _worked(rows, work)
        self.findings = [row for row in found if row["kind"] not in (COUNTED, FAILED, SUSPECT)]
        return _tally(found)

    def _rows(
        self, windows: Sequence[TopicWindow], *, first_ms: int = 0, with_unreplicated: bool = False
    ) -> list[pa.RecordBatch]:
        async def scan() -> ViewScan | None:
            store, settings = await store_of(self._endpoints), self._endpoints.settings_of_tags()
            topics = [window.layout.topic for window in windows]
            return await view_scan_of(store, settings, topics, first_ms=first_ms, parts=TASKS)

        rows = _log_rows(self._endpoints, windows, with_unreplicated=with_unreplicated)
        views = run(scan())
        if views is not None:
            for part in views.parts:
                rows += ViewRowReader(self._endpoints, views.topics)(part)
        return rows


def _as_row(finding: Any) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}


def _log_rows(endpoints: Endpoints, windows: Sequence[TopicWindow], *, with_unreplicated: bool) -> list[pa.RecordBatch]:
    rows: list[pa.RecordBatch] = []
    for window in windows:
        for at, end in window.ends(with_unreplicated=with_unreplicated).items():
            records = _records(endpoints, at, window.starts[at], end) if end > window.starts[at] else []
            for start in range(0, len(records), RECORDS_OF_SCAN):
                rows += LogScan(TASKS)(iter([batch_of_records(records[start : start + RECORDS_OF_SCAN])]))
    return rows


def _records(endpoints: Endpoints, at: TopicPartition, start: int, end: int) -> list[Any]:
    async def read() -> list[Any]:
        log: Log = await log_of(endpoints)
        return [record async for batch in log.read(at, start, end) for record in batch.records]

    return run(read())


def _only(batch: pa.RecordBatch, keys: Iterable[bytes | None]) -> pa.RecordBatch:
    wanted = {b"", *keys}
    return batch.filter(pa.array([key in wanted for key in batch.column("key").to_pylist()], pa.bool_()))


def _worked(rows: Sequence[pa.RecordBatch], work: JournalWork) -> list[dict[str, Any]]:
    """Shuffle and sort the rows, and give them to the tasks."""
    found: list[dict[str, Any]] = []
    table = pa.Table.from_batches(rows, rows[0].schema) if rows else None
    for number in range(TASKS):
        if table is None:
            break
        ours = table.filter(pa.array([task == number for task in _tasks(table)], pa.bool_()))
        ours = ours.sort_by([(name, "ascending") for name in ROW_ORDER])
        found += [row for batch in work(iter(ours.to_batches(max_chunksize=5))) for row in batch.to_pylist()]
    return found


def _tasks(table: pa.Table) -> Iterator[int]:
    for key, task in zip(table.column("key").to_pylist(), table.column("task").to_pylist(), strict=True):
        yield zlib.crc32(key) % TASKS if task is None else task


def _tally(rows: Iterable[Mapping[str, Any]]) -> Tally:
    tally = Tally()
    for row in rows:
        more = {"rows": 1, "total": row["count"], "highest": row["count"], "repaired": row["repaired"] is True}
        tally.add({**row, "label": row["detail"], **more})
    return tally
