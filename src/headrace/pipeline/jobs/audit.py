"""Audit: does the store have what the log says? Each task compares its partition; findings are rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.pipeline.comparing.findings import CHECKED, Finding
from headrace.pipeline.jobs.job_reports import AuditedPartition, check, partitions_now
from headrace.pipeline.logs.planning import Selection
from headrace.pipeline.spark.places import Places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditReport", "audit"]

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
    places: Places,
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
