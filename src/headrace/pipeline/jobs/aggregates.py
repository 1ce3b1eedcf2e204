"""The aggregates of a command engine as rows of one frame, and tasks over all of them.

A row has what the state topic holds, or an event. All rows of an aggregate are in one task, its records first, then its
events in order. So one pass over both topics is enough to compare them, and memory does not grow with a journal's
length.

Each task makes a report. What seems wrong is looked at again by the task that found it, many aggregates at a time,
because the engine may be at work meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.config import RegistrySettings
from headrace.engine import (
    AggregateDifference,
    AggregateValues,
    Engine,
    EngineAuditor,
    Suspect,
    journal_topic_of,
)
from headrace.errors import BadArgument, NotReadable, UnknownTopic
from headrace.journal import Journal
from headrace.model import StoredEvent
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.tables.frames import event_of_columns, journal_frame, rows_in_utc
from headrace.pipeline.topics.frames import topic_frame
from headrace.runtime import load_named
from headrace.serde import open_registry
from headrace.state import RESERVED_PREFIX, JsonValues

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "AggregateRows",
    "AggregateTask",
    "EngineReference",
    "SuspectChecks",
    "aggregate_frame",
    "aggregates_in",
    "in_order",
    "opened_values",
    "prepare",
    "report_batch_of",
    "reports_of_tasks",
]

_RECORD, _EVENT = 0, 1


class EngineReference(msgspec.Struct, frozen=True):
    """An engine by `module:name`: it holds functions, so each process imports it for itself.

    `path` is where the driver found the module; a worker on another machine has it from its package.
    """

    where: str
    path: str = ""
    registry: dict[str, Any] = {}

    @classmethod
    def of(cls, where: str, registry: RegistrySettings | None = None) -> EngineReference:
        """Return the reference to an engine that this process can import. Raises BadArgument."""
        settings = {} if registry is None else registry.model_dump(mode="json")
        found = cls(where, str(Path.cwd()), settings)
        found.load()
        return found

    def load(self) -> Engine[Any]:
        """Import the engine. Raises BadArgument."""
        rule = "name an Engine as module:name, such as shop.bank:bank"
        if self.path and self.path not in sys.path:
            sys.path.append(self.path)
        found = load_named("engine", self.where, rule, folder=None)
        if not isinstance(found, Engine):
            raise BadArgument("engine", self.where, f"{rule}; this is of type {type(found).__name__}")
        return found


async def opened_values(endpoints: Endpoints, reference: EngineReference, engine: Engine[Any]) -> AggregateValues:
    """Return the codec of the engine's records, ready to be used."""
    registry = None
    if engine.uses_registry:
        settings = RegistrySettings.model_validate(reference.registry)
        registry = await open_registry(log=await log_of(endpoints), settings=settings)
    values = AggregateValues(engine.state_codec(registry))
    await values.open()
    return values


class AggregateRows(NamedTuple):
    """What one task knows of an aggregate: the bytes of its newest record, and its events, to be read once."""

    id: str
    value: bytes | None
    events: Iterator[StoredEvent]


def aggregate_frame(spark: SparkSession, endpoints: Endpoints, engine: Engine[Any]) -> DataFrame:
    """Return the records and events of all aggregates, not yet brought together; see `aggregates_in`."""
    events = journal_frame(spark, endpoints, Selection((journal_topic_of(engine),))).drop("topic", "payload_text")
    events = events.selectExpr("*", f"{_EVENT} AS kind", "seq_nr AS place", "CAST(NULL AS BINARY) AS value")
    try:
        records = topic_frame(spark, endpoints, engine.state_topic)
    except UnknownTopic:
        return events
    ours = f"substring(key, 1, 3) != X'{RESERVED_PREFIX.hex()}' AND is_valid_utf8(CAST(key AS STRING))"
    stored = records.where(ours).selectExpr(
        "CAST(key AS STRING) AS key", "partition", f"{_RECORD} AS kind", "offset AS place", "value"
    )
    return events.unionByName(stored, allowMissingColumns=True)


def in_order(frame: DataFrame, tasks: int | None = None) -> DataFrame:
    """Return the rows with all of an aggregate in one task, sorted as `aggregates_in` needs them."""
    placed = frame.repartition("key") if tasks is None else frame.repartition(tasks, "key")
    return placed.sortWithinPartitions("key", "kind", "place")


def aggregates_in(batches: Iterable[pa.RecordBatch]) -> Iterator[AggregateRows]:
    """Yield the aggregates of a task, one after the other; the events of each are read before the next one."""
    rows = (row for batch in batches for row in rows_in_utc(batch))
    for key, group in itertools.groupby(rows, lambda row: row["key"]):
        yield _aggregate(key, group)


def _aggregate(key: str, rows: Iterator[Mapping[str, Any]]) -> AggregateRows:
    value: bytes | None = None
    for row in rows:
        if row["kind"] == _EVENT:
            return AggregateRows(key, value, _events(itertools.chain([row], rows)))
        value = row["value"]
    return AggregateRows(key, value, iter(()))


def _events(rows: Iterable[Mapping[str, Any]]) -> Iterator[StoredEvent]:
    return (event_of_columns(row) for row in rows)


def prepare(values: AggregateValues, value: bytes | None) -> None:
    """Get ready to decode a record. A damaged one is left to whoever decodes it."""
    if value is None or isinstance(values.inner, JsonValues):
        return
    with contextlib.suppress(NotReadable):
        run(values.prepare(value))


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
