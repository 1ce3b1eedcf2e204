"""Typed columns from framed Avro: each record is decoded in the JVM, with the schema it was written with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from headrace.pipeline.topics.avro_schemas import SchemaMember, SchemaReading, resolved
from headrace.serde import HEADER_BYTES, RecordShape, Schema, frame_header

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["body_column", "decoded", "is_framed_column", "type_name", "unframed"]

_OPTIONS = {
    "mode": "FAILFAST",
    "datetimeRebaseMode": "CORRECTED",
    "enableStableIdentifiersForUnionType": "true",
    "stableIdentifierPrefixForUnionType": "",
}
_TO_THE_END = 2**31 - 1
_WRAPPED = "headrace_wrapped"


def decoded(data: Column, reading: SchemaReading, place: Column) -> Column:
    """Return framed bytes as typed values; null stays null. `place` is a text that says where a record is.

    The query fails on bytes that are not framed, and on schema ids that were not registered when it was planned; the
    error names the record. A type that Spark can't represent stays bytes.
    """
    from pyspark.sql import functions as f

    if reading.is_single:
        return _member(data, reading.members[0], reading, place)
    members = (_member(data, member, reading, place).alias(member.name) for member in reading.members)
    return f.when(data.isNotNull(), f.struct(*members))


def type_name(data: Column, reading: SchemaReading) -> Column:
    """Return the full name of the type that framed bytes were written with; null for other bytes."""
    from pyspark.sql import functions as f

    names = {schema_id: schema.name for member in reading.members for schema_id, schema in member.writers.items()}
    return _by_id(data, {schema_id: f.lit(name) for schema_id, name in names.items()})


def unframed(body: Column, writer: Schema, reader: Schema) -> Column:
    """Return the value of bytes without a header.

    Spark accepts only records at the top, so other types are wrapped in a record, which has the same encoding.
    """
    from pyspark.sql.avro.functions import from_avro

    writer, reader = resolved(writer, reader)
    if isinstance(reader.shape, RecordShape) and isinstance(writer.shape, RecordShape):
        return from_avro(body, writer.text, {**_OPTIONS, "avroSchema": reader.text})
    options = {**_OPTIONS, "avroSchema": _wrapped(reader)}
    return from_avro(body, _wrapped(writer), options)["it"]


def body_column(data: Column) -> Column:
    """Return the bytes behind the header."""
    from pyspark.sql import functions as f

    return f.substring(data, HEADER_BYTES + 1, _TO_THE_END)


def is_framed_column(data: Column) -> Column:
    """Return a column that is true if bytes begin with the header of framed ones."""
    from pyspark.sql import functions as f

    return (f.length(data) >= HEADER_BYTES) & (f.substring(data, 1, 1) == f.lit(b"\x00"))


def _member(data: Column, member: SchemaMember, reading: SchemaReading, place: Column) -> Column:
    """Return the values of one type. Unreadable bytes fail every member, so that no query overlooks them."""
    from pyspark.sql import functions as f

    is_readable = _header(data).isin([f.lit(frame_header(each)) for each in reading.ids])
    wrong = _wrong(data, reading, place)
    if member.limit is not None:
        kept = _by_id(data, dict.fromkeys(member.writers, data))
        return kept.when(data.isNotNull() & ~is_readable, wrong)
    values = _by_id(data, {schema_id: _value(data, member, schema_id, place) for schema_id in member.writers})
    return values.when(data.isNotNull() & ~is_readable, unframed(wrong, member.reader, member.reader))


def _by_id(data: Column, choices: Mapping[int, Column]) -> Column:
    from pyspark.sql import functions as f

    header = _header(data)
    (first, found), *others = ((header == f.lit(frame_header(each)), column) for each, column in choices.items())
    return reduce(lambda chain, other: chain.when(*other), others, f.when(first, found))


def _value(data: Column, member: SchemaMember, schema_id: int, place: Column) -> Column:
    problem = member.problem_of(schema_id)
    if problem is None:
        return unframed(body_column(data), member.writers[schema_id], member.reader)
    text = f"schema id {schema_id} can't be read as {member.name} is now, {problem}; at "
    return unframed(_failing(text, place), member.reader, member.reader)


def _wrapped(schema: Schema) -> str:
    field = {"name": "it", "type": json.loads(schema.text)}
    return json.dumps({"type": "record", "name": _WRAPPED, "fields": [field]})


def _wrong(data: Column, reading: SchemaReading, place: Column) -> Column:
    """Return a column that raises the error of unreadable bytes."""
    from pyspark.sql import functions as f

    schema_id = f.conv(f.hex(f.substring(data, 2, HEADER_BYTES - 1)), 16, 10)
    late = f" was not known for {reading.what} when this was planned; make the frame again, or name the subject; at "
    is_framed = is_framed_column(data)
    return f.when(is_framed, _failing("schema id ", schema_id, late, place)).otherwise(
        _failing(f"{reading.what} are not all framed Avro: not the record at ", place)
    )


def _failing(*parts: str | Column) -> Column:
    """Return a column that raises an error when it is evaluated. Its type is binary, because casts are limited."""
    from pyspark.sql import functions as f

    text = f.concat(*(f.lit(part) if isinstance(part, str) else part for part in parts))
    return f.raise_error(text).cast("binary")


def _header(data: Column) -> Column:
    from pyspark.sql import functions as f

    return f.substring(data, 1, HEADER_BYTES)
