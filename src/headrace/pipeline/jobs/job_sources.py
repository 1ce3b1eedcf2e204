"""The jobs as Spark knows them; what they do is in the modules that they name."""

from __future__ import annotations

from headrace.pipeline.audits.findings import FINDING_COLUMNS
from headrace.pipeline.jobs.audit import audit_partition
from headrace.pipeline.jobs.backfill import backfill_partition
from headrace.pipeline.jobs.expiry import purge_partition
from headrace.pipeline.jobs.job_reports import REPORT_COLUMNS
from headrace.pipeline.jobs.partition_jobs import PartitionJob, Work
from headrace.pipeline.jobs.tag_backfill import fill_partition

__all__ = ["AuditJob", "BackfillJob", "PurgeExpiredJob", "TagBackfillJob"]


class PurgeExpiredJob(PartitionJob):
    """Purges the journals whose time is up."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_purge_expired"

    def schema(self) -> str:
        """Return the columns."""
        return REPORT_COLUMNS

    def work(self) -> Work:
        """Return what a task does."""
        return purge_partition


class AuditJob(PartitionJob):
    """Compares the store with the log."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_audit"

    def schema(self) -> str:
        """Return the columns."""
        return FINDING_COLUMNS

    def work(self) -> Work:
        """Return what a task does."""
        return audit_partition


class BackfillJob(PartitionJob):
    """Applies a range of the log to the store again."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_backfill"

    def schema(self) -> str:
        """Return the columns."""
        return REPORT_COLUMNS

    def work(self) -> Work:
        """Return what a task does."""
        return backfill_partition


class TagBackfillJob(PartitionJob):
    """Gives a tag to history."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_tag_backfill"

    def schema(self) -> str:
        """Return the columns."""
        return REPORT_COLUMNS

    def work(self) -> Work:
        """Return what a task does."""
        return fill_partition
