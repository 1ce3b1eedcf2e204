"""Typed frames against a real broker and a real registry, with confluent-kafka's own serializers on the other side."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from tests.pipeline.test_typed import KeyV2, OrderV1, OrderV2

from headrace.pipeline import Endpoints, append_frame, topic_frame
from headrace.serde import BlockingRegistry, KafkaDeserializer, schema_of
from headrace.services import RunningService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


@pytest.fixture
def theirs(registry: RunningService) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture
def topic(kafka: RunningService) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
    return name


def produce(kafka: RunningService, theirs: SchemaRegistryClient, topic: str, kind: type, pairs: Any) -> None:
    serializers = {
        "key.serializer": AvroSerializer(theirs, schema_of(KeyV2).text),
        "value.serializer": AvroSerializer(theirs, schema_of(kind).text),
    }
    producer = SerializingProducer({"bootstrap.servers": kafka.address, **serializers})
    for key, value in pairs:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0


def consume(kafka: RunningService, topic: str, count: int, **deserializers: Any) -> list[tuple[Any, Any]]:
    settings = {"bootstrap.servers": kafka.address, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    readers = {f"{part}.deserializer": each for part, each in deserializers.items()}
    consumer = DeserializingConsumer({**settings, **readers})
    consumer.subscribe([topic])
    try:
        found = [consumer.poll(30) for _ in range(count)]
    finally:
        consumer.close()
    return [(message.key(), message.value()) for message in found]


def test_spark_and_confluent_read_one_another(
    spark: SparkSession,
    kafka: RunningService,
    registry: RunningService,
    theirs: SchemaRegistryClient,
    topic: str,
    tmp_path: Path,
) -> None:
    """K6, V8: what confluent's serializer wrote in two versions is typed; its deserializer reads what Spark wrote."""
    endpoints = Endpoints.of(f"kafka://{kafka.address}", store=f"embedded:{tmp_path}")
    key = {"id": "k", "region": "eu"}
    produce(kafka, theirs, topic, OrderV1, [(key, {"id": "a", "label": "x", "gone": 5})])
    produce(kafka, theirs, topic, OrderV2, [(key, {"id": "b", "name": "y", "price": Decimal("2.50")}), (key, None)])
    with BlockingRegistry(registry.url) as ours:
        frame = topic_frame(spark, endpoints, topic, registry=ours).coalesce(1).sortWithinPartitions("offset")
        rows = frame.select("key.region", "value").collect()
        assert [(row.region, row.value and (row.value.id, row.value.name, row.value.price)) for row in rows] == [
            ("eu", ("a", "x", Decimal("1.25"))),
            ("eu", ("b", "y", Decimal("2.50"))),
            ("eu", None),
        ]
        copy = f"{topic}-copy"
        admin = AdminClient({"bootstrap.servers": kafka.address})
        admin.create_topics([NewTopic(copy, 2, 1)])[copy].result(20)
        done = append_frame(frame.select("key", "value"), endpoints, copy, registry=ours)
        assert (done.records, len(done.by_partition)) == (3, 1)
        readers = {"key": AvroDeserializer(theirs), "value": AvroDeserializer(theirs)}
        assert consume(kafka, copy, 3, **readers) == [
            (key, {"id": "a", "name": "x", "price": Decimal("1.25")}),
            (key, {"id": "b", "name": "y", "price": Decimal("2.50")}),
            (key, None),
        ]
        own = {"key": KafkaDeserializer[Any](ours), "value": KafkaDeserializer[Any](ours)}
        assert [dict(value) for _, value in consume(kafka, copy, 3, **own)[:1]] == [
            {"id": "a", "name": "x", "price": Decimal("1.25")}
        ]
        subjects = {each for each in theirs.get_subjects() if each.startswith(copy)}
        assert subjects == {f"{copy}-key", f"{copy}-value"}
