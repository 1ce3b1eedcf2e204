"""States of journals as of an offset or a time: their events, folded by a function of the caller."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec

from headrace.errors import BadArgument, OperationFailed
from headrace.model import StoredEvent
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import one_line
from headrace.pipeline.tables.frames import journal_frame
from headrace.protocol import check_finite, stored_event
from headrace.store import EventRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Fold", "event_of_columns", "state_as_of", "state_text"]

Fold: TypeAlias = Callable[[Any, StoredEvent], Any]

_SCHEMA = "topic string, key string, seq_nr bigint, events bigint, is_complete boolean, state string"
_STATES_AT_ONCE = 1000


def state_as_of(
    spark: SparkSession,
    endpoints: Endpoints,
    selection: Selection,
    fold: Fold,
    initial: object,
    *,
    offset: int | Mapping[int, int] | None = None,
    at: datetime | None = None,
    key: str | None = None,
    schema: str | None = None,
) -> DataFrame:
    """Return the state of each journal, or of one, as of an offset (inclusive; one for all or by partition) or a time.

    `fold(state, event)` returns the next state; it starts from a copy of `initial`. Events come in the order of their
    numbers, and memory does not grow with a journal's length. States are JSON text, or columns of `schema` if given.
    Deleted events are missing from a state: `is_complete` is True if its first event has number 1.
    """
    from pyspark.sql import functions as f

    frame = journal_frame(spark, endpoints, selection)
    if key is not None:
        frame = frame.where(f.col("key") == key)
    events = frame.where(_before(offset, at))
    events = events.repartition("topic", "key").sortWithinPartitions("topic", "key", "seq_nr")
    states = events.drop("payload_text").mapInArrow(StateFold(fold, initial), _SCHEMA)
    return states if schema is None else states.withColumn("state", f.from_json("state", schema))


def _before(offset: int | Mapping[int, int] | None, at: datetime | None) -> str:
    if offset is not None and at is not None:
        raise BadArgument("at", at, "the state is as of an offset or of a time, not both")
    if at is not None:
        aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return f"timestamp <= timestamp_micros({round(aware.timestamp() * 1_000_000)})"
    if isinstance(offset, int):
        return f"offset <= {offset}"
    if not offset:
        return "true"
    each = " OR ".join(f"(partition = {int(of)} AND offset <= {int(last)})" for of, last in offset.items())
    return f"offset <= {max(offset.values())} AND partition IN ({', '.join(map(str, offset))}) AND ({each})"


class StateFold:
    """Folds a task's events, which are sorted by journal, into states."""

    def __init__(self, fold: Fold, initial: object) -> None:
        self._fold = fold
        self._initial = initial

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the states."""
        done: list[tuple[Any, ...]] = []
        for state in self._states(batches):
            done.append(state)
            if len(done) == _STATES_AT_ONCE:
                yield _batch(done)
                done = []
        if done:
            yield _batch(done)

    def _states(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        journal: tuple[str, str] | None = None
        state: Any = None
        first = last = count = 0
        for batch in batches:
            for row in _rows(batch):
                if (row[0], row[1]) != journal:
                    if journal is not None:
                        yield *journal, last, count, first == 1, state_text(journal[1], state)
                    journal, state = (row[0], row[1]), copy.deepcopy(self._initial)
                    first, count = row[2].seq_nr, 0
                state = self._next(row[1], state, row[2])
                last, count = row[2].seq_nr, count + 1
        if journal is not None:
            yield *journal, last, count, first == 1, state_text(journal[1], state)

    def _next(self, key: str, state: object, event: StoredEvent) -> object:
        try:
            return self._fold(state, event)
        except Exception as error:
            raise OperationFailed(f"folding event {event.seq_nr} of {key!r}", one_line(error)) from error


def state_text(key: str, state: object) -> str:
    """Return the state of a journal as JSON. Raises OperationFailed for what JSON can't carry."""
    try:
        text = msgspec.json.encode(state).decode()
        if "null" in text:
            check_finite(state)
        return text
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise OperationFailed(f"writing the state of {key!r} as JSON", str(error)) from error


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str, StoredEvent]]:
    for row in batch.to_pylist():
        yield row["topic"], row["key"], event_of_columns(row)


def event_of_columns(row: Mapping[str, Any]) -> StoredEvent:
    """Return the event in a row of a journal's frame."""
    stored = EventRow(
        segment=0,
        seq_nr=row["seq_nr"],
        generation=row["generation"],
        partition=row["partition"],
        offset=row["offset"],
        log_time_ms=_millis(row["log_time"]),
        timestamp_ms=_millis(row["timestamp"]),
        record_id=UUID(int=0),
        tags=tuple(row["tags"]),
        payload_type=row["payload_type"],
        payload=row["payload"],
        metadata=row["metadata"],
        headers=dict(row["headers"]),
        origin=row["origin"],
        version=row["version"],
    )
    return stored_event(row["key"], stored)


def _millis(time: datetime) -> int:
    return round(time.replace(tzinfo=time.tzinfo or UTC).timestamp() * 1000)


def _batch(states: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    from headrace.pipeline.spark.process import batch_of_rows

    types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.bool_(), pa.string())
    names = ("topic", "key", "seq_nr", "events", "is_complete", "state")
    return batch_of_rows(states, pa.schema(list(zip(names, types, strict=True))))
