"""DataFrames of journals, their heads, replicated offsets, and states as of an offset or a time.

Payloads are typed by the registry's schemas. A state is what a function of the caller makes of a journal's events.

Log and store are read when the first action on a frame runs. Spark keeps that plan for further actions with the same
filters: make the frame again to see later records.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID, uuid4

import msgspec

from headrace.errors import BadArgument, OperationFailed, UnknownSubject
from headrace.model import StoredEvent
from headrace.pipeline.logs.plan import Selection, topics_of
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, one_line, run, store_of
from headrace.pipeline.spark.session import provide_avro, register
from headrace.pipeline.tables.scans import ReadOptions
from headrace.pipeline.topics.avro_read import SchemaReading, decoded, is_framed_column, reading_of_topics, type_name
from headrace.protocol import check_finite, stored_event
from headrace.serde import BlockingRegistry, subject_of
from headrace.store import EventRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = [
    "Fold",
    "event_of_columns",
    "journal_frame",
    "meta_frame",
    "pointer_frame",
    "reading_of_selection",
    "rows_in_utc",
    "state_as_of",
    "state_text",
    "with_events",
    "with_reading",
]


def with_events(frame: DataFrame, endpoints: Endpoints, selection: Selection, registry: BlockingRegistry) -> DataFrame:
    """Return a journal's frame with the columns `event_type` and `event`. Raises UnknownSubject.

    Events of a journal have many types: `event` is a struct with a member for each type, named by its short name.
    Only the member of the event's own type is not null; `event_type` has that type's full name. A type that Spark
    can't represent, such as a recursive record, stays bytes. Both columns are null for payloads that are not framed
    Avro. The types are those registered now for the selected topics; the query fails on a later schema id, and
    names it.
    """
    reading = reading_of_selection(endpoints, selection, registry)
    if reading is None:
        topic = selection.topics[0] if selection.topics else "<topic>"
        raise UnknownSubject(f"{subject_of(topic)}, or of a type of {topic}'s records,", "the registry")
    return with_reading(frame, reading)


def reading_of_selection(
    endpoints: Endpoints, selection: Selection, registry: BlockingRegistry
) -> SchemaReading | None:
    """Return the schemas to read the events of the selected journals with; None if there are none."""

    async def topics() -> tuple[str, ...]:
        return tuple(await topics_of(await log_of(endpoints), await store_of(endpoints), selection))

    return reading_of_topics(registry, run(topics()))


def with_reading(frame: DataFrame, reading: SchemaReading) -> DataFrame:
    """Return a journal's frame with the columns `event_type` and `event`."""
    from pyspark.sql import functions as f

    provide_avro(frame.sparkSession)
    place = f.concat(f.lit("event "), f.col("seq_nr"), f.lit(" of '"), f.col("key"), f.lit("'"))
    is_avro = (f.col("payload_type") == "binary") & is_framed_column(f.col("payload"))
    payload = f.when(is_avro, f.col("payload"))
    columns = {"event_type": type_name(payload, reading), "event": decoded(payload, reading, place)}
    after = frame.columns.index("payload_text") + 1
    return frame.withColumns(columns).select(*frame.columns[:after], *columns, *frame.columns[after:])


_ALL = Selection()
_AN_HOUR = timedelta(hours=1)


def journal_frame(
    spark: SparkSession,
    endpoints: Endpoints,
    selection: Selection = _ALL,
    *,
    held: Literal["raise", "skip"] = "raise",
    clock_skew: timedelta | None = _AN_HOUR,
    counts: Path | None = None,
    registry: BlockingRegistry | None = None,
) -> DataFrame:
    """Return all events of journals that are not deleted, from the store and from the log's head, each once.

    Replication may run meanwhile: each journal appears as it was at one place of the log, at or after the planning
    of the query. Filters on key, topic, partition, seq_nr, offset and timestamp limit what is read. Filters on
    timestamp skip journals whose first and last record are further than `clock_skew` from the filtered time (None:
    skip no journal). A held journal fails the query, or is left out with `held="skip"`. Each task writes what it
    read to the folder `counts`, which workers must be able to reach. With a `registry`, payloads that are framed
    Avro appear as `event` too, see `with_events`.
    """
    from headrace.pipeline.tables.journal_source import HeadraceJournalSource

    skew_ms = None if clock_skew is None else clock_skew // timedelta(milliseconds=1)
    options = {"read_options": msgspec.json.encode(ReadOptions(held, skew_ms)).decode()}
    if counts is not None:
        options["counts"] = str(counts)
    frame = _load(spark, HeadraceJournalSource, endpoints, selection, options)
    text = "CASE WHEN payload_type IN ('text', 'json') THEN CAST(payload AS STRING) END AS payload_text"
    columns = list(frame.columns)
    after = columns.index("payload") + 1
    frame = frame.selectExpr(*columns[:after], text, *columns[after:])
    return frame if registry is None else with_events(frame, endpoints, selection, registry)


