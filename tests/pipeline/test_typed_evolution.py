"""Random schemas and their versions: Spark reads them as Python does."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.serde.strategies import schemas, values_of

from headrace.errors import BadSchema
from headrace.pipeline.topics.avro_read import decoded, reading_of_versions, resolved, spark_limit, unframed
from headrace.serde import Codec, GenericCodec, Schema, Symbol, Version, frame_header, problems_of_reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def plain(value: Any) -> Any:
    """Return what Spark makes of a Python value."""
    match value:
        case Symbol() | uuid.UUID():
            return str(getattr(value, "name", value))
        case Mapping():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case dt.datetime():
            return value.replace(tzinfo=None)
        case bytearray():
            return bytes(value)
        case float():  # a whole number that was read as a float is one to Java, and more than one to Python
            return struct.unpack("f", struct.pack("f", value))[0] if abs(value) < 3e38 else value
        case Decimal():
            return value.normalize()
    return value


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data())
def test_spark_reads_every_version_as_python_does(spark: SparkSession, data: st.DataObject) -> None:
    """K6, V3: random values of random schemas, read as any other schema that can read them, are the same to both."""
    from pyspark.sql import functions as f

    reader = data.draw(schemas().map(Schema).filter(lambda schema: spark_limit(schema) is None))
    drawn = [Schema(data.draw(schemas())) for _ in range(40)]
    writers = [reader, *(each for each in drawn if not problems_of_reading(each.shape, reader.shape))]
    versions = [Version("s", nr, nr, schema) for nr, schema in enumerate([*writers, reader], 1)]
    codec, rows, expected = GenericCodec(reader), [], []
    for version in versions[:-1]:
        writer: Codec[Any] = GenericCodec(version.schema)
        if version.schema_id > 1 and not is_resolvable(version.schema, reader):
            continue
        for value in data.draw(st.lists(values_of(writer.shape), min_size=1, max_size=3)):
            body = writer.encode(value)
            rows.append((len(rows), bytearray(frame_header(version.schema_id) + body)))
            expected.append(plain(codec.decode(body, written_as=version.schema)))
    reading = reading_of_versions("the values", versions, alone="s")
    frame = spark.createDataFrame(rows, "nr bigint, value binary").coalesce(1)
    found = frame.select("nr", decoded(f.col("value"), reading, f.lit("?")).alias("value")).orderBy("nr").collect()
    assert [plain(row.value.asDict(recursive=True)) for row in found] == expected


def record(*fields: dict[str, Any]) -> Schema:
    return Schema({"type": "record", "name": "Thing", "fields": list(fields)})


def test_a_namesake_wins_over_an_alias(spark: SparkSession) -> None:
    """K6, V3: a field whose name is another's alias keeps its value; Avro's Java library alone would move it."""
    from pyspark.sql import functions as f

    writer = record({"name": "b", "type": "int"})
    reader = record(
        {"name": "a", "type": "int", "aliases": ["b"], "default": 7}, {"name": "b", "type": "int", "default": 9}
    )
    both = record({"name": "a", "type": "int"}, {"name": "b", "type": "int"})
    frame = spark.createDataFrame([(bytearray(b"\x0a"), bytearray(b"\x02\x04"))], "one binary, two binary")
    moved, double = unframed(f.col("one"), writer, reader), unframed(f.col("two"), both, record(reader_field(reader)))
    row = frame.select(moved.alias("moved"), double.alias("double")).collect()[0]
    assert (row.moved.asDict(), row.double.asDict()) == ({"a": 7, "b": 5}, {"a": 1})


def reader_field(reader: Schema) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reader.text)["fields"][0]
    return found


def test_the_writer_is_told_in_the_readers_words() -> None:
    """V3: fields and types are called as the reader calls what takes them; what nobody takes keeps its name."""
    size = {"type": "enum", "name": "old.Size", "symbols": ["S"]}
    writer = record({"name": "label", "type": "string", "default": "x"}, {"name": "size", "type": size}, GONE)
    reader = record(
        {"name": "name", "type": "string", "aliases": ["label"]},
        {"name": "size", "type": {**size, "name": "new.Size"}, "default": "S"},
    )
    renamed, plain_reader = resolved(writer, reader)
    assert [field["name"] for field in json.loads(renamed.text)["fields"]] == ["name", "size", "gone"]
    assert '"namespace":"new"' in renamed.text
    assert "default" not in renamed.text
    assert "aliases" not in plain_reader.text
    assert json.loads(plain_reader.text)["fields"][1]["default"] == "S"


def test_two_fields_that_take_one_are_refused() -> None:
    """K6: the JVM can't give one value to two fields, so the version is refused by name."""
    twice = [{"name": name, "type": "string", "aliases": ["label"]} for name in ("a", "b")]
    with pytest.raises(BadSchema, match="another field takes 'label' too"):
        resolved(record({"name": "label", "type": "string"}), record(*twice))


GONE: dict[str, Any] = {"name": "gone", "type": "int"}


def is_resolvable(writer: Schema, reader: Schema) -> bool:
    try:
        resolved(writer, reader)
    except BadSchema:
        return False
    return True
