"""Topics and journals of Avro as typed columns, decoded in the JVM by the registry's schemas."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from tests.pipeline.tier import Tier

from headrace.errors import BadArgument, UnknownSubject
from headrace.journal import Journal
from headrace.model import Event, NewRecord, TopicConfig
from headrace.pipeline import Selection, compact, journal_frame, topic_frame, typed
from headrace.serde import AvroField, BlockingRegistry, KeyCodec, Level, Payloads, Serde, avro, frame_header

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

SHAPE = "key binary, value binary, partition int, offset bigint"


@avro(name="Order", namespace="shop")
@dataclasses.dataclass
class OrderV1:
    id: str
    label: str = ""
    gone: int = 0


@avro(name="Order", namespace="shop")
@dataclasses.dataclass
class OrderV2:
    id: str
    name: Annotated[str, AvroField(aliases=("label",))] = ""
    price: Annotated[Decimal, AvroField(precision=10, scale=2)] = Decimal("1.25")


class Size(enum.Enum):
    S = 1
    L = 2


@avro(namespace="shop")
@dataclasses.dataclass
class Place:
    street: str
    number: int = 1


@avro(namespace="shop")
@dataclasses.dataclass
class Everything:
    id: uuid.UUID
    size: Size
    day: dt.date
    at: dt.datetime
    at_ms: Annotated[dt.datetime, AvroField(type="timestamp-millis")]
    wakes: dt.time
    price: Annotated[Decimal, AvroField(precision=12, scale=3)]
    photo: bytes
    height: float
    small: Annotated[int, AvroField(type="int")]
    is_new: bool
    home: Place | None
    places: list[Place]
    by_name: dict[str, Place | None]
    note: str | None = None


@avro(namespace="shop")
@dataclasses.dataclass
class Contact:
    how: int | str | Place | None = None


@avro(namespace="shop")
@dataclasses.dataclass
class Node:
    """It holds itself, which no column can."""

    name: str
    next: Node | None = None


@avro(name="OrderKey", namespace="shop")
@dataclasses.dataclass(frozen=True)
class KeyV1:
    id: str


@avro(name="OrderKey", namespace="shop")
@dataclasses.dataclass(frozen=True)
class KeyV2:
    id: str
    region: str = "eu"


def everything(**changes: Any) -> Everything:
    """Return a record whose times are old, so that calendars matter."""
    at = dt.datetime(1500, 2, 3, 4, 5, 6, 789012, tzinfo=dt.UTC)
    home = Place("Main", 5)
    values: dict[str, Any] = {"id": uuid.UUID(int=7), "size": Size.L, "day": at.date(), "at": at}
    values |= {"at_ms": at.replace(microsecond=789000), "wakes": dt.time(7, 30, 0, 5), "price": Decimal("12.500")}
    values |= {"photo": b"\x00\xff", "height": 1.75, "small": -3, "is_new": True, "home": home, "places": [home]}
    return Everything(**{**values, "by_name": {"a": home, "b": None}, **changes})


@pytest.fixture(params=["memory", "folder", "log"])
def schemas(request: pytest.FixtureRequest, tier: Tier, topic: str, tmp_path: Path) -> Iterator[BlockingRegistry]:
    """Return an empty registry of each kind."""
    address = {"memory": "memory:", "folder": f"folder:{tmp_path}", "log": f"log:{topic}-schemas"}[request.param]
    log = tier.endpoints.log if request.param == "log" else None
    with BlockingRegistry(address, log_address=log) as registry:
        yield registry


@pytest.fixture
def registry() -> Iterator[BlockingRegistry]:
    with BlockingRegistry("memory:") as opened:
        yield opened


def framed(registry: BlockingRegistry, subject: str, value: Any) -> bytes:
    data = registry.run(Serde[Any](registry.registry, subject, type(value)).encode(value))
    assert data is not None
    return data


def put(tier: Tier, topic: str, *pairs: tuple[bytes | None, bytes | None], partitions: int = 1) -> None:
    async def write(log: Any, _: Any) -> None:
        if topic not in await log.admin.topics():
            await log.admin.create(topic, partitions=partitions, config=TopicConfig())
        await log.append([NewRecord(topic, key, value) for key, value in pairs])

    tier.on(write)


def test_every_version_is_read_as_the_newest(tier: Tier, topic: str, schemas: BlockingRegistry) -> None:
    """K6, V3: records of several versions come out as the newest: defaults, aliases, removed fields; null as null."""
    old, new = framed(schemas, f"{topic}-value", OrderV1("a", "x", 5)), OrderV2("b", "y", Decimal("2.50"))
    put(tier, topic, (b"1", old), (b"2", framed(schemas, f"{topic}-value", new)), (b"3", None))
    frame = topic_frame(tier.spark, tier.endpoints, topic, registry=schemas)
    rows = {bytes(row.key): row.value for row in frame.collect()}
    assert rows[b"1"].asDict() == {"id": "a", "name": "x", "price": Decimal("1.25")}
    assert rows[b"2"].asDict() == {"id": "b", "name": "y", "price": Decimal("2.50")}
    assert rows[b"3"] is None
    newest = compact(frame).where("value.price > 2").select("value.name").collect()
    assert [row.name for row in newest] == ["y"]
    with pytest.raises(UnknownSubject, match="nobody-value"):
        typed(frame, "nobody", schemas)
    with pytest.raises(BadArgument, match="one topic has one type"):
        topic_frame(tier.spark, tier.endpoints, [topic, topic], registry=schemas)


def test_what_cannot_be_decoded_is_named(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: an id that was not registered at the plan, and bytes that are no Avro, fail the query with id and place."""
    subject = f"{topic}-value"
    put(tier, topic, (b"1", framed(registry, subject, OrderV1("a"))))
    planned = topic_frame(tier.spark, tier.endpoints, topic, registry=registry)
    with BlockingRegistry("memory:") as stale:
        framed(stale, subject, OrderV1("a"))
        later = framed(registry, subject, OrderV2("b"))
        put(tier, topic, (b"2", later), (b"3", b"{}"), (b"4", b"\x01abcdef"))
        assert [row.value.id for row in planned.collect()] == ["a"]  # a table ends where it was planned
        frame = topic_frame(tier.spark, tier.endpoints, topic)
        late = int.from_bytes(later[1:5], "big")
        with pytest.raises(Exception, match=rf"schema id {late} was not known for the values .* partition 0, offset 1"):
            typed(frame, topic, stale).where("offset < 2").collect()
    now = typed(frame, topic, registry)
    assert now.where("value.price = 1.25 and offset < 2").count() == 2
    for offset in (2, 3):
        with pytest.raises(Exception, match=f"not all framed Avro: not the record at partition 0, offset {offset}"):
            now.where(f"offset = {offset}").collect()


