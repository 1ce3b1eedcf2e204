"""With confluent-kafka's own tools, a real broker and a real registry: each reads what the other wrote."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, StringDeserializer, StringSerializer
from tests.serde.classes import Customer, Place, StructOrder, customer

from headrace.config import RegistrySettings
from headrace.errors import BadArgument, Closed, IncompatibleSchema, NotFramed
from headrace.serde import (
    BlockingRegistry,
    GenericRecord,
    KafkaDeserializer,
    KafkaSerializer,
    avro,
    schema_of,
    topic_schemas,
)
from headrace.services import RunningService

pytestmark = pytest.mark.servers


@pytest.fixture
def ours(registry: RunningService) -> Iterator[BlockingRegistry]:
    with BlockingRegistry(registry.url) as opened:
        yield opened


@pytest.fixture
def theirs(registry: RunningService) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture
def topic(kafka: RunningService) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    return name


def produce(kafka: RunningService, topic: str, serializer: Any, values: list[Any]) -> None:
    producer = SerializingProducer(
        {"bootstrap.servers": kafka.address, "key.serializer": StringSerializer(), "value.serializer": serializer}
    )
    for value in values:
        producer.produce(topic, key="k", value=value)
    assert producer.flush(30) == 0


def consume(kafka: RunningService, topic: str, deserializer: Any, count: int) -> list[Any]:
    consumer = DeserializingConsumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "key.deserializer": StringDeserializer(),
            "value.deserializer": deserializer,
        }
    )
    consumer.subscribe([topic])
    try:
        found = [consumer.poll(30) for _ in range(count)]
    finally:
        consumer.close()
    assert None not in found
    return [message.value() for message in found]


def test_their_consumer_reads_what_our_serializer_wrote(
    kafka: RunningService, topic: str, ours: BlockingRegistry, theirs: SchemaRegistryClient
) -> None:
    """V8: through confluent-kafka's own producer, our serializer in it; a tombstone stays one."""
    produce(kafka, topic, KafkaSerializer(ours, Customer), [customer(), None, customer(contact=Place("x"))])
    first, none, third = consume(kafka, topic, AvroDeserializer(theirs), 3)
    assert none is None
    assert (first["name"], first["credit"], first["suit"]) == ("Ann", Decimal("12.50"), "SPADES")
    assert first["seen"] == customer().seen
    assert third["contact"] == {"street": "x", "number": 1}
    assert f"{topic}-value" in theirs.get_subjects()


def test_our_deserializer_reads_what_their_producer_wrote(
    kafka: RunningService, topic: str, ours: BlockingRegistry, theirs: SchemaRegistryClient
) -> None:
    """V8: their serializer with our schema; our deserializer in their consumer gives our classes."""

    def as_dict(value: Customer, _: Any) -> dict[str, Any]:
        return {**dataclasses.asdict(value), "suit": value.suit.name, "contact": 5, "tags": [], "visits": []}

    serializer = AvroSerializer(theirs, schema_of(Customer).text, as_dict)
    produce(kafka, topic, serializer, [customer(), None])
    found = consume(kafka, topic, KafkaDeserializer(ours, Customer), 2)
    assert found == [customer(visits=frozenset()), None]


def test_a_topic_of_a_stranger_is_read_without_classes(
    kafka: RunningService, topic: str, ours: BlockingRegistry, theirs: SchemaRegistryClient
) -> None:
    """V8: schemas that no class of ours describes become generic records."""
    fields = [
        {"name": "n", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "k", "type": [{"type": "enum", "name": "K", "symbols": ["A"]}, "null"]},
    ]
    text = json.dumps({"type": "record", "name": "far.Off", "fields": fields})
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC)
    produce(kafka, topic, AvroSerializer(theirs, text), [{"n": 1, "at": at, "k": "A"}])
    (found,) = consume(kafka, topic, KafkaDeserializer(ours), 1)
    assert found == GenericRecord("far.Off", {"n": 1, "at": at, "k": "A"})


def test_versions_mix_in_one_topic(kafka: RunningService, topic: str, ours: BlockingRegistry) -> None:
    """V3, V8: records of two versions, each read by both classes; the topic's schemas are told for other readers."""

    @avro(name="Order")
    @dataclasses.dataclass
    class One:
        sku: str
        gone: int = 5

    @avro(name="Order")
    @dataclasses.dataclass
    class Two:
        sku: str
        added: str = "new"

    produce(kafka, topic, KafkaSerializer(ours, One), [One("a", 6)])
    produce(kafka, topic, KafkaSerializer(ours, Two), [Two("b", "x")])
    as_two = KafkaDeserializer[Two](ours, Two)
    assert consume(kafka, topic, as_two, 2) == [Two("a"), Two("b", "x")]
    schemas = ours.run(topic_schemas(ours.registry, topic))
    assert set(schemas.values()) == {schema_of(One).text, schema_of(Two).text}

    @avro(name="Order")
    @dataclasses.dataclass
    class Three:
        sku: int

    with pytest.raises(IncompatibleSchema, match="field 'sku': type mismatch against version 2"):
        KafkaSerializer(ours, Three)(Three(1), SerializationContext(topic, MessageField.VALUE))


def test_keys_and_named_subjects(ours: BlockingRegistry, theirs: SchemaRegistryClient) -> None:
    """V8: keys go to <topic>-key; a subject may be named; without either it is refused."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    data = KafkaSerializer(ours, Place)(Place("x"), SerializationContext(name, MessageField.KEY))
    assert AvroDeserializer(theirs)(data, SerializationContext(name, MessageField.KEY)) == {"street": "x", "number": 1}
    assert f"{name}-key" in theirs.get_subjects()
    KafkaSerializer(ours, Place, subject=f"{name}-mine")(Place("x"))
    assert f"{name}-mine" in theirs.get_subjects()
    with pytest.raises(BadArgument, match="subject="):
        KafkaSerializer(ours, Place)(Place("x"))
    with pytest.raises(NotFramed):
        KafkaDeserializer(ours, Place)(b"xyz")


def test_several_classes_are_told_apart(ours: BlockingRegistry) -> None:
    """V8: one deserializer for a topic of many types."""
    decode: KafkaDeserializer[Any] = KafkaDeserializer(ours, Place, StructOrder)
    for value in (Place("x"), StructOrder("a")):
        data = KafkaSerializer(ours, type(value), subject=f"many-{type(value).__name__}")(value)
        assert decode(data) == value
        assert decode(data) == value


def test_a_registry_in_the_log_serves_blocking_code(kafka: RunningService) -> None:
    """V5, V8: the same serializers without a registry server; a closed one says so."""
    settings = RegistrySettings(address=f"log:schemas-{uuid.uuid4().hex[:12]}")
    with BlockingRegistry(settings=settings, log_address=f"kafka://{kafka.address}") as registry:
        data = KafkaSerializer(registry, Place, subject="s")(Place("x"))
        assert KafkaDeserializer(registry, Place)(data) == Place("x")
    with pytest.raises(Closed):
        KafkaDeserializer(registry, Place)(data)
