"""The rebuild of an engine's state by Spark: every aggregate is written again, from its journal.

All journals are folded once before anything is changed, so that a journal which can't be folded stops nothing. Then the
engine is paused, and each partition has one task, which owns it while it writes. A rebuild that dies leaves the engine
paused; the next one writes everything again, and lets it be served.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config import HeadraceSettings
from headrace.engine import (
    AggregateFold,
    Engine,
    PartitionRebuild,
    RebuildPlan,
    RebuildWriter,
    RebuiltAggregate,
    begin_rebuild,
    end_rebuild,
    in_batches,
)
from headrace.errors import HeadraceError, RebuildRefused
from headrace.model import NewRecord
from headrace.pipeline.jobs.aggregates import (
    AggregateRows,
    EngineReference,
    aggregate_frame,
    aggregates_in,
    in_order,
    opened_values,
)
from headrace.pipeline.jobs.engine_audit import folded
from headrace.pipeline.jobs.job_reports import REPORT_COLUMNS, PartitionReport, report_batch, reports_of
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RebuildReport", "RebuildSummary", "rebuild_states"]

_PROBLEMS = 5


class RebuildReport(PartitionReport, frozen=True, kw_only=True):
    """The report of the rebuild of one partition."""

    aggregates: int = 0


@dataclass(frozen=True, slots=True)
class RebuildSummary:
    """The result of a rebuild: the aggregates that were written, in how many partitions."""

    engine: str
    aggregates: int
    partitions: int


def rebuild_states(
    spark: SparkSession,
    endpoints: Endpoints,
    engine: str | EngineReference,
    *,
    settings: HeadraceSettings | None = None,
    timeout_s: float = 60.0,
) -> RebuildSummary:
    """Write the state of every aggregate again, from its journal; `engine` is `module:name`.

    Nobody serves the engine meanwhile, and its callers wait. `settings` name the cluster. Raises RebuildRefused, before
    anything is changed, if a journal can't be folded. Raises OperationFailed for what happened in a task; then the
    engine stays paused until a rebuild has come to its end.
    """
    reference = engine if isinstance(engine, EngineReference) else EngineReference.of(engine)
    declared, settings = reference.load(), settings or HeadraceSettings.load()
    settings = settings.model_copy(update={"log": settings.log.model_copy(update={"address": endpoints.log})})
    _check_journals(spark, endpoints, reference, declared)
    plan = run(_begun(endpoints, declared, settings, timeout_s))
    task = RebuildTask(endpoints.pack(), reference, plan, timeout_s)
    rows = _by_partition(aggregate_frame(spark, endpoints, declared), declared.partitions)
    reports = reports_of(rows.mapInArrow(task, REPORT_COLUMNS), RebuildReport, "rebuilding")
    for partition in sorted(set(plan.fenced) - {report.partition for report in reports}):
        task.rebuild(partition, iter(()))  # no aggregate is left in it, and that is to be known, too
    run(_ended(endpoints, declared, settings))
    return RebuildSummary(declared.name, sum(report.aggregates for report in reports), declared.partitions)


def _by_partition(rows: DataFrame, partitions: int) -> DataFrame:
    """Return the rows with all of a partition in one task, sorted by aggregate."""
    from pyspark.sql import functions as f

    return rows.repartitionById(partitions, f.col("partition")).sortWithinPartitions("key", "kind", "place")


def _check_journals(spark: SparkSession, endpoints: Endpoints, reference: EngineReference, engine: Engine[Any]) -> None:
    """Raise RebuildRefused if a journal can't be folded."""
    rows = in_order(aggregate_frame(spark, endpoints, engine))
    check = JournalCheck(endpoints.pack(), reference)
    problems = [row.problem for row in rows.mapInArrow(check, "problem string").limit(_PROBLEMS).collect()]
    if problems:
        reason = f"journals can't be folded, and nothing was changed: {' | '.join(problems)}"
        raise RebuildRefused(engine.name, reason, "correct the engine's code, and run it again")


