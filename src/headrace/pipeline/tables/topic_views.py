"""A topic as SQL sees it: keys and values typed where the registry knows them, as text where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.pipeline.spark.places import Places
from headrace.pipeline.topics.avro_columns import decoded
from headrace.pipeline.topics.avro_readings import reading_of_topic
from headrace.pipeline.topics.topic_frames import compact, topic_frame
from headrace.pipeline.topics.typed_frames import place
from headrace.serde import BlockingRegistry
from headrace.serde.subjects import Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["topic_view"]

_COLUMNS = (
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "key_bytes",
    "value_bytes",
    "map_from_entries(transform(headers, h -> struct(h.key, CAST(h.value AS STRING)))) AS headers",
)


def topic_view(
    spark: SparkSession,
    places: Places,
    topic: str,
    kind: Literal["topic", "compact"],
    registry: BlockingRegistry | None,
) -> DataFrame:
    """Return a topic's records, or the newest of each key; the bytes stand beside keys and values.

    Keys are decoded before the newest of each is looked for, values after; what Spark can't hold stays bytes.
    """
    frame = topic_frame(spark, places, topic).selectExpr("*", "key AS key_bytes")
    frame = _decoded(frame, topic, "key", registry)
    if kind == "compact":
        frame = compact(frame)
    frame = frame.selectExpr("*", "value AS value_bytes")
    return _decoded(frame, topic, "value", registry).selectExpr(*_COLUMNS)


def _decoded(frame: DataFrame, topic: str, part: Part, registry: BlockingRegistry | None) -> DataFrame:
    from pyspark.sql import functions as f

    reading = None if registry is None else reading_of_topic(registry, topic, part)
    data = f.col(part)
    return frame.withColumn(part, data.cast("string") if reading is None else decoded(data, reading, place()))
