"""Tasks over all aggregates of an engine, which its audit and its replay share.

Each task makes a report. What seems wrong is looked at again by the task that found it, many aggregates at a time,
because the engine may be at work meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine import (
    AggregateDifference,
    AggregateValues,
    Engine,
    EngineAuditor,
    Suspect,
    journal_topic_of,
)
from headrace.journal import Journal
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.tables.aggregate_rows import EngineReference, aggregate_frame, in_order, opened_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["AggregateTask", "SuspectChecks", "report_batch_of", "reports_of_tasks"]

_SUSPECTS_AT_ONCE = 10_000


class AggregateTask:
    """What a task over aggregates is given. Tasks are classes of a module, so that they are pickled by name."""

    def __init__(self, endpoints: str, reference: EngineReference, limit: int) -> None:
        self._endpoints = endpoints
        self._reference = reference
        self._limit = limit

    def opened(self) -> tuple[Endpoints, Engine[Any], AggregateValues]:
        """Return what the task works with: log and store, the engine, and the values of its aggregates."""
        endpoints, engine = Endpoints.unpack(self._endpoints), self._reference.load()
        return endpoints, engine, run(opened_values(endpoints, self._reference, engine))


def reports_of_tasks(
    spark: SparkSession,
    endpoints: Endpoints,
    engine: Engine[Any],
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> list[bytes]:
    """Run a task over all aggregates of an engine, and return the reports."""
    rows = in_order(aggregate_frame(spark, endpoints, engine))
    return [bytes(row.report) for row in rows.mapInArrow(task, "report binary").collect()]


def report_batch_of(report: msgspec.Struct) -> pa.RecordBatch:
    """Return a task's report as Spark takes it."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(report)], pa.binary())], names=["report"])


class SuspectChecks:
    """Looks again at aggregates that seemed wrong, and gives the differences that are real to `found`."""

    def __init__(
        self,
        endpoints: Endpoints,
        engine: Engine[Any],
        values: AggregateValues,
        found: Callable[[AggregateDifference], None],
    ) -> None:
        self._endpoints = endpoints
        self._engine = engine
        self._values = values
        self._found = found
        self._waiting: dict[str, Suspect] = {}

    def add(self, id_: str, suspect: Suspect) -> None:
        """Note an aggregate that seems wrong."""
        self._waiting[id_] = suspect
        if len(self._waiting) == _SUSPECTS_AT_ONCE:
            self.end()

    def end(self) -> None:
        """Look at all that are noted."""
        if self._waiting:
            for difference in run(self._confirmed()):
                self._found(difference)
            self._waiting.clear()

    async def _confirmed(self) -> list[AggregateDifference]:
        log, store = await log_of(self._endpoints), await store_of(self._endpoints)
        journal = Journal(log, store, journal_topic_of(self._engine), cache=None, read_only=True)
        return await EngineAuditor(log, journal, self._engine, self._values).confirmed(self._waiting)
