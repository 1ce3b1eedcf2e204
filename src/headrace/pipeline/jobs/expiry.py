"""Expiry: journals whose time is up are purged, unless somebody appends meanwhile.

The job finds in the store what is past its time, looks whether the log still has it so, and writes a Purge that names
the last append it saw. The fold makes that void when an append came after it, so a client that renews a journal at the
same time wins, and so does one that began the next incarnation before a second run. Days on which the job did not run
are made good by the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.pipeline.jobs.job_reports import ExpiryReport, partitions_ever, reports_of
from headrace.pipeline.logs.planning import Selection
from headrace.pipeline.spark.places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExpirySummary", "purge_expired"]


@dataclass(frozen=True, slots=True)
class ExpirySummary:
    """What a run did: journals looked at, and how many of them it purged. Purges without effect don't count."""

    journals: int
    purged: int
    partitions: int


def purge_expired(
    spark: SparkSession, places: Places, selection: Selection | None = None, *, now: datetime | None = None
) -> ExpirySummary:
    """Write a Purge for each journal that was to go at `now` or before, as far as replication has seen.

    The purges take effect as any other record of the log: at once for readers, in the store with the next replication.
    Raises OperationFailed; then some may have been written, and to run it again is harmless.
    """
    from headrace.pipeline.jobs.job_sources import PurgeExpiredJob
    from headrace.pipeline.jobs.partition_jobs import job_frame

    now = now or datetime.now(UTC)
    partitions = partitions_ever(places, selection or Selection())
    if not partitions:
        return ExpirySummary(0, 0, 0)
    frame = job_frame(spark, PurgeExpiredJob, places, partitions, {"now_ms": int(now.timestamp() * 1000)})
    reports = reports_of(frame, ExpiryReport, "purging the expired journals of")
    return ExpirySummary(
        journals=sum(report.journals for report in reports),
        purged=sum(report.purged for report in reports),
        partitions=len(reports),
    )
