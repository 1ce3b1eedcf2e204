"""What a running replication tells about itself: metrics, and whoever watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.model import TopicPartition
from headrace.observe import counter, gauge, histogram
from headrace.pipeline.replicating.outcomes import Outcome

__all__ = ["BatchReport", "ReplicationWatcher", "SilentWatcher", "count"]

LAG = gauge(
    "pipeline", "lag", "records", "Offsets of the log that the store does not have yet.", ["topic", "partition"]
)
RECORDS = counter("pipeline", "records", "Records that were replicated.", ["topic"])
ROWS = counter("pipeline", "rows", "Rows that were written.", ["topic"])
VOID = counter("pipeline", "void_actions", "Actions that changed nothing.", ["topic"])
HELD = counter("pipeline", "quarantined", "Keys that were quarantined.", ["topic"])
BATCH = histogram("pipeline", "batch", "Time of a micro-batch.", [])
RESTARTS = counter("pipeline", "restarts", "Queries begun anew, by reason.", ["reason"])


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """One finished micro-batch."""

    batch: int
    records: int
    rows: int
    took_s: float
    lag: Mapping[TopicPartition, int]
    outcomes: Sequence[Outcome] = ()

    @property
    def records_per_s(self) -> float:
        """How fast it was."""
        return self.records / self.took_s if self.took_s > 0 else 0.0


class ReplicationWatcher(Protocol):
    """Told what happens, on the driver."""

    def batch(self, report: BatchReport) -> None:
        """A micro-batch is done."""
        ...

    def event(self, text: str) -> None:
        """Something happened that a person should know."""
        ...


class SilentWatcher:
    """Says nothing."""

    def batch(self, report: BatchReport) -> None:
        """Say nothing."""

    def event(self, text: str) -> None:
        """Say nothing."""


def count(report: BatchReport) -> None:
    """Put a batch into the metrics."""
    BATCH.observe(report.took_s)
    for at, lag in report.lag.items():
        LAG.labels(at.topic, str(at.partition)).set(lag)
    for outcome in report.outcomes:
        RECORDS.labels(outcome.topic).inc(outcome.records)
        ROWS.labels(outcome.topic).inc(outcome.rows)
        VOID.labels(outcome.topic).inc(outcome.void)
        HELD.labels(outcome.topic).inc(len(outcome.quarantined))
