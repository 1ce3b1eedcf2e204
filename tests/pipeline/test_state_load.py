"""States on Spark: their values as tables, and bulk loads that no owner can write beside."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.owner_exam import Node, owned
from tests.pipeline.test_sql import asked
from tests.pipeline.tier import Tier

from headrace.app import connect
from headrace.cluster import OwnedPartition, ensure_lease_topic
from headrace.config import ClusterSettings, HeadraceSettings
from headrace.errors import BadArgument, Fenced, TimedOut, TransactionFailed
from headrace.keyspace import Keyspace, State, state
from headrace.log import Log, open_log
from headrace.model import NewRecord, TopicPartition, partition_of
from headrace.pipeline import StateGroup, load_keyspace, load_state, state_frame
from headrace.pipeline.jobs.state_load import StateKeyRouter, StateLoad
from headrace.pipeline.tables.sql_views import topic_of_view, view_name
from headrace.pipeline.tables.state_frames import key_type, shown_key
from headrace.serde import BlockingRegistry, avro
from headrace.state import OrderedKeys, StatePartition, StateSpec, StateWrite, open_state_store

GROUP = StateGroup(prefix="shop", cluster_id="cluster", changelogs=("prices", "stock"))
AT = TopicPartition("prices", 0)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    opened = await open_log(f"embedded:{tmp_path}")
    for topic in GROUP.changelogs:
        spec = StateSpec(name=topic, topic=topic, key=str, value=str)
        await opened.admin.create(topic, partitions=1, config=spec.config)
    await ensure_lease_topic(opened, GROUP.prefix, partitions=2)
    yield opened
    await opened.close()


async def test_a_load_fences_the_owner_before_it(log: Log) -> None:
    """Nobody else's write counts once a load has begun; after its release the next owner finds all values."""
    former = await log.transactional(OwnedPartition(GROUP.prefix, (AT,)).transactional_id)
    await former.begin()
    await former.append([NewRecord("prices", b"apple", b"late", partition=0)])
    loading = StateLoad(log, GROUP, AT)
    await loading.take_over(timeout_s=20)
    await loading.write([(b"apple", StateWrite(b"2")), (b"pear", StateWrite(b"3", 60_000))])
    with pytest.raises((Fenced, TransactionFailed)):
        await former.commit()
    await loading.release()
    await loading.close()

    async def open_store(_: Any) -> Any:
        return await open_state_store("memory:")

    spec = StateSpec(name="prices", topic="prices", key=str, value=str)
    partition = await StatePartition.open(log, [spec], 0, open_store=open_store)
    await partition.catch_up()
    assert [item async for item in partition.state(spec).items()] == [("apple", "2"), ("pear", "3")]
    await partition.close()
    await former.close()
    after = Node(log, GROUP.prefix, "b")
    assert (await owned(after.replica(AT, TopicPartition("stock", 0)))).epoch == 2
    await after.stop()


async def test_a_load_waits_for_a_pause(log: Log) -> None:
    """While the owner is alive the load does not begin, writes nothing, and says what to do."""
    group = msgspec.structs.replace(GROUP, lease_s=30.0)
    node = StateLoad(log, group, AT)
    await node.take_over(timeout_s=20)
    loading = StateLoad(log, group, AT)
    with pytest.raises(TimedOut, match="is the keyspace paused"):
        await loading.take_over(timeout_s=0.3)
    await loading.close()
    await node.write([(b"apple", StateWrite(b"1"))])
    await node.release()
    await node.close()
    loading = StateLoad(log, group, AT)
    await loading.take_over(timeout_s=20)
    await loading.close()


def test_keys_are_written_as_the_state_writes_them() -> None:
    """A row's key has the bytes and the partition that the state gives it, whatever its type."""
    id_ = uuid.uuid4()
    at = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    rows: list[tuple[Any, Any, Any]] = [
        (str, "acc-1", "acc-1"),
        (bytes, bytearray(b"\x01\x02"), b"\x01\x02"),
        (int, -7, -7),
        (bool, True, True),
        (uuid.UUID, str(id_), id_),
        (datetime.date, at.date(), at.date()),
        (datetime.datetime, at.replace(tzinfo=None), at),
        (tuple[str, int], ("acc-1", 3), ("acc-1", 3)),
    ]
    for kind, of_spark, key in rows:
        keys = OrderedKeys[Any](kind)
        assert StateKeyRouter(kind, 7)(of_spark) == (keys.encode(key), partition_of(keys.routing_bytes(key), 7))
    assert key_type(tuple[str, uuid.UUID]) == "struct<_1: string, _2: string>"


def test_keys_of_unknown_type_are_shown() -> None:
    """Text is shown as it is, other keys by their parts, and bytes that are no key as nothing."""
    keys: Any = OrderedKeys
    assert shown_key("Ärger".encode()) == "Ärger"
    assert shown_key(keys(tuple[str, int]).encode(("a", 5))) == '["a", 5]'
    assert shown_key(keys(int).encode(5)) == "5"
    assert shown_key(keys(tuple[bytes, bool]).encode((b"\xff", True))) == '["ff", true]'
    assert shown_key(b"\xff\xfe") is None


