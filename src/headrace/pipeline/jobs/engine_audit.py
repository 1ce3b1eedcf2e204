"""The audit of a command engine on Spark: each state is the fold of its journal, for all aggregates in one pass.

Records of the state topic and events of the journal are brought together by aggregate. What seems wrong is looked at
again by the task that found it, because the engine may be at work meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine import (
    AggregateDifference,
    AggregateFold,
    AggregateValues,
    Engine,
    EngineAudit,
    EngineAuditor,
    StoredAggregate,
    Suspect,
    difference_of,
    journal_topic_of,
)
from headrace.errors import HeadraceError, Refused
from headrace.journal import Journal
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.tables.aggregate_rows import (
    AggregateRows,
    EngineReference,
    aggregate_frame,
    aggregates_in,
    in_order,
    opened_values,
    prepare,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["audit_states", "confirmed", "folded"]

_SUSPECTS_AT_ONCE = 10_000


class _Found(msgspec.Struct):
    """What one task found."""

    aggregates: int = 0
    found: int = 0
    first: list[AggregateDifference] = []


def audit_states(
    spark: SparkSession, endpoints: Endpoints, engine: str | EngineReference, *, limit: int = 100
) -> EngineAudit:
    """Compare the states of all aggregates with their journals; `engine` is `module:name`.

    The report has up to `limit` differences, and counts all of them. The engine may be at work meanwhile. Raises
    BadArgument for an engine without a journal, JournalHeld.
    """
    reference = engine if isinstance(engine, EngineReference) else EngineReference.of(engine)
    declared = reference.load()
    rows = in_order(aggregate_frame(spark, endpoints, declared))
    reports = rows.mapInArrow(StateAudit(endpoints.pack(), reference, limit), "report binary").collect()
    found = [msgspec.json.decode(bytes(row.report), type=_Found) for row in reports]
    first = sorted((each for report in found for each in report.first), key=lambda each: each.id)
    counts = sum(each.aggregates for each in found), sum(each.found for each in found)
    return EngineAudit(declared.name, *counts, first[:limit])


class StateAudit:
    """Audits the aggregates of a task. It is a class of this module, so that it is pickled by name."""

    def __init__(self, endpoints: str, reference: EngineReference, limit: int) -> None:
        self._endpoints = endpoints
        self._reference = reference
        self._limit = limit

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the report of a task that has aggregates."""
        endpoints, engine = Endpoints.unpack(self._endpoints), self._reference.load()
        values = run(opened_values(endpoints, self._reference, engine))
        report, suspects = _Found(first=[]), dict[str, Suspect]()
        for aggregate in aggregates_in(batches):
            fold = folded(engine, aggregate)
            is_there = aggregate.value is not None or isinstance(fold, HeadraceError) or fold.version > 0
            report.aggregates += is_there
            prepare(values, aggregate.value)
            stored = StoredAggregate(aggregate.id, aggregate.value)
            if (difference := difference_of(values, stored, fold)) is not None:
                suspects[aggregate.id] = Suspect(aggregate.value, difference)
            if len(suspects) == _SUSPECTS_AT_ONCE:
                self._confirm(endpoints, engine, values, suspects, report)
        self._confirm(endpoints, engine, values, suspects, report)
        if report.aggregates:
            yield _batch(report)

    def _confirm(
        self,
        endpoints: Endpoints,
        engine: Engine[Any],
        values: AggregateValues,
        suspects: dict[str, Suspect],
        report: _Found,
    ) -> None:
        if suspects:
            real = run(confirmed(endpoints, engine, values, suspects))
            report.found += len(real)
            report.first += real[: self._limit - len(report.first)]
            suspects.clear()


def folded(engine: Engine[Any], aggregate: AggregateRows) -> AggregateFold[Any] | HeadraceError:
    """Return the fold of an aggregate's events, or why there is none."""
    fold = AggregateFold(engine, aggregate.id)
    try:
        for event in aggregate.events:
            fold.add(event)
    except Refused as error:
        return error
    return fold


async def confirmed(
    endpoints: Endpoints, engine: Engine[Any], values: AggregateValues, suspects: dict[str, Suspect]
) -> list[AggregateDifference]:
    """Return the differences that are real, after another look at state topic and journals."""
    log, store = await log_of(endpoints), await store_of(endpoints)
    journal = Journal(log, store, journal_topic_of(engine), cache=None, read_only=True)
    return await EngineAuditor(log, journal, engine, values).confirmed(suspects)


def _batch(report: _Found) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(report)], pa.binary())], names=["report"])
