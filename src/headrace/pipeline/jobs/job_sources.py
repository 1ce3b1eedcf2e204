"""Spark data sources of the jobs; the work of each is in its own module."""

from __future__ import annotations

from headrace.pipeline.jobs.expiry import purge_partition
from headrace.pipeline.jobs.job_reports import REPORT_COLUMNS
from headrace.pipeline.jobs.partition_jobs import PartitionJob, Work

__all__ = ["PurgeExpiredJob"]


class PurgeExpiredJob(PartitionJob):
    """Purges the expired journals."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_purge_expired"

    def schema(self) -> str:
        """Return the columns."""
        return REPORT_COLUMNS

    def work(self) -> Work:
        """Return the function that a task runs."""
        return purge_partition
