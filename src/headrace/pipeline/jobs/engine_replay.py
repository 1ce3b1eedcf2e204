"""The replay of an engine's journals by Spark: new code is tried on all that is stored, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine import (
    AggregateReplay,
    AggregateValues,
    Engine,
    EngineReplay,
    ReplayTally,
    Suspect,
    add_replay,
    appends_in,
    state_difference,
)
from headrace.pipeline.jobs.engine_audit import confirmed
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import run
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

__all__ = ["replay_journals"]

_SUSPECTS_AT_ONCE = 10_000


def replay_journals(
    spark: SparkSession, endpoints: Endpoints, engine: str | EngineReference, *, limit: int = 10
) -> EngineReplay:
    """Try the code of an engine, `module:name`, on all its journals; up to `limit` differences of each kind are shown.

    Raises BadArgument for an engine without a journal, JournalHeld.
    """
    reference = engine if isinstance(engine, EngineReference) else EngineReference.of(engine)
    declared = reference.load()
    rows = in_order(aggregate_frame(spark, endpoints, declared))
    reports = rows.mapInArrow(JournalReplay(endpoints.pack(), reference, limit), "report binary").collect()
    tallies = [msgspec.json.decode(bytes(row.report), type=ReplayTally) for row in reports]
    return EngineReplay.of(declared.name, tallies, limit=limit)


class JournalReplay:
    """Replays the aggregates of a task. It is a class of this module, so that it is pickled by name."""

    def __init__(self, endpoints: str, reference: EngineReference, limit: int) -> None:
        self._endpoints = endpoints
        self._reference = reference
        self._limit = limit

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the report of a task that has aggregates."""
        import pyarrow as pa

        endpoints, engine = Endpoints.unpack(self._endpoints), self._reference.load()
        values = run(opened_values(endpoints, self._reference, engine))
        tally, suspects = ReplayTally(counts={}, first={}), dict[str, Suspect]()
        for aggregate in aggregates_in(batches):
            replay = _replayed(engine, values, aggregate)
            if aggregate.value is None and not replay.events:
                continue  # a record that was deleted
            if (suspect := replay.compare(aggregate.value)) is not None:
                suspects[aggregate.id] = suspect
            add_replay(tally, replay, self._limit)
            if len(suspects) == _SUSPECTS_AT_ONCE:
                self._confirm(endpoints, engine, values, suspects, tally)
        self._confirm(endpoints, engine, values, suspects, tally)
        if tally.aggregates:
            yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(tally)], pa.binary())], names=["report"])

    def _confirm(
        self,
        endpoints: Endpoints,
        engine: Engine[Any],
        values: AggregateValues,
        suspects: dict[str, Suspect],
        tally: ReplayTally,
    ) -> None:
        if suspects:
            for difference in run(confirmed(endpoints, engine, values, suspects)):
                tally.add(state_difference(difference), self._limit)
            suspects.clear()


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