def meta_frame(
    spark: SparkSession, endpoints: Endpoints, selection: Selection = _ALL, *, counts: Path | None = None
) -> DataFrame:
    """Return the heads of journals as the store has them, including the markers of purged journals.

    Records that are not replicated yet are not in it. Filters on key, topic and partition limit what is read.
    """
    from headrace.pipeline.tables.store_sources import HeadraceMetaSource

    options = {} if counts is None else {"counts": str(counts)}
    return _load(spark, HeadraceMetaSource, endpoints, selection, options)


def pointer_frame(spark: SparkSession, endpoints: Endpoints, selection: Selection = _ALL) -> DataFrame:
    """Return for each partition its replicated offset, the bounds of its log, and its lag."""
    from headrace.pipeline.tables.store_sources import HeadracePointerSource

    return _load(spark, HeadracePointerSource, endpoints, selection, {})


def _load(
    spark: SparkSession,
    source: type[DataSource],
    endpoints: Endpoints,
    selection: Selection,
    options: dict[str, str],
) -> DataFrame:
    if not isinstance(endpoints, Endpoints):
        raise BadArgument("endpoints", endpoints, 'make them with Endpoints.of("embedded:./data")')
    if not isinstance(selection, Selection):
        raise BadArgument("selection", selection, 'it is a Selection, as in Selection(("accounts",))')
    register(spark, source)
    where = {ENDPOINTS_OPTION: endpoints.pack(), "selection": msgspec.json.encode(selection).decode()}
    frame = spark.read.format(source.name()).options(frame=uuid4().hex, **where, **options).load()
    # Spark pushes filters only if there is one, and the source must also see scans that read everything.
    return frame.where("topic IS NOT NULL")


Fold: TypeAlias = Callable[[Any, StoredEvent], Any]

_STATE_SCHEMA = "topic string, key string, seq_nr bigint, events bigint, is_complete boolean, state string"
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

    if key is not None and not isinstance(key, str):
        raise BadArgument("key", key, "it must be text")
    frame = journal_frame(spark, endpoints, selection)
    if key is not None:
        frame = frame.where(f.col("key") == key)
    events = frame.where(_before(offset, at))
    events = events.repartition("topic", "key").sortWithinPartitions("topic", "key", "seq_nr")
    states = events.drop("payload_text").mapInArrow(StateFold(fold, initial), _STATE_SCHEMA)
    return states if schema is None else states.withColumn("state", f.from_json("state", schema))


def _before(offset: int | Mapping[int, int] | None, at: datetime | None) -> str:
    if offset is not None and at is not None:
        raise BadArgument("at", at, "the state is as of an offset or of a time, not both")
    if at is not None:
        if not isinstance(at, datetime):
            raise BadArgument("at", at, "it must be a time (a datetime)")
        aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return f"timestamp <= timestamp_micros({round(aware.timestamp() * 1_000_000)})"
    if offset is None:
        return "true"
    if not isinstance(offset, Mapping):
        return f"offset <= {_whole(offset)}"
    if not offset:
        return "false"  # no partition is named, so no event counts
    lasts = {_whole(of): _whole(last) for of, last in offset.items()}
    each = " OR ".join(f"(partition = {of} AND offset <= {last})" for of, last in lasts.items())
    return f"offset <= {max(lasts.values())} AND partition IN ({', '.join(map(str, lasts))}) AND ({each})"


def _whole(number: Any) -> int:  # noqa: ANN401 - a column of pandas has integers of numpy
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise BadArgument("offset", number, "it must be a whole number, or one for each partition")
    return operator.index(number)


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
                yield _state_batch(done)
                done = []
        if done:
            yield _state_batch(done)

    def _states(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        journal: tuple[str, str] | None = None
        state: Any = None
        first = last = count = 0
        for batch in batches:
            for row in _event_rows(batch):
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


def _event_rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str, StoredEvent]]:
    for row in rows_in_utc(batch):
        yield row["topic"], row["key"], event_of_columns(row)


def rows_in_utc(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch with their times in UTC.

    Times have the session's zone, and Spark takes names for it that Python does not know, as in GMT+3.
    """
    import pyarrow as pa

    columns = [
        column.cast(pa.timestamp(column.type.unit, "UTC")) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


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


def _state_batch(states: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    from headrace.pipeline.spark.process import batch_of_rows

    types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.bool_(), pa.string())
    names = ("topic", "key", "seq_nr", "events", "is_complete", "state")
    return batch_of_rows(states, pa.schema(list(zip(names, types, strict=True))))
