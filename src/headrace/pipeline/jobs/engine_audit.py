"""The audit of a command engine on Spark: each state is the fold of its journal, for all aggregates in one pass.

Records of the state topic and events of the journal are brought together by aggregate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine import (
    AggregateDifference,
    AggregateFold,
    Engine,
    EngineAudit,
    StoredAggregate,
    Suspect,
    difference_of,
)
from headrace.errors import HeadraceError, Refused
from headrace.pipeline.jobs.aggregates import (
    AggregateRows,
    AggregateTask,
    EngineReference,
    SuspectChecks,
    aggregates_in,
    prepare,
    report_batch_of,
    reports_of_tasks,
)
from headrace.pipeline.spark.endpoints import Endpoints

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["audit_states", "folded"]


class _Found(msgspec.Struct):
    """What one task found."""

    aggregates: int = 0
    found: int = 0
    first: list[AggregateDifference] = []

    def add(self, difference: AggregateDifference, limit: int) -> None:
        """Count a difference, and keep it if it is among the first."""
        self.found += 1
        if len(self.first) < limit:
            self.first.append(difference)


def audit_states(
    spark: SparkSession, endpoints: Endpoints, engine: str | EngineReference, *, limit: int = 100
) -> EngineAudit:
    """Compare the states of all aggregates with their journals; `engine` is `module:name`.

    The report has up to `limit` differences, and counts all of them. The engine may be at work meanwhile. Raises
    BadArgument for an engine without a journal, JournalHeld.
    """
    reference = engine if isinstance(engine, EngineReference) else EngineReference.of(engine)
    declared = reference.load()
    reports = reports_of_tasks(spark, endpoints, declared, StateAudit(endpoints.pack(), reference, limit))
    found = [msgspec.json.decode(report, type=_Found) for report in reports]
    first = sorted((each for report in found for each in report.first), key=lambda each: each.id)
    counts = sum(each.aggregates for each in found), sum(each.found for each in found)
    return EngineAudit(declared.name, *counts, first[:limit])


class StateAudit(AggregateTask):
    """Audits the aggregates of a task."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the report of a task that has aggregates."""
        endpoints, engine, values = self.opened()
        report = _Found(first=[])
        checks = SuspectChecks(endpoints, engine, values, lambda difference: report.add(difference, self._limit))
        for aggregate in aggregates_in(batches):
            fold = folded(engine, aggregate)
            is_there = aggregate.value is not None or isinstance(fold, HeadraceError) or fold.version > 0
            report.aggregates += is_there
            prepare(values, aggregate.value)
            stored = StoredAggregate(aggregate.id, aggregate.value)
            if (difference := difference_of(values, stored, fold)) is not None:
                checks.add(aggregate.id, Suspect(aggregate.value, difference))
        checks.end()
        if report.aggregates:
            yield report_batch_of(report)


def folded(engine: Engine[Any], aggregate: AggregateRows) -> AggregateFold[Any] | HeadraceError:
    """Return the fold of an aggregate's events, or why there is none."""
    fold = AggregateFold(engine, aggregate.id)
    try:
        for event in aggregate.events:
            fold.add(event)
    except Refused as error:
        return error
    return fold
