"""Payloads of journals as typed columns, by the registry's schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import UnknownSubject
from headrace.pipeline.logs.planning import Selection, topics_of
from headrace.pipeline.spark.opened import log_of, run, store_of
from headrace.pipeline.spark.places import Places
from headrace.pipeline.topics.avro_columns import decoded, is_framed_column, type_name
from headrace.pipeline.topics.avro_readings import Reading, reading_of_topics
from headrace.serde import BlockingRegistry, subject_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["reading_of_selection", "with_events", "with_reading"]


def with_events(frame: DataFrame, places: Places, selection: Selection, registry: BlockingRegistry) -> DataFrame:
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


def reading_of_selection(places: Places, selection: Selection, registry: BlockingRegistry) -> Reading | None:
    """Return how the events of the selected journals are read; None when there is no schema for any."""

    async def topics() -> tuple[str, ...]:
        return tuple(await topics_of(await log_of(places), await store_of(places), selection))

    return reading_of_topics(registry, run(topics()))


def with_reading(frame: DataFrame, reading: Reading) -> DataFrame:
    """Return a journal's frame with the columns `event_type` and `event`."""
    from pyspark.sql import functions as f

    place = f.concat(f.lit("event "), f.col("seq_nr"), f.lit(" of '"), f.col("key"), f.lit("'"))
    is_avro = (f.col("payload_type") == "binary") & is_framed_column(f.col("payload"))
    payload = f.when(is_avro, f.col("payload"))
    columns = {"event_type": type_name(payload, reading), "event": decoded(payload, reading, place)}
    after = frame.columns.index("payload_text") + 1
    return frame.withColumns(columns).select(*frame.columns[:after], *columns, *frame.columns[after:])