def test_a_version_that_the_newest_cannot_read_is_named(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: where a subject promises nothing, records that can't be read as the newest fail alone, with id and field."""
    registry.run(registry.registry.levels.put(f"{topic}-value", Level.NONE))
    put(tier, topic, (b"1", framed(registry, f"{topic}-value", KeyV1("a"))))
    put(tier, topic, (b"2", framed(registry, f"{topic}-value", Place("b"))))
    frame = topic_frame(tier.spark, tier.endpoints, topic, registry=registry)
    assert [row.value.street for row in frame.where("offset = 1").collect()] == ["b"]
    with pytest.raises(Exception, match=r"schema id 1 can't be read as Place is now, .*; at partition 0, offset 0"):
        frame.collect()


def test_types_come_through(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6, V2: enum, UUID, dates of old calendars, times, decimals, records, arrays, maps and unions are typed."""
    value = everything()
    put(tier, topic, (None, framed(registry, f"{topic}-value", value)))
    frame = topic_frame(tier.spark, tier.endpoints, topic, registry=registry)
    row = frame.collect()[0].value.asDict(recursive=True)
    expected = dataclasses.asdict(value)
    expected |= {"id": str(value.id), "size": "L", "at": value.at.replace(tzinfo=None)}
    expected |= {"at_ms": value.at_ms.replace(tzinfo=None)}
    assert {**row, "photo": bytes(row["photo"])} == expected
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema["value"].dataType}
    assert (kinds["price"], kinds["at_ms"], kinds["wakes"]) == ("decimal(12,3)", "timestamp", "time(6)")
    put(
        tier,
        f"{topic}-c",
        *((None, framed(registry, f"{topic}-c-value", Contact(how))) for how in (5, "x", Place("y"))),
    )
    contacts = (
        topic_frame(tier.spark, tier.endpoints, f"{topic}-c", registry=registry).selectExpr("value.how.*").collect()
    )
    assert [row.asDict(recursive=True) for row in contacts] == [
        {"long": 5, "string": None, "Place": None},
        {"long": None, "string": "x", "Place": None},
        {"long": None, "string": None, "Place": {"street": "y", "number": 1}},
    ]


def test_values_need_no_record(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: values that are no record but a text, a number, or one of two records are typed as well."""

    async def write(hint: Any, *values: Any) -> list[tuple[None, bytes | None]]:
        serde: Serde[Any] = Serde(registry.registry, f"{topic}-value", hint)
        return [(None, await serde.encode(value)) for value in values]

    registry.run(registry.registry.levels.put(None, Level.BACKWARD))
    put(tier, topic, *registry.run(write(int, 5)))
    frame = topic_frame(tier.spark, tier.endpoints, topic, registry=registry)
    assert [row.value for row in frame.collect()] == [5]
    put(tier, topic, *registry.run(write(int | Place | KeyV1, Place("x"), KeyV1("y"))))
    rows = topic_frame(tier.spark, tier.endpoints, topic, registry=registry).selectExpr("value.*").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {"long": 5, "Place": None, "OrderKey": None},
        {"long": None, "Place": {"street": "x", "number": 1}, "OrderKey": None},
        {"long": None, "Place": None, "OrderKey": {"id": "y"}},
    ]


def test_framed_keys_are_compared_as_what_they_say(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6, K3: the newest of each key, whatever version of its schema a key was written with."""
    old, new = (framed(registry, f"{topic}-key", key) for key in (KeyV1("a"), KeyV2("a")))
    other = framed(registry, f"{topic}-key", KeyV2("a", "us"))
    values = [framed(registry, f"{topic}-value", OrderV2(name)) for name in "xyz"]
    put(tier, topic, (old, values[0]), (new, values[1]), (other, values[2]))
    frame = topic_frame(tier.spark, tier.endpoints, topic)
    newest = typed(compact(typed(frame, topic, registry, parts=["key"])), topic, registry, parts=["value"])
    found = newest.selectExpr("key.id", "key.region", "value.id AS value").collect()
    assert sorted(tuple(row) for row in found) == [("a", "eu", "y"), ("a", "us", "z")]


def test_keys_without_a_frame_are_typed_on_request(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: keys as KeyCodec writes them, a class, a number, a text, are typed by their type."""
    value = framed(registry, f"{topic}-value", OrderV2("a"))
    numbers = [-5, 7, 1 << 62]
    keys: list[bytes] = [*map(KeyCodec(int).encode, numbers), KeyCodec(KeyV2).encode(KeyV2("k", "eu")), b"text"]
    put(tier, topic, *((key, value) for key in keys))
    frame = topic_frame(tier.spark, tier.endpoints, topic)

    def keys_as(kind: Any, where: str) -> list[Any]:
        return [row.key for row in typed(frame, topic, registry, key=kind).where(where).collect()]

    assert keys_as(int, "offset < 3") == numbers
    assert [row.asDict() for row in keys_as(KeyV2, "offset = 3")] == [{"id": "k", "region": "eu"}]
    assert keys_as(str, "offset = 4") == ["text"]
    assert [bytes(key) for key in keys_as(bytes, "offset = 4")] == [b"text"]
    with pytest.raises(Exception, match="not all of 8 bytes: not that at partition 0, offset 3"):
        keys_as(int, "offset < 4")


def test_events_of_a_journal_have_a_member_for_each_type(tier: Tier, topic: str, registry: BlockingRegistry) -> None:
    """K6: `event` has a member for each type, `event_type` its name; other payloads have neither; loops stay bytes."""
    payloads = Payloads(registry.registry, topic, [OrderV2, Place, Node])
    node = registry.run(payloads.encode(Node("n")))
    avro_payloads = [registry.run(payloads.encode(each)) for each in (OrderV2("a"), Place("x"))]
    mixed = [*avro_payloads, node, {"json": 1}, b"\x07bytes", None]

    async def fill(journal: Journal) -> None:
        await journal.append("k", [Event(nr, each) for nr, each in enumerate(mixed, 1)])

    tier.with_journal(topic, fill, partitions=1)
    frame = journal_frame(tier.spark, tier.endpoints, Selection((topic,)), registry=registry).orderBy("seq_nr")
    rows = frame.select("event_type", "event.Order.id", "event.Place.street", "event.Node", "event").collect()
    assert [row.event_type for row in rows] == ["shop.Order", "shop.Place", "shop.Node", None, None, None]
    assert [(row.id, row.street) for row in rows[:2]] == [("a", None), (None, "x")]
    assert bytes(rows[2].Node) == node
    assert [row.event for row in rows[3:]] == [None, None, None]
    assert [field.name for field in frame.schema["event"].dataType] == ["Node", "Order", "Place"]
    unknown = frame_header(99) + b"?"
    tier.with_journal(topic, lambda journal: journal.append("k", [Event(7, unknown)]))
    late = journal_frame(tier.spark, tier.endpoints, Selection((topic,)), registry=registry)
    with pytest.raises(Exception, match=r"schema id 99 was not known for the events of .* event 7 of 'k'"):
        late.select("event.Place").collect()  # whatever member is asked for
    with pytest.raises(BadArgument, match=r"no type for shop\.Node\.next: the record 'shop.Node' holds itself"):
        typed(frame, topic, registry, subject=f"{topic}-shop.Node")
    with BlockingRegistry("memory:") as empty, pytest.raises(UnknownSubject):
        journal_frame(tier.spark, tier.endpoints, Selection((topic,)), registry=empty)


def test_a_stream_stops_at_a_later_id_and_goes_on_when_made_anew(
    spark: SparkSession, registry: BlockingRegistry, tmp_path: Path
) -> None:
    """K6: a stream is typed too; an id registered later stops it, named, and a new plan goes on from the checkpoint."""
    source = tmp_path / "records"

    def add(value: bytes, offset: int) -> None:
        row = (bytearray(b"k"), bytearray(value), 0, offset)
        spark.createDataFrame([row], SHAPE).coalesce(1).write.mode("append").parquet(str(source))

    def drain() -> list[str]:
        frame = typed(spark.readStream.schema(SHAPE).parquet(str(source)), "t", registry).select("value.id")
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.format("parquet").start(str(tmp_path / "out")).awaitTermination()
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect())

    add(framed(registry, "t-value", OrderV1("a")), 0)
    assert drain() == ["a"]
    with BlockingRegistry("memory:") as ahead:
        for order in (OrderV1("a"), OrderV2("b")):
            later = framed(ahead, "t-value", order)
    add(later, 1)
    with pytest.raises(Exception, match="schema id 2 was not known for the values of topic 't'"):
        drain()
    framed(registry, "t-value", OrderV2("b"))
    assert drain() == ["a", "b"]
