"""Reports of a job's tasks to the driver, one small row each, and the partitions that a job works on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.errors import OperationFailed
from headrace.journal import Layout
from headrace.model import TopicPartition
from headrace.pipeline.audits.windows import TopicWindow, layout_of, open_topic_window
from headrace.pipeline.logs.plan import Selection, topics_of
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "REPORT_COLUMNS",
    "AuditedPartition",
    "BackfilledPartition",
    "ExpiryReport",
    "PartitionReport",
    "check",
    "layout_of",
    "partitions_ever",
    "partitions_now",
    "report_batch",
    "reports_of",
    "windows_now",
]

REPORT_COLUMNS = "report binary"

R = TypeVar("R", bound="PartitionReport")


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one task. `error` says why the task could not finish."""

    topic: str
    partition: int
    error: str | None = None
    took_s: float = 0.0


class ExpiryReport(PartitionReport, frozen=True, kw_only=True):
    """The report of the expiry of one partition."""

    journals: int = 0
    purged: int = 0


class AuditedPartition(PartitionReport, frozen=True, kw_only=True):
    """The report of the audit of one partition: offsets `first` to `last`. `busy` counts journals being replicated.

    `read` counts the records that were read from the log, as often as they were read; `records` those of journals.
    """

    first: int = 0
    last: int = -1
    read: int = 0
    records: int = 0
    journals: int = 0
    rows: int = 0
    busy: int = 0
    findings: int = 0
    repaired: int = 0


class BackfilledPartition(PartitionReport, frozen=True, kw_only=True):
    """The report of the back-fill of one partition, offsets `first` to `last`. `restored` rows had been wrong.

    `read` counts the records that were read from the log, as often as they were read; `records` those of the range.
    """

    first: int = 0
    last: int = -1
    read: int = 0
    records: int = 0
    journals: int = 0
    rows: int = 0
    restored: int = 0
    busy: int = 0


def report_batch(report: PartitionReport) -> pa.RecordBatch:
    """Return the report as a batch of one row."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(report)], pa.binary())], names=["report"])


def reports_of(frame: DataFrame, kind: type[R], what: str) -> list[R]:
    """Run the job and return the reports. Raises OperationFailed if a task could not finish."""
    reports = [msgspec.json.decode(bytes(row.report), type=kind) for row in frame.collect()]
    check(reports, what)
    return reports


def check(reports: Sequence[PartitionReport], what: str) -> None:
    """Raise OperationFailed if a task could not finish."""
    for report in reports:
        if report.error is not None:
            at = TopicPartition(report.topic, report.partition)
            raise OperationFailed(f"{what} {at}", report.error, outcome_known=False)


def partitions_now(endpoints: Endpoints, selection: Selection) -> list[TopicPartition]:
    """Return all partitions of the selected topics."""
    layouts = run(_layouts(endpoints, selection))
    return [TopicPartition(layout.topic, number) for layout in layouts for number in range(layout.partitions)]


def partitions_ever(endpoints: Endpoints, selection: Selection) -> list[TopicPartition]:
    """Return all partitions of the selected topics, and those that a topic had before it was created again.

    The store may still have journals of those partitions.
    """
    layouts = run(_layouts(endpoints, selection))
    most = {layout.topic: max(each.partitions for each in layout.generations) for layout in layouts}
    return [TopicPartition(topic, number) for topic, count in most.items() for number in range(count)]


async def windows_now(endpoints: Endpoints, selection: Selection) -> list[TopicWindow]:
    """Return the windows of the selected topics."""
    log, store = await log_of(endpoints), await store_of(endpoints)
    return [await open_topic_window(log, store, layout) for layout in await _layouts(endpoints, selection)]


async def _layouts(endpoints: Endpoints, selection: Selection) -> list[Layout]:
    log, store = await log_of(endpoints), await store_of(endpoints)
    return [await layout_of(log, store, topic) for topic in await topics_of(log, store, selection)]
