"""Each of the six servers comes up from packages and answers a client that people use."""

from __future__ import annotations

import uuid
import warnings

import pytest
from tests.cql import cql_cluster

from headrace.services import RunningService

pytestmark = pytest.mark.servers


def test_kafka_gives_back_what_was_produced(kafka: RunningService) -> None:
    """A record produced with confluent-kafka is consumed again."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, servers = f"t-{uuid.uuid4().hex}", {"bootstrap.servers": kafka.address}
    admin = AdminClient(servers)  # held: the futures of a client that was collected never finish
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = Producer(servers)
    producer.produce(topic, b"hello", key=b"k")
    assert producer.flush(20) == 0

    consumer = Consumer({**servers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        record = consumer.poll(30)
    finally:
        consumer.close()

    assert record is not None
    assert (record.key(), record.value()) == (b"k", b"hello")


def test_kafka_creates_no_topic_by_itself(kafka: RunningService) -> None:
    """Producing to a topic that was never created fails."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.address})
    name = f"absent-{uuid.uuid4().hex}"
    admin.list_topics(name, timeout=20)

    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        admin.describe_topics(TopicCollection([name]))[name].result(20)


@pytest.mark.timeout(240)
def test_cassandra_selects_what_was_inserted(cassandra: RunningService) -> None:
    """A row written with cassandra-driver is read again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the driver's import uses what newer Pythons deprecate
        cluster = cql_cluster(cassandra.host, cassandra.port)
        session = cluster.connect()
    try:
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (id int PRIMARY KEY, word text)")
        session.execute("INSERT INTO k.t (id, word) VALUES (1, 'hello')")
        assert session.execute("SELECT word FROM k.t WHERE id = 1").one().word == "hello"
        assert session.execute("SELECT release_version FROM system.local").one().release_version == "5.0.9"
    finally:
        cluster.shutdown()


def test_zookeeper_gives_back_a_node(zookeeper: RunningService) -> None:
    """A node created with kazoo is read again."""
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper.address)
    client.start(timeout=20)
    try:
        client.create("/greeting", b"hello")
        assert client.get("/greeting")[0] == b"hello"
    finally:
        client.stop()
        client.close()


@pytest.mark.timeout(180)
def test_registry_registers_a_schema_as_confluents_does(registry: RunningService) -> None:
    """A schema registered with Confluent's client gets an id, under which it is found again."""
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    schema = Schema('{"type":"record","name":"Opened","fields":[{"name":"amount","type":"long"}]}', "AVRO")

    with SchemaRegistryClient({"url": registry.url}) as client:
        known_as = client.register_schema("accounts-value", schema)

        assert '"Opened"' in (client.get_schema(known_as).schema_str or "")
        assert "accounts-value" in client.get_subjects()


def test_postgres_selects_what_was_inserted(postgres: RunningService) -> None:
    """A row written with psycopg is read again, and the version is the pinned one."""
    import psycopg

    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TEMPORARY TABLE t (word text)")
        connection.execute("INSERT INTO t VALUES ('hello')")
        assert connection.execute("SELECT word FROM t").fetchone() == ("hello",)
        assert connection.execute("SHOW server_version").fetchone() == ("17.6",)


def test_mariadb_selects_what_was_inserted(mariadb: RunningService) -> None:
    """A row written with PyMySQL is read again, and the version is the pinned one."""
    import pymysql

    with (
        pymysql.connect(host=mariadb.host, port=mariadb.port, user="root", database="test") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TEMPORARY TABLE t (word varchar(20))")
        cursor.execute("INSERT INTO t VALUES ('hello')")
        cursor.execute("SELECT word, version() FROM t")
        word, version = cursor.fetchone() or ("", "")
    assert word == "hello"
    assert version.startswith("11.4.5")