def test_a_view_shows_the_newest_topic_of_a_state() -> None:
    """A state that was resized has a topic with a number behind its name; a name that fits two topics is refused."""
    topics = ["shop-stock", "shop-stock.2", "shop-stock.10", "shop-prices", "a.b", "a-b"]
    assert topic_of_view("state_shop_stock", topics) == "shop-stock.10"
    assert topic_of_view("state_shop_stock", topics[1:2]) == "shop-stock.2"
    assert topic_of_view("state_shop_stock_2", topics) == "shop-stock.2"
    assert topic_of_view("compact_shop_stock", topics) == "shop-stock"
    assert topic_of_view("state_shop_prices", topics) == "shop-prices"
    assert topic_of_view("state_x", topics) is None
    with pytest.raises(BadArgument, match=r"it could be any of the topics a\.b, a-b"):
        topic_of_view("state_a_b", topics)


@pytest.mark.timeout(300)
def test_a_frame_is_loaded_and_read_back(tier: Tier, topic: str) -> None:
    """Rows become values in the partitions of their keys; the table has the newest of each key until it expires."""
    spec: StateSpec[Any, Any] = StateSpec(name="points", topic=topic, key=tuple[str, int], value=int, partitions=3)
    group = StateGroup(prefix=f"g-{topic}", cluster_id="cluster", changelogs=(topic,))
    spark, endpoints = tier.spark, tier.endpoints
    rows = spark.range(30).selectExpr(
        "named_struct('_1', concat('k', id), '_2', id) AS key",
        "CASE WHEN id != 7 THEN id - 5 END AS value",
        "CASE WHEN id < 3 THEN 1000 END AS ttl_ms",
    )
    assert load_state(rows, endpoints, spec, group).records == 30
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=1)
    frame = state_frame(spark, endpoints, spec, now=later)
    found = {(row.key[0], row.key[1]): (row.value, row.partition) for row in frame.collect()}
    assert {key: value for key, (value, _) in found.items()} == {(f"k{n}", n): n - 5 for n in range(3, 30) if n != 7}
    keys: OrderedKeys[Any] = OrderedKeys(spec.key)
    assert all(partition == partition_of(keys.routing_bytes(key), 3) for key, (_, partition) in found.items())
    statement = f"select key, hex(value_bytes) as value from {view_name('state', topic)} where key like '%k4\"%'"
    assert json.loads(asked(tier, statement, "--json")) == {"key": '["k4", 4]', "value": "FFFFFFFFFFFFFFFF"}
    with pytest.raises(BadArgument, match="comes 2 times"):
        load_state(rows.union(rows.limit(1)), endpoints, spec, group)
    with pytest.raises(BadArgument, match=r"need a column of struct<_1:string,_2:bigint>"):
        load_state(rows.selectExpr("'k' AS key", "value"), endpoints, spec, group)


class Prices(Keyspace, name="prices-by-name", partitions=2, store="memory"):
    """Prices, which come from elsewhere."""

    prices: State[str, int] = state()


@pytest.mark.timeout(300)
def test_a_keyspace_is_loaded_between_a_pause_and_a_resume(tier: Tier) -> None:
    """The values are those that nodes serve afterwards, from the topics that the keyspace has."""
    settings = HeadraceSettings(cluster=ClusterSettings(name=f"c{uuid.uuid4().hex[:8]}", node_id="n"))

    async def served() -> list[int]:
        async with connect(tier.endpoints.log, store=tier.endpoints.store, settings=settings) as hr, hr.node(Prices):
            prices = hr.keyspace(Prices)
            if not await prices.count("prices"):
                await prices.put("prices", "k1", 1)
            return [await prices.get("prices", f"k{n}") for n in range(3)]

    assert asyncio.run(served()) == [None, 1, None]
    rows = tier.spark.range(3).selectExpr("concat('k', id) AS key", "id * 10 AS value")
    with pytest.raises(BadArgument, match="prices"):
        load_keyspace(rows, tier.endpoints, Prices, "nothing", settings=settings)
    assert load_keyspace(rows, tier.endpoints, Prices, "prices", settings=settings).records == 3
    assert asyncio.run(served()) == [0, 10, 20]


@avro(namespace="shop")
@dataclasses.dataclass
class Stock:
    count: int
    place: str = "shelf"


@pytest.mark.timeout(300)
def test_values_of_a_class_are_avro(tier: Tier, topic: str) -> None:
    """A struct is written as the state's class would be, no value deletes, and the state itself reads it."""
    spec: StateSpec[str, Stock] = StateSpec(name="stock", topic=topic, key=str, value=Stock)
    group = StateGroup(prefix=f"g-{topic}", cluster_id="cluster", changelogs=(topic,))
    spark, endpoints = tier.spark, tier.endpoints
    rows = spark.sql("SELECT 'pear' AS key, named_struct('count', 3L) AS value UNION ALL SELECT 'plum', NULL")
    with BlockingRegistry(f"log:{topic}-schemas", log_address=endpoints.log) as registry:
        load_state(rows, endpoints, spec, group, registry=registry)
        found = state_frame(spark, endpoints, spec, registry=registry).collect()
        assert [(row.key, row.value["count"], row.value["place"]) for row in found] == [("pear", 3, "shelf")]
    with pytest.raises(BadArgument, match="are Avro; give the registry"):
        load_state(rows, endpoints, spec, group)
