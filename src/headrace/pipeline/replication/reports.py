"""Reports of replication on the driver: reports of batches, metrics and watchers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from headrace.model import TopicPartition
from headrace.observe import counter, gauge, histogram
from headrace.pipeline.replication.outcomes import TaskOutcome

__all__ = [
    "BatchReport",
    "ReplicationWatcher",
    "SilentWatcher",
    "count",
    "count_lag",
    "count_outcomes",
]


LAG = gauge(
    "pipeline", "lag", "records", "Offsets of the log that the store does not have yet.", ["topic", "partition"]
)
RECORDS = counter("pipeline", "records", "Records that were replicated.", ["topic"])
ROWS = counter("pipeline", "rows", "Rows that were written.", ["topic"])
VOID = counter("pipeline", "void_actions", "Actions that changed nothing.", ["topic"])
HELD = counter("pipeline", "quarantined", "Keys that were quarantined.", ["topic"])
BATCH = histogram("pipeline", "batch", "Time of a micro-batch.", [])
LAST_BATCH = gauge(
    "pipeline",
    "last_batch",
    "timestamp_seconds",
    "When a micro-batch ended last, in Unix time; before the first one, when the job began.",
)
RUNNING = gauge("pipeline", "running", "queries", "Queries of Spark that replicate now.")
RESTARTS = counter("pipeline", "restarts", "Queries that were started again, by reason.", ["reason"])


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """One finished micro-batch."""

    batch: int
    records: int
    rows: int
    took_s: float
    lag: Mapping[TopicPartition, int]
    outcomes: Sequence[TaskOutcome] = ()

    @property
    def records_per_s(self) -> float:
        """The speed of the batch."""
        return self.records / self.took_s if self.took_s > 0 else 0.0


class ReplicationWatcher(Protocol):
    """Receives reports and notices, on the driver."""

    def batch(self, report: BatchReport) -> None:
        """Receive the report of a finished micro-batch."""
        ...

    def event(self, text: str) -> None:
        """Receive a notice for the operator."""
        ...


class SilentWatcher:
    """Ignores everything."""

    def batch(self, report: BatchReport) -> None:
        """Ignore it."""

    def event(self, text: str) -> None:
        """Ignore it."""


def count(report: BatchReport) -> None:
    """Add a batch to the metrics."""
    BATCH.observe(report.took_s)
    LAST_BATCH.set_to_current_time()
    count_lag(report.lag)
    count_outcomes(report.outcomes)


def count_lag(lags: Mapping[TopicPartition, int], *, gone: Iterable[TopicPartition] = ()) -> None:
    """Set the lag of partitions, and forget that of those that are gone."""
    for at, lag in lags.items():
        LAG.labels(at.topic, str(at.partition)).set(lag)
    for at in gone:
        with suppress(KeyError):  # another job of this process has forgotten it
            LAG.remove(at.topic, str(at.partition))


def count_outcomes(outcomes: Sequence[TaskOutcome]) -> None:
    """Add what tasks have done to the metrics."""
    for outcome in outcomes:
        RECORDS.labels(outcome.topic).inc(outcome.records)
        ROWS.labels(outcome.topic).inc(outcome.rows)
        VOID.labels(outcome.topic).inc(outcome.void)
        HELD.labels(outcome.topic).inc(len(outcome.quarantined))
