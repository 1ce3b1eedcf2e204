"""Journals, their heads and the replicated offsets as DataFrames; payloads typed by the registry's schemas."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import msgspec

from headrace.errors import UnknownSubject
from headrace.pipeline.logs.plan import Selection, topics_of
from headrace.pipeline.spark.places import PLACES_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.spark.session import register
from headrace.pipeline.tables.scans import Manners
from headrace.pipeline.topics.avro_read import decoded, is_framed_column, type_name
from headrace.pipeline.topics.avro_schemas import SchemaReading, reading_of_topics
from headrace.serde import BlockingRegistry, subject_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["journal_frame", "meta_frame", "pointer_frame", "reading_of_selection", "with_events", "with_reading"]


def with_events(frame: DataFrame, places: Endpoints, selection: Selection, registry: BlockingRegistry) -> DataFrame:
    """Return a journal's frame with the columns `event_type` and `event`. Raises UnknownSubject.

    Events of a journal are of many types: `event` is a struct with a member for each, called by its short name, all
    null but the one that `event_type` gives the full name of; a type that Spark can't hold, such as a record that
    holds itself, stays bytes. Payloads that are no framed Avro have neither. The types are those that are registered
    now for the selected topics; a later id fails the query, naming it.
    """
    reading = reading_of_selection(places, selection, registry)
    if reading is None:
        topic = selection.topics[0] if selection.topics else "<topic>"
        raise UnknownSubject(f"{subject_of(topic)}, or of a type of {topic}'s records,", "the registry")
    return with_reading(frame, reading)


def reading_of_selection(places: Endpoints, selection: Selection, registry: BlockingRegistry) -> SchemaReading | None:
    """Return how the events of the selected journals are read; None when there is no schema for any."""

    async def topics() -> tuple[str, ...]:
        return tuple(await topics_of(await log_of(places), await store_of(places), selection))

    return reading_of_topics(registry, run(topics()))


def with_reading(frame: DataFrame, reading: SchemaReading) -> DataFrame:
    """Return a journal's frame with the columns `event_type` and `event`."""
    from pyspark.sql import functions as f

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
    places: Endpoints,
    selection: Selection = _ALL,
    *,
    held: Literal["raise", "skip"] = "raise",
    clock_skew: timedelta | None = _AN_HOUR,
    counts: Path | None = None,
    registry: BlockingRegistry | None = None,
) -> DataFrame:
    """Return the living events of whole journals: what the store has and what only the log has, each once.

    Also while replication runs: each journal is given as it was at a place of the log at or after the query was
    planned. Filters on key, topic, partition, seq_nr, offset and timestamp decide what is read at all; those on time
    skip journals whose first and last record lie further than `clock_skew` (None: look at all) from it. A quarantined
    journal fails the query, or is left out with `held="skip"`. `counts` is a folder where every task tells what it
    read; workers must reach it. With a `registry` payloads that are framed Avro are there as `event` too, see
    `with_events`.
    """
    from headrace.pipeline.tables.journal_source import HeadraceJournalSource

    skew_ms = None if clock_skew is None else clock_skew // timedelta(milliseconds=1)
    options = {"manners": msgspec.json.encode(Manners(held, skew_ms)).decode()}
    if counts is not None:
        options["counts"] = str(counts)
    frame = _load(spark, HeadraceJournalSource, places, selection, options)
    text = "CASE WHEN payload_type IN ('text', 'json') THEN CAST(payload AS STRING) END AS payload_text"
    columns = list(frame.columns)
    after = columns.index("payload") + 1
    frame = frame.selectExpr(*columns[:after], text, *columns[after:])
    return frame if registry is None else with_events(frame, places, selection, registry)


def meta_frame(
    spark: SparkSession, places: Endpoints, selection: Selection = _ALL, *, counts: Path | None = None
) -> DataFrame:
    """Return the heads of journals as the store has them, markers of purged ones included.

    What replication has not reached is not in it. Filters on key, topic and partition decide what is read.
    """
    from headrace.pipeline.tables.store_sources import HeadraceMetaSource

    options = {} if counts is None else {"counts": str(counts)}
    return _load(spark, HeadraceMetaSource, places, selection, options)


def pointer_frame(spark: SparkSession, places: Endpoints, selection: Selection = _ALL) -> DataFrame:
    """Return how far each partition is replicated, what its log holds, and how far replication is behind."""
    from headrace.pipeline.tables.store_sources import HeadracePointerSource

    return _load(spark, HeadracePointerSource, places, selection, {})


def _load(
    spark: SparkSession,
    source: type[DataSource],
    places: Endpoints,
    selection: Selection,
    options: dict[str, str],
) -> DataFrame:
    register(spark, source)
    where = {PLACES_OPTION: places.pack(), "selection": msgspec.json.encode(selection).decode()}
    frame = spark.read.format(source.name()).options(frame=uuid4().hex, **where, **options).load()
    # Spark asks a source for its filters only where there is one; a scan that wants everything must be heard as well.
    return frame.where("topic IS NOT NULL")
