"""The replay of an engine's journals by Spark: new code is tried on all that is stored, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine import (
    AggregateDifference,
    AggregateReplay,
    AggregateValues,
    Engine,
    EngineReplay,
    ReplayTally,
    add_replay,
    appends_in,
    state_difference,
)
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
from headrace.pipeline.spark.process import run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["replay_journals"]


def replay_journals(
    spark: SparkSession, endpoints: Endpoints, engine: str | EngineReference, *, limit: int = 10
) -> EngineReplay:
    """Try the code of an engine, `module:name`, on all its journals; up to `limit` differences of each kind are shown.

    Raises BadArgument for an engine without a journal, JournalHeld.
    """
    reference = engine if isinstance(engine, EngineReference) else EngineReference.of(engine)
    declared = reference.load()
    reports = reports_of_tasks(spark, endpoints, declared, JournalReplay(endpoints.pack(), reference, limit))
    tallies = [msgspec.json.decode(report, type=ReplayTally) for report in reports]
    return EngineReplay.of(declared.name, tallies, limit=limit)


class JournalReplay(AggregateTask):
    """Replays the aggregates of a task."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the report of a task that has aggregates."""
        endpoints, engine, values = self.opened()
        tally = ReplayTally(counts={}, first={})

        def found(difference: AggregateDifference) -> None:
            tally.add(state_difference(difference), self._limit)

        checks = SuspectChecks(endpoints, engine, values, found)
        for aggregate in aggregates_in(batches):
            replay = _replayed(engine, values, aggregate)
            if aggregate.value is None and not replay.events:
                continue  # a record that was deleted
            if (suspect := replay.compare(aggregate.value)) is not None:
                checks.add(aggregate.id, suspect)
            add_replay(tally, replay, self._limit)
        checks.end()
        if tally.aggregates:
            yield report_batch_of(tally)


def _replayed(engine: Engine[Any], values: AggregateValues, aggregate: AggregateRows) -> AggregateReplay[Any]:
    """Return the replay of an aggregate's events."""
    replay = AggregateReplay(engine, values, aggregate.id)
    prepare(values, aggregate.value)
    for append in appends_in(aggregate.events):
        kept = replay.command_of(append)
        if kept is None:
            replay.fold(append)
        else:
            run(replay.decide(append, kept))
    return replay