async def _begun(
    endpoints: Endpoints, engine: Engine[Any], settings: HeadraceSettings, timeout_s: float
) -> RebuildPlan:
    log, store = await log_of(endpoints), await store_of(endpoints)
    return await begin_rebuild(log, store.settings, engine, settings, timeout_s=timeout_s)


async def _ended(endpoints: Endpoints, engine: Engine[Any], settings: HeadraceSettings) -> None:
    await end_rebuild(await log_of(endpoints), engine, settings)


class JournalCheck:
    """Folds the journals of a task, and yields what can't be. A class of this module, so that it is pickled by name."""

    def __init__(self, endpoints: str, reference: EngineReference) -> None:
        self._endpoints = endpoints
        self._reference = reference

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the problems."""
        import pyarrow as pa

        engine = self._reference.load()
        values = run(opened_values(Endpoints.unpack(self._endpoints), self._reference, engine))
        problems: list[str] = []
        for aggregate in aggregates_in(batches):
            try:
                _fold_of(engine, aggregate).encoded(values.inner)
            except HeadraceError as error:
                problems.append(str(error))
            if len(problems) == _PROBLEMS:
                break
        if problems:
            yield pa.RecordBatch.from_arrays([pa.array(problems, pa.string())], names=["problem"])


def _fold_of(engine: Engine[Any], aggregate: AggregateRows) -> AggregateFold[Any]:
    """Return the fold of an aggregate's events. Raises what is wrong with them."""
    fold = folded(engine, aggregate)
    if isinstance(fold, HeadraceError):
        raise fold
    return fold


class RebuildTask:
    """Writes the aggregates of one partition, and reports. A class of this module, so that it is pickled by name."""

    def __init__(self, endpoints: str, reference: EngineReference, plan: RebuildPlan, timeout_s: float) -> None:
        self._endpoints = endpoints
        self._reference = reference
        self._plan = plan
        self._timeout_s = timeout_s

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one report if there are rows. An error is part of the report, so that other tasks can finish."""
        started_s = time.perf_counter()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        partition = first.column("partition")[0].as_py()
        topic = self._reference.load().state_topic
        report = RebuildReport(topic=topic, partition=partition)
        try:
            written = self.rebuild(partition, aggregates_in(itertools.chain([first], batches)))
            report = msgspec.structs.replace(report, aggregates=written)
        except Exception as error:
            report = msgspec.structs.replace(report, error=one_line(error))
        yield report_batch(msgspec.structs.replace(report, took_s=time.perf_counter() - started_s))

    def rebuild(self, partition: int, aggregates: Iterator[AggregateRows]) -> int:
        """Write the aggregates of a partition, and return how many. Rows are taken in Spark's thread."""
        engine, endpoints = self._reference.load(), Endpoints.unpack(self._endpoints)
        stack = AsyncExitStack()
        writer = run(self._begun(endpoints, engine, partition, stack))
        count = 0
        try:

            def records() -> Iterator[NewRecord]:
                for aggregate in aggregates:
                    yield writer.record(RebuiltAggregate(_fold_of(engine, aggregate), aggregate.value))

            for batch in in_batches(records()):
                run(writer.write(batch))
                count += sum(record.value is not None for record in batch)
            run(writer.end())
        except BaseException as error:
            run(stack.__aexit__(type(error), error, error.__traceback__))
            raise
        run(stack.aclose())
        return count

    async def _begun(
        self, endpoints: Endpoints, engine: Engine[Any], partition: int, stack: AsyncExitStack
    ) -> RebuildWriter:
        rebuild = PartitionRebuild(
            await log_of(endpoints),
            engine,
            await opened_values(endpoints, self._reference, engine),
            self._plan.group,
            partition,
            fenced=self._plan.fenced[partition],
            max_record_bytes=self._plan.max_record_bytes,
            is_of_all=True,
        )
        return await stack.enter_async_context(rebuild.begun(timeout_s=self._timeout_s))
