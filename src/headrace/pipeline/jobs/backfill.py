"""Back-fill: a range of the log is applied to the store again. What was right stays as it is, what was lost comes back.

The records before the range are read too, because they decide which of the range count. What replication has not passed
yet is left to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import BadArgument
from headrace.pipeline.jobs.job_reports import BackfilledPartition, partitions_now, reports_of
from headrace.pipeline.logs.planning import Selection
from headrace.pipeline.spark.places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BackfillSummary", "Range", "backfill"]


class Range(msgspec.Struct, frozen=True):
    """Offsets of each partition from `first` to `last` (inclusive), or times from `since_ms` up to `until_ms`."""

    first: int | None = None
    last: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """What a run did: records of the range, rows that they left, and how many of those were missing or wrong."""

    partitions: int
    records: int
    journals: int
    rows: int
    restored: int
    busy: int


def backfill(
    spark: SparkSession,
    places: Places,
    selection: Selection | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> BackfillSummary:
    """Apply the offsets from `first` to `last` (inclusive) of each partition again, or a time: its end is exclusive.

    Without a range all that the log has. Journals that replication was at are counted as `busy` and left to it.
    Raises BadArgument for an empty range, OperationFailed.
    """
    from headrace.pipeline.jobs.job_sources import BackfillJob
    from headrace.pipeline.jobs.partition_jobs import job_frame

    _check(first, last, "last")
    _check(since_ms, until_ms, "until_ms")
    partitions = partitions_now(places, selection or Selection())
    if not partitions:
        return BackfillSummary(0, 0, 0, 0, 0, 0)
    asked = Range(first, last, since_ms, until_ms)
    frame = job_frame(spark, BackfillJob, places, partitions, msgspec.to_builtins(asked))
    reports = reports_of(frame, BackfilledPartition, "back-filling")
    names = ("records", "journals", "rows", "restored", "busy")
    totals = {name: sum(getattr(report, name) for report in reports) for name in names}
    return BackfillSummary(len(reports), **totals)


def _check(start: int | None, end: int | None, name: str) -> None:
    if start is not None and end is not None and end < start:
        raise BadArgument(name, end, f"the range begins at {start}")
