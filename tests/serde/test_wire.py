"""Framing, JSON and keys: the forms in which values leave."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serde.classes import Customer, ModelOrder, Place, StructOrder, Suit, customer

from headrace.errors import BadArgument, BadSchema, NoSchemaFor, NotDecodable, NotEncodable, NotFramed, UnknownSchema
from headrace.model import partition_of
from headrace.serde import (
    Codec,
    Decoder,
    GenericCodec,
    GenericRecord,
    KeyCodec,
    Schema,
    Serde,
    body_of,
    frame_header,
    framed_key_partition,
    is_framed,
    open_registry,
    schema_id_of,
    schema_of,
)


async def test_a_value_is_framed_as_confluent_frames_it() -> None:
    """V1: 0x00, the id in four bytes big-endian, the Avro body; None is null both ways."""
    registry = await open_registry("memory:")
    serde = Serde(registry, "places-value", Place)
    data = await serde.encode(Place("Main", 5))
    version = (await registry.versions("places-value"))[0]
    assert data == b"\x00" + struct.pack(">I", version.schema_id) + Codec(Place).encode(Place("Main", 5))
    assert await serde.decode(data) == Place("Main", 5)
    assert await serde.encode(None) is None
    assert await serde.decode(None) is None
    assert (schema_id_of(data), body_of(data)) == (version.schema_id, b"\x08Main\x0a")


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "at least 5"), (b"\x00\x00\x00\x01", "at least 5"), (b"\x01\x00\x00\x00\x01x", "0x01")]
)
async def test_what_is_not_framed_is_refused(data: bytes, reason: str) -> None:
    """V1: under five bytes, or another magic byte: a typed error with the reason."""
    serde = Serde(await open_registry("memory:"), "s", Place)
    with pytest.raises(NotFramed, match=reason):
        await serde.decode(data)
    with pytest.raises(NotFramed, match=reason):
        serde.decoder(data)
    assert not is_framed(data)


async def test_an_unknown_id_is_named() -> None:
    """V1: by the async decoder after asking the registry, by the ready one at once."""
    serde = Serde(await open_registry("memory:"), "s", Place)
    with pytest.raises(UnknownSchema, match="id 77 in the registry in memory"):
        await serde.decode(frame_header(77) + b"x")
    with pytest.raises(UnknownSchema, match="has not loaded"):
        serde.decoder(frame_header(77) + b"x")
    for bad in (-1, 1 << 32):
        with pytest.raises(BadArgument, match="32 bits"):
            frame_header(bad)


@given(st.integers(0, (1 << 32) - 1), st.binary())
def test_any_id_comes_back_from_its_frame(schema_id: int, body: bytes) -> None:
    """V1: ids of all 32 bits."""
    data = frame_header(schema_id) + body
    assert (schema_id_of(data), body_of(data)) == (schema_id, body)


async def test_one_decoder_reads_many_types() -> None:
    """V1, V2: records become the classes of their names, others become generic."""
    registry = await open_registry("memory:")
    values = [Place("x"), StructOrder("a"), ModelOrder(sku="b")]
    encoded = [await Serde(registry, type(value).__name__, type(value)).encode(value) for value in values]
    decoder: Decoder[Any] = Decoder(registry, [Place, StructOrder])
    found = [await decoder.decode(data) for data in encoded]
    assert found[:2] == values[:2]
    assert isinstance(found[2], GenericRecord)
    assert [decoder(data) for data in encoded] == found


async def test_a_union_of_classes_is_a_subject_too() -> None:
    """V2: `Place | StructOrder` has a schema of its own."""
    serde: Serde[Any] = Serde(await open_registry("memory:"), "s", Place | StructOrder)
    for value in (Place("x"), StructOrder("a")):
        assert await serde.decode(await serde.encode(value)) == value


def test_json_has_a_type_at_every_depth() -> None:
    """V7: records are {"type", "data"}, optional values unwrapped, bytes base64, other branches typed."""
    shown = Codec(Customer).to_json(customer(contact=5, tags=("a",)))
    assert shown["type"] == "shop.Customer"
    data = shown["data"]
    assert data["home"] == {"type": "shop.Place", "data": {"street": "Main", "number": 5}}
    assert data["photo"] == "AP8="
    assert data["contact"] == {"type": "long", "data": 5}
    assert (data["suit"], data["tags"], data["credit"]) == ("SPADES", ["a"], "12.50")
    assert (data["born"], data["wakes"]) == ("1990-02-03", "07:30:00.000005")
    assert data["seen"] == "2026-11-15T12:30:01.123456+00:00"
    assert data["places"] == {"x": {"type": "shop.Place", "data": {"street": "y", "number": 2}}}
    union = {key: Codec(Customer).to_json(customer(contact=key))["data"]["contact"] for key in (None, "t", Suit.HEARTS)}
    assert union == {
        None: None,
        "t": {"type": "string", "data": "t"},
        Suit.HEARTS: {"type": "shop.Suit", "data": "HEARTS"},
    }
    assert Codec(Customer).to_json(customer(contact=Place("x")))["data"]["contact"]["type"] == "shop.Place"
    assert Codec(Customer).to_json(customer(home=None))["data"]["home"] is None
    optional: Codec[int | None] = Codec(int | None)
    assert (optional.to_json(5), optional.to_json(None), optional.from_json(5)) == (5, None, 5)


def test_json_is_read_leniently_and_exactly() -> None:
    """V7: unknown fields are ignored, missing ones take defaults, envelopes may be left out."""
    codec = Codec(StructOrder)
    assert codec.from_json({"type": "StructOrder", "data": {"sku": "a", "colour": "red"}}) == StructOrder("a")
    assert codec.from_json({"sku": "a", "place": {"street": "x"}}) == StructOrder("a", 1, Place("x"))
    full = customer(contact=[1, 2], friends=[customer()])
    assert Codec(Customer).from_json(json.loads(json.dumps(Codec(Customer).to_json(full)))) == full


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"type": "Other", "data": {"sku": "a"}}, "the top"),
        ({}, "sku"),
        ({"sku": 5}, "sku"),
        ({"sku": "a", "count": 1.5}, "count"),
        ({"sku": "a", "count": True}, "count"),
        ({"sku": "a", "place": {"number": 1}}, "place.street"),
        ({"sku": "a", "place": "Main"}, "place"),
        ([], "the top"),
    ],
)
def test_json_that_does_not_fit_names_the_field(value: Any, field: str) -> None:
    """V7: typed errors with the path."""
    with pytest.raises(NotDecodable) as refused:
        Codec(StructOrder).from_json(value)
    assert refused.value.field == field


def test_numbers_that_json_lacks_are_text() -> None:
    """V7: NaN and the infinities survive."""
    codec: Codec[list[float]] = Codec(list[float])
    shown = json.loads(json.dumps(codec.to_json([1.5, math.inf, -math.inf, math.nan]), allow_nan=False))
    assert shown == [1.5, "Infinity", "-Infinity", "NaN"]
    found = codec.from_json(shown)
    assert found[:3] == [1.5, math.inf, -math.inf]
    assert math.isnan(found[3])


def test_a_record_with_fields_type_and_data_is_not_taken_for_an_envelope() -> None:
    """V7: what was rendered comes back, whatever the fields are called."""
    tricky = GenericCodec(
        Schema(
            {
                "type": "record",
                "name": "T",
                "fields": [{"name": "type", "type": "long"}, {"name": "data", "type": "long"}],
            }
        )
    )
    value = GenericRecord("T", {"type": 1, "data": 2})
    assert tricky.from_json(tricky.to_json(value)) == value


@dataclasses.dataclass(frozen=True)
class Compound:
    shop: str
    number: int
    day: dt.date = dt.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("kind", "key", "data"),
    [
        (str, "größe", "größe".encode()),
        (bytes, b"\x00\x01", b"\x00\x01"),
        (int, -2, b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
        (uuid.UUID, uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        (Compound, Compound("a", 1), b"\x02a\x02\xcc\xbf\x02"),
    ],
)
def test_a_key_has_one_form_without_a_schema_id(kind: type, key: Any, data: bytes) -> None:
    """V2: the canonical form decides the partition, as any Kafka client that writes these bytes would."""
    codec: KeyCodec[Any] = KeyCodec(kind)
    assert codec.encode(key) == data
    assert codec.decode(data) == key
    assert codec.partition(key, 12) == partition_of(data, 12)


def test_the_schema_id_is_no_part_of_what_decides_a_partition() -> None:
    """V2: the same key framed with two ids belongs to one partition: that of its body."""
    body = KeyCodec(Compound).encode(Compound("a", 1))
    partitions = {framed_key_partition(frame_header(schema_id) + body, 32) for schema_id in range(100)}
    assert partitions == {KeyCodec(Compound).partition(Compound("a", 1), 32)}
    assert len({partition_of(frame_header(schema_id) + body, 32) for schema_id in range(100)}) > 1


def test_what_has_no_canonical_form_is_no_key() -> None:
    """V2: maps and sets, at any depth, fail when the codec is made; wrong keys are named."""
    inner = dataclasses.make_dataclass("Inner", [("tags", dict[str, int])])
    for kind in (dict[str, int], set[int], list[frozenset[int]], dataclasses.make_dataclass("K", [("inner", inner)])):
        with pytest.raises(NoSchemaFor, match="canonical form"):
            KeyCodec(kind)
    with pytest.raises(NotEncodable, match="it must be int"):
        KeyCodec(int).encode("1")  # type: ignore[arg-type]
    with pytest.raises(NotEncodable, match="too big"):
        KeyCodec(int).encode(1 << 63)
    with pytest.raises(NotDecodable, match="8 bytes, not 1"):
        KeyCodec(int).decode(b"1")
    with pytest.raises(NotDecodable):
        KeyCodec(uuid.UUID).decode(b"nonsense")


@pytest.mark.parametrize(
    ("raw", "where", "reason"),
    [
        ("{", "the top", "no JSON"),
        ('"nothing"', "the top", "there is no type 'nothing'"),
        ('{"name": "x"}', "the top", "a type"),
        ('{"type": "record", "name": "R"}', "R", "'fields' is missing"),
        ('{"type": "record", "name": "a b", "fields": []}', "the top", "is no name"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a-b", "type": "int"}]}', "R", "no name for a field"),
        ('["null", "null"]', "the top", "different types"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "the top", "not different names"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "the top", "no symbol of E"),
        ('{"type": "fixed", "name": "F", "size": -1}', "the top", "size of F"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}',
            "R.a",
            "does not fit",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "R.a",
            "two fields",
        ),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(raw: str, where: str, reason: str) -> None:
    """V4: before anything reaches a registry."""
    with pytest.raises(BadSchema) as refused:
        Schema(raw)
    assert refused.value.where == where
    assert reason in str(refused.value)


_FIXED_DECIMAL = {"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 18}


@pytest.mark.parametrize("text", ["1E+20", "-1e1000", "1E+999999999", "9e99999"])
def test_a_decimal_of_more_digits_than_its_precision_is_refused_at_once(text: str) -> None:
    """V2: a few letters can name a million digits, and writing these takes the whole process as long as it takes."""
    for codec in (Codec(Decimal), GenericCodec(Schema({**_FIXED_DECIMAL, "scale": 0, "precision": 20}))):
        with pytest.raises(NotEncodable, match="more than 20 digits before its point"):
            codec.encode(Decimal(text))


def test_a_zero_of_any_exponent_is_zero() -> None:
    """V2: 0E+999999999 is no long number."""
    codec: Codec[Decimal] = Codec(Decimal)
    for text in ("0E+999999999", "-0e5", "0.00"):
        assert codec.decode(codec.encode(Decimal(text))) == 0


def test_a_decimal_that_takes_too_long_to_read_is_refused() -> None:
    """V1: reading one of a megabyte takes more than a minute, and everybody in the process waits."""
    body = bytes.fromhex("80897a") + b"\x01" * 1_000_000  # its length, and its digits
    with pytest.raises(NotDecodable, match="a decimal has at most 1000 bytes, not 1000000"):
        Codec(Decimal).decode(body)
    huge = Schema({**_FIXED_DECIMAL, "size": 1_000_000})
    with pytest.raises(NotDecodable, match="a decimal has at most 1000 bytes, not 1000000"):
        GenericCodec(huge).decode(b"\x01" * 1_000_000)
    many = Codec(list[Decimal])
    numbers = [Decimal(number) for number in range(1_000)]
    assert many.decode(many.encode(numbers)) == numbers, "a long body of short ones"


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_utc_can_not_show_is_refused_when_it_is_written(text: str) -> None:
    """V2: it is kept in UTC, so that nobody could read it again."""
    codec: Codec[dt.datetime] = Codec(dt.datetime)
    with pytest.raises(NotEncodable, match="years 1 to 9999 of UTC"):
        codec.encode(dt.datetime.fromisoformat(text))
    for edge in (dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)):
        assert codec.decode(codec.encode(edge)) == edge


def test_decimals_keep_their_value() -> None:
    """V2: to the last digit of the largest precision."""
    codec: Codec[Decimal] = Codec(Decimal)
    for text in ("0", "-0.000000000000000001", "99999999999999999999.999999999999999999"):
        assert codec.decode(codec.encode(Decimal(text))) == Decimal(text)
    assert schema_of(Decimal).text == '{"type":"bytes","logicalType":"decimal","precision":38,"scale":18}'


@pytest.mark.parametrize(
    ("hint", "wrong"),
    [(uuid.UUID, 5), (uuid.UUID, []), (int | str, {"type": [], "data": 1}), (int | str, {"type": {}, "data": 1})],
)
def test_json_of_the_wrong_kind_is_not_decodable(hint: Any, wrong: object) -> None:
    """V7: a number is no UUID, and a list names no branch of a union."""
    with pytest.raises(NotDecodable):
        Codec(hint).from_json(wrong)
