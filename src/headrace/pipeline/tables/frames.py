"""DataFrames of journals, of their heads and of replicated offsets, with payloads typed by the registry's schemas.

Log and store are read when the first action on a frame runs. Spark keeps that plan for further actions with the same
filters: make the frame again to see later records.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import msgspec

from headrace.errors import BadArgument, UnknownSubject
from headrace.pipeline.logs.plan import Selection, topics_of
from headrace.pipeline.spark.connectors import provide_avro
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.spark.session import register
from headrace.pipeline.tables.scans import ReadOptions
from headrace.pipeline.topics.avro_read import SchemaReading, decoded, is_framed_column, reading_of_topics, type_name
from headrace.serde import BlockingRegistry, subject_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["journal_frame", "meta_frame", "pointer_frame", "reading_of_selection", "with_events", "with_reading"]


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
