"""Topics of Avro as frames with typed keys and values, by the registry's schemas."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument, UnknownSubject
from headrace.pipeline.topics.avro_columns import decoded, unframed
from headrace.pipeline.topics.avro_readings import Reading, reading_of_topic
from headrace.pipeline.topics.spark_limits import spark_limit
from headrace.serde import BlockingRegistry, KeyCodec, Schema, schema_of, subject_of
from headrace.serde.subjects import Part

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["place", "typed"]

_INT_BYTES = 8


def typed(
    frame: DataFrame,
    topic: str,
    registry: BlockingRegistry,
    *,
    parts: Sequence[Part] = ("key", "value"),
    key: Any = None,  # noqa: ANN401
    subject: str | None = None,
) -> DataFrame:
    """Return the frame, or stream, of a topic with keys and values as their Avro types say.

    Each record is decoded in the JVM with the schema it was written with, and read as the newest version of its
    subject. A topic with one subject, `<topic>-value` or the `subject` named, has values of that type; one with a
    subject for each type of record has a struct with a member for each, all null but one. Keys are typed where
    `<topic>-key` is registered; `key` is the type of keys that are not framed, as `KeyCodec` writes them.

    The schemas are those that are registered now: a later id fails the query, naming it. Raises UnknownSubject, and
    BadArgument for a type that Spark can't hold, such as a record that holds itself; among several it stays bytes.
    """
    columns = {}
    if "value" in parts:
        columns["value"] = _values(topic, registry, subject)
    if "key" in parts:
        columns["key"] = _keys(topic, registry, key)
    return frame.withColumns({name: column for name, column in columns.items() if column is not None})


def _values(topic: str, registry: BlockingRegistry, subject: str | None) -> Column:
    from pyspark.sql import functions as f

    reading = reading_of_topic(registry, topic, subject=subject)
    if reading is None:
        raise UnknownSubject(subject or subject_of(topic), "the registry")
    return decoded(f.col("value"), _checked(reading), place())


def _keys(topic: str, registry: BlockingRegistry, kind: Any) -> Column | None:  # noqa: ANN401
    from pyspark.sql import functions as f

    if kind is not None:
        return _canonical(f.col("key"), topic, kind)
    reading = reading_of_topic(registry, topic, "key")
    return None if reading is None else decoded(f.col("key"), _checked(reading), place())


def _checked(reading: Reading) -> Reading:
    limit = reading.members[0].limit if reading.is_single else None
    if limit is not None:
        raise BadArgument(reading.what, reading.members[0].reader.name, limit)
    return reading


def _canonical(data: Column, topic: str, kind: Any) -> Column:  # noqa: ANN401
    """Return keys as `KeyCodec` writes them."""
    from pyspark.sql import functions as f

    if kind is bytes:
        return data
    if kind in (str, uuid.UUID):
        return data.cast("string")
    if kind is int:
        number = f.conv(f.hex(data), 16, -10).cast("bigint")
        text = f.lit(f"the keys of topic {topic!r} are not all of {_INT_BYTES} bytes: not that at ")
        is_one = f.length(data) == _INT_BYTES
        return f.when(is_one, number).when(data.isNotNull(), f.raise_error(f.concat(text, place())))
    if not isinstance(kind, Schema):
        KeyCodec(kind)  # refuses what has no canonical form
        kind = schema_of(kind)
    if (limit := spark_limit(kind)) is not None:
        raise BadArgument("key", kind.name, limit)
    return unframed(data, kind, kind)


def place() -> Column:
    """Return the text that says where in a topic a record is."""
    from pyspark.sql import functions as f

    return f.concat(f.lit("partition "), f.col("partition"), f.lit(", offset "), f.col("offset"))
