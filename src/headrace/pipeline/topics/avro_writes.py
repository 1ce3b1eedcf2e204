"""Columns as framed Avro: their schema is found and registered first, then the JVM encodes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument, UnknownSubject
from headrace.pipeline.topics.avro_fitting import fitted
from headrace.pipeline.topics.avro_inferring import inferred_schema
from headrace.serde import (
    BlockingRegistry,
    KeyCodec,
    Schema,
    frame_header,
    latest_version,
    schema_of,
    subject_of,
)
from headrace.serde.subjects import Part

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["Encoding", "encoded"]

_AS_THEY_ARE = ("string", "binary")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a frame becomes bytes. `schema` is a class or a schema, `key` the type of keys as `KeyCodec` has them."""

    registry: BlockingRegistry
    schema: Any = None
    key: Any = None


def encoded(frame: DataFrame, topic: str, encoding: Encoding) -> tuple[DataFrame, bool]:
    """Return the frame with keys and values as bytes, and whether the keys are framed.

    All schemas are found, and checked against the columns, before the first is registered. Raises BadArgument,
    IncompatibleSchema.
    """
    key, value = _kind_of(frame, "key"), _kind_of(frame, "value")
    is_framed = encoding.key is None and key.simpleString() not in _AS_THEY_ARE
    value_schema = _schema_for(value, topic, "value", encoding.registry, encoding.schema)
    values = _body(value, value_schema, "value")
    if not is_framed:
        keys = _canonical(key, encoding.key)
        return _with(frame, keys, _framed(values, topic, "value", value_schema, encoding.registry)), False
    key_schema = _schema_for(key, topic, "key", encoding.registry, None)
    bodies = _body(key, key_schema, "key")
    keys = _framed(bodies, topic, "key", key_schema, encoding.registry)
    return _with(frame, keys, _framed(values, topic, "value", value_schema, encoding.registry)), True


def _kind_of(frame: DataFrame, part: Part) -> DataType:
    if part not in frame.columns:
        raise BadArgument(f"column {part}", None, "it must be there")
    found: DataType = frame.schema[part].dataType
    return found


def _schema_for(kind: DataType, topic: str, part: Part, registry: BlockingRegistry, given: Any) -> Schema:  # noqa: ANN401
    """Return what is written: the schema given, or the newest of the subject, or one that is made of the columns."""
    if given is not None:
        return given if isinstance(given, Schema) else schema_of(given)
    try:
        return registry.run(latest_version(registry.registry, subject_of(topic, part))).schema
    except UnknownSubject:
        return inferred_schema(kind, topic, part)


def _body(kind: DataType, schema: Schema, part: Part) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import to_avro

    return to_avro(fitted(f.col(part), kind, schema.shape, part), schema.text)


def _framed(body: Column, topic: str, part: Part, schema: Schema, registry: BlockingRegistry) -> Column:
    from pyspark.sql import functions as f

    version = registry.run(registry.registry.register(subject_of(topic, part), schema))
    return f.concat(f.lit(frame_header(version.schema_id)), body)


def _canonical(kind: DataType, wanted: Any) -> Column:  # noqa: ANN401
    """Return keys as `KeyCodec` writes them."""
    from pyspark.sql import functions as f

    key = f.col("key")
    if wanted is None:
        return key
    if wanted is int:
        return f.unhex(f.lpad(f.hex(fitted(key, kind, schema_of(int).shape, "key")), 16, "0"))
    if wanted not in (str, bytes, uuid.UUID) and not isinstance(wanted, Schema):
        KeyCodec(wanted)  # refuses what has no canonical form
    schema = wanted if isinstance(wanted, Schema) else schema_of(wanted)
    if wanted in (str, bytes, uuid.UUID):
        return fitted(key, kind, schema.shape, "key")
    return _body(kind, schema, "key")


def _with(frame: DataFrame, keys: Column, values: Column) -> DataFrame:
    return frame.withColumns({"key": keys, "value": values})
