"""DataFrames written to topics as framed Avro, and read by the serde room."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import pytest
from tests.pipeline.test_typed import Everything, KeyV2, OrderV1, OrderV2, Size, everything, framed, put
from tests.pipeline.tier import Tier

from headrace.errors import BadArgument, HeadraceError, IncompatibleSchema
from headrace.model import Record, TopicConfig, TopicPartition, partition_of
from headrace.pipeline import append_frame, topic_frame
from headrace.serde import (
    AvroField,
    BlockingRegistry,
    KeyCodec,
    Schema,
    Serde,
    avro,
    body_of,
    framed_key_partition,
    schema_of,
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def registry() -> Iterator[BlockingRegistry]:
    with BlockingRegistry("memory:") as opened:
        yield opened


def create(tier: Tier, topic: str, partitions: int = 1) -> str:
    tier.on(lambda log, _: log.admin.create(topic, partitions=partitions, config=TopicConfig()))
    return topic


def records_of(tier: Tier, topic: str) -> list[Record]:
    async def read(log: Any, _: Any) -> list[Record]:
        partitions = [TopicPartition(topic, n) for n in range((await log.admin.describe(topic)).partitions)]
        ends = [(at, (await log.bounds(at)).end) for at in partitions]
        return [each for at, end in ends if end async for batch in log.read(at, 0, end) for each in batch.records]

    return tier.on(read)


def values_of(tier: Tier, topic: str, registry: BlockingRegistry, kind: Any) -> list[Any]:
    serde: Serde[Any] = Serde(registry.registry, f"{topic}-value", kind)
    return [registry.run(serde.decode(record.value)) for record in records_of(tier, topic)]


def test_a_frame_is_written_as_python_writes_it(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6, K7, V2: what Spark wrote are the bytes that Python writes for the same objects, of every type."""
    objects = [everything(), everything(home=None, note="n", places=[], by_name={})]
    data = [framed(registry, f"{topic}-value", each) for each in objects]
    put(tier, topic, *((str(nr).encode(), each) for nr, each in enumerate(data)), (b"gone", None))
    copy = create(tier, f"{topic}-copy")
    frame = topic_frame(tier.spark, tier.endpoints, topic, registry=registry).coalesce(1).orderBy("offset")
    done = append_frame(frame.select("key", "value"), tier.endpoints, copy, registry=registry, schema=Everything)
    assert done.records == 3
    found = records_of(tier, copy)
    assert [(record.key, record.value) for record in found] == [(b"0", data[0]), (b"1", data[1]), (b"gone", None)]
    assert values_of(tier, copy, registry, Everything) == [*objects, None]


