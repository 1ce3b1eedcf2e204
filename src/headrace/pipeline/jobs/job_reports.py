"""What the tasks of a job did, told to the driver: one small row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.errors import OperationFailed
from headrace.journal import Layout, Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.logs.plan import Selection, topics_of
from headrace.pipeline.spark.places import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "REPORT_COLUMNS",
    "AuditedPartition",
    "BackfilledPartition",
    "ExpiryReport",
    "FilledPartition",
    "PartitionReport",
    "check",
    "layout_of",
    "partitions_ever",
    "partitions_now",
    "report_batch",
    "reports_of",
]

REPORT_COLUMNS = "report binary"

R = TypeVar("R", bound="PartitionReport")


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one task did. `error` says why it could not do all of it."""

    topic: str
    partition: int
    error: str | None = None
    took_s: float = 0.0


class ExpiryReport(PartitionReport, frozen=True, kw_only=True):
    """What expiry did in one partition."""

    journals: int = 0
    purged: int = 0


class AuditedPartition(PartitionReport, frozen=True, kw_only=True):
    """What an audit saw of one partition: offsets from `first` to `last`. `busy`: journals that replication was at."""

    first: int = 0
    last: int = -1
    records: int = 0
    journals: int = 0
    rows: int = 0
    busy: int = 0
    findings: int = 0
    mended: int = 0


class BackfilledPartition(PartitionReport, frozen=True, kw_only=True):
    """What was applied of one partition: offsets from `first` to `last`; `restored` rows were missing or wrong."""

    first: int = 0
    last: int = -1
    records: int = 0
    journals: int = 0
    rows: int = 0
    restored: int = 0
    busy: int = 0


class FilledPartition(PartitionReport, frozen=True, kw_only=True):
    """What was counted of one partition under a tag; its journals as of offset `seen` and before are all in."""

    generation: int = 0
    seen: int = -1
    journals: int = 0
    events: int = 0
    rows: int = 0


def report_batch(report: PartitionReport) -> pa.RecordBatch:
    """Return a report as the one row of a task."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(report)], pa.binary())], names=["report"])


def reports_of(frame: DataFrame, kind: type[R], what: str) -> list[R]:
    """Do the work and return the reports. Raises OperationFailed if a task could not do all of it."""
    reports = [msgspec.json.decode(bytes(row.report), type=kind) for row in frame.collect()]
    check(reports, what)
    return reports


def check(reports: Sequence[PartitionReport], what: str) -> None:
    """Raise OperationFailed if a task could not do all of its work."""
    for report in reports:
        if report.error is not None:
            at = TopicPartition(report.topic, report.partition)
            raise OperationFailed(f"{what} {at}", report.error, outcome_known=False)


def partitions_now(places: Endpoints, selection: Selection) -> list[TopicPartition]:
    """Return all partitions of the selected topics."""
    layouts = run(_layouts(places, selection))
    return [TopicPartition(layout.topic, number) for layout in layouts for number in range(layout.partitions)]


def partitions_ever(places: Endpoints, selection: Selection) -> list[TopicPartition]:
    """Return them with those that a topic had before it was made anew: its journals may still be from there."""
    layouts = run(_layouts(places, selection))
    most = {layout.topic: max(each.partitions for each in layout.generations) for layout in layouts}
    return [TopicPartition(topic, number) for topic, count in most.items() for number in range(count)]


async def _layouts(places: Endpoints, selection: Selection) -> list[Layout]:
    log, store = await log_of(places), await store_of(places)
    return [await layout_of(log, store, topic) for topic in await topics_of(log, store, selection)]


async def layout_of(log: Log, store: Store, topic: str) -> Layout:
    """Return a topic's layout; nothing is written."""
    return await Topology(log, store.settings, topic, is_reader=True).layout()
