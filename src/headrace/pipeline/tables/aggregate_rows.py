"""The aggregates of a command engine as rows of one frame: what the state topic holds of each, and its events.

All rows of an aggregate are in one task, its records first, then its events in order. So one pass over both topics is
enough to compare them, and memory does not grow with a journal's length.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.config import RegistrySettings
from headrace.engine import AggregateValues, Engine, journal_topic_of
from headrace.errors import BadArgument, NotReadable, UnknownTopic
from headrace.model import StoredEvent
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run
from headrace.pipeline.tables.frames import journal_frame
from headrace.pipeline.tables.states import event_of_columns, rows_in_utc
from headrace.pipeline.topics.frames import topic_frame
from headrace.runtime import load_named
from headrace.serde import open_registry
from headrace.state import RESERVED_PREFIX, JsonValues

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "AggregateRows",
    "EngineReference",
    "aggregate_frame",
    "aggregates_in",
    "in_order",
    "opened_values",
    "prepare",
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