def test_keys_go_where_python_puts_them(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K7, V5: the partition of a key is that of Python's KeyCodec, also when it is framed: no id decides it."""
    create(tier, topic, partitions=7)
    frame = tier.spark.range(40).selectExpr("named_struct('id', concat('k', id), 'region', 'eu') AS key", "id AS value")
    append_frame(frame, tier.endpoints, topic, registry=registry, key=KeyV2)
    append_frame(frame, tier.endpoints, topic, registry=registry)
    append_frame(frame.selectExpr("value - 20 AS key", "value"), tier.endpoints, topic, registry=registry, key=int)
    codec, numbers = KeyCodec(KeyV2), KeyCodec(int)
    bodies = {codec.encode(KeyV2(f"k{n}", "eu")): n for n in range(40)}
    expected = {numbers.encode(n - 20): numbers.partition(n - 20, 7) for n in range(40)}
    found = records_of(tier, topic)
    plain = [record for record in found if record.key in bodies]
    of_numbers = [record for record in found if record.key in expected]
    with_frame = [record for record in found if record not in plain and record not in of_numbers]
    assert {record.key for record in plain} == bodies.keys()
    assert all(record.partition == partition_of(record.key, 7) for record in plain)
    assert all(record.partition == expected[record.key] for record in of_numbers if record.key)
    assert len(of_numbers) == 40
    keys = [record.key for record in with_frame if record.key is not None]
    assert {body_of(key)[-3:] for key in keys} == {b"\x04eu"}
    assert [record.partition for record in with_frame] == [framed_key_partition(key, 7) for key in keys]
    assert len({record.partition for record in with_frame}) > 1
    read = topic_frame(tier.spark, tier.endpoints, topic)
    assert read.count() == 120


def test_the_newest_version_is_written_and_lacking_fields_have_defaults(
    tier: Tier, topic: str, registry: BlockingRegistry
) -> None:
    """K6: without a schema the subject's newest is written; fields that the frame lacks have their defaults."""
    create(tier, topic)
    framed(registry, f"{topic}-value", OrderV1("x"))
    framed(registry, f"{topic}-value", OrderV2("x"))
    frame = tier.spark.sql("SELECT 'k' AS key, named_struct('id', 'a') AS value")
    append_frame(frame, tier.endpoints, topic, registry=registry)
    assert values_of(tier, topic, registry, OrderV2) == [OrderV2("a", "", Decimal("1.25"))]


def test_a_topic_without_a_schema_gets_one_of_the_columns(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: columns of all types make a schema, registered as TOPIC-value, that Python reads."""
    create(tier, topic)
    value = (
        "named_struct('n', 1, 'long', 2L, 'text', 'x', 'day', DATE'1500-01-02', 'is_it', true,"
        " 'at', TIMESTAMP'2026-01-02 03:04:05.678901Z', 'price', CAST(1.5 AS DECIMAL(9, 2)), 'list', array(1.5D, null),"
        " 'map', map('a', named_struct('b', X'00')), 'none', CAST(NULL AS STRING))"
    )
    frame = tier.spark.sql(f"SELECT 'k' AS key, {value} AS value")
    append_frame(frame, tier.endpoints, topic, registry=registry)
    (version,) = registry.run(registry.registry.versions(f"{topic}-value"))
    (found,) = values_of(tier, topic, registry, version.schema)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    expected = {"n": 1, "long": 2, "text": "x", "day": dt.date(1500, 1, 2), "at": at, "price": Decimal("1.50")}
    assert {**found, "map": None} == {**expected, "list": [1.5, None], "map": None, "none": None, "is_it": True}
    assert dict(found["map"]["a"]) == {"b": b"\x00"}
    assert version.schema.name.startswith("P")
    odd = tier.spark.sql("SELECT 'k' AS key, named_struct('a', INTERVAL '1' YEAR) AS value")
    create(tier, f"{topic}-odd")
    with pytest.raises(BadArgument, match=r"column value\.a is 'interval"):
        append_frame(odd, tier.endpoints, f"{topic}-odd", registry=registry)


def test_what_would_break_or_lose_is_refused_before_anything_is_written(
    tier: Tier, topic: str, registry: BlockingRegistry
) -> None:
    """K6, V4: an incompatible schema, a field too many or too few, a type that is wrong: refused, nothing written."""
    create(tier, topic)
    framed(registry, f"{topic}-value", OrderV2("x"))

    def refused(value: str, schema: Any = None, error: type[HeadraceError] = BadArgument) -> str:
        frame = tier.spark.sql(f"SELECT 'k' AS key, {value} AS value")
        with pytest.raises(error) as found:
            append_frame(frame, tier.endpoints, topic, registry=registry, schema=schema)
        return str(found.value)

    required = Schema(schema_of(OrderV2).text.replace('"name":"id"', '"name":"nr"'))
    assert "field 'nr'" in refused("named_struct('nr', 'a')", required, IncompatibleSchema)
    assert "column value.extra" in refused("named_struct('id', 'a', 'extra', 1)")
    assert "column value.id is None" in refused("named_struct('name', 'a')")
    assert "it must be string" in refused("named_struct('id', 1)")
    assert "fit into decimal(10,2)" in refused("named_struct('id', 'a', 'price', CAST(1 AS DECIMAL(10,3)))")
    assert "from a struct" in refused("'text'")
    assert "only unions of null" in refused("1", Schema(["int", "string"]))
    frame = tier.spark.sql("SELECT 'k' AS key, 'v' AS value")
    with pytest.raises(BadArgument, match="give a registry"):
        append_frame(frame, tier.endpoints, topic, schema=OrderV2)
    assert records_of(tier, topic) == []
    assert len(registry.run(registry.registry.versions(f"{topic}-value"))) == 1


@avro
@dataclasses.dataclass
class Strict:
    id: uuid.UUID
    size: Size
    at_ms: Annotated[dt.datetime, AvroField(type="timestamp-millis")]


def test_values_that_would_be_cut_fail(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: microseconds in a field of milliseconds, a text that is no UUID, an unknown symbol, null: the write fails."""
    create(tier, topic)
    good = {"id": str(uuid.UUID(int=1)), "size": "S", "at_ms": dt.datetime(1500, 1, 1, 0, 0, 0, 1000, dt.UTC)}

    def append(**changes: Any) -> None:
        kinds = "key string, value struct<id:string,size:string,at_ms:timestamp>"
        frame = tier.spark.createDataFrame([("k", {**good, **changes})], kinds)
        append_frame(frame, tier.endpoints, topic, registry=registry, schema=Strict)

    append()
    with pytest.raises(Exception, match=r"value\.at_ms keeps milliseconds, and would lose some of 2026"):
        append(at_ms=dt.datetime(2026, 1, 1, 0, 0, 0, 1001, dt.UTC))
    with pytest.raises(Exception, match=r"value\.id must be a UUID, but is xyz"):
        append(id="xyz")
    with pytest.raises(Exception, match="XXL"):
        append(size="XXL")
    with pytest.raises(Exception, match="null"):
        append(id=None)
    assert values_of(tier, topic, registry, Strict) == [Strict(uuid.UUID(int=1), Size.S, good["at_ms"])]  # type: ignore[arg-type]
