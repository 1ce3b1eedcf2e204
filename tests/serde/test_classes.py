"""Python classes to Avro and back: what is inferred, what comes back, what fails and how it says so."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import io
import json
import math
import pickle
import time
import typing
import uuid
from decimal import Decimal
from typing import Annotated, Any

import attrs
import fastavro
import msgspec
import pydantic
import pytest
from tests.serde.classes import Customer, FrozenOrder, ModelOrder, Place, StructOrder, Suit, customer

from headrace.errors import BadSchema, NoSchemaFor, NotDecodable, NotEncodable
from headrace.serde import (
    AvroField,
    Codec,
    GenericCodec,
    GenericRecord,
    Schema,
    Symbol,
    avro,
    problems_of_reading,
    schema_of,
)
from headrace.serde.shapes import has_named_branches
from headrace.serde.size_guard import MAX_DEPTH, skimmer_of


def fields(hint: Any) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(schema_of(hint).text)["fields"]}


def test_the_schema_says_what_the_hints_say() -> None:
    """V2: primitives, logical types, collections, unions, nested records, defaults, aliases and docs are inferred."""
    schema = json.loads(schema_of(Customer).text)
    assert (schema["name"], schema["namespace"], schema["aliases"]) == ("Customer", "shop", ["shop.Client"])
    assert schema["doc"] == "Somebody who buys."
    found = fields(Customer)
    assert found["id"]["type"] == {"type": "string", "logicalType": "uuid"}
    assert found["name"] == {"name": "name", "doc": "as on the door", "aliases": ["label"], "type": "string"}
    assert found["born"]["type"] == {"type": "int", "logicalType": "date"}
    assert found["seen"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert found["wakes"]["type"] == {"type": "long", "logicalType": "time-micros"}
    assert found["credit"]["type"] == {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    assert (found["photo"]["type"], found["height"]["type"], found["is_vip"]["type"]) == ("bytes", "double", "boolean")
    assert found["suit"]["type"]["symbols"] == ["UNKNOWN", "HEARTS", "SPADES"]
    assert found["suit"]["type"]["default"] == "UNKNOWN"
    assert found["home"]["type"][0] == "null"
    assert "default" not in found["home"]
    assert found["places"]["default"] == {"x": {"street": "y", "number": 2}}
    assert found["contact"]["type"][:2] == ["long", "null"]
    assert found["contact"]["default"] == 5
    assert found["friends"]["type"]["items"] == "shop.Customer"
    assert found["small"]["type"] == "int"


def test_structs_and_models_are_told_alike() -> None:
    """V2: a msgspec Struct and a pydantic model give the schema that a dataclass of the same fields gives."""
    assert fields(StructOrder)["place"]["default"] is None
    assert fields(StructOrder)["count"] == {"name": "count", "type": "long", "default": 1}
    assert fields(ModelOrder)["sku"] == {"name": "sku", "doc": "what is bought", "type": "string"}
    assert fields(ModelOrder)["places"]["default"] == []
    assert json.loads(schema_of(FrozenOrder).text).get("doc") is None


@pytest.mark.parametrize(
    "value",
    [
        customer(),
        customer(home=None, contact=None, tags=("a", "b"), places={}, visits=frozenset()),
        *[customer(contact=contact) for contact in ("text", -1, Place("x"), Suit.HEARTS, [1, 2])],
        customer(friends=[customer(name="Bob", friends=[customer()])]),
        StructOrder("a", 3, Place("x")),
        ModelOrder(sku="a", places=[Place("x")]),
        FrozenOrder("a", 2),
    ],
)
def test_what_was_written_comes_back(value: Any) -> None:
    """V2: dataclasses, Structs and models round-trip, nested, recursive and in unions."""
    codec: Codec[Any] = Codec(type(value))
    data = codec.encode(value)
    again = codec.decode(data)
    assert again == value
    assert type(again) is type(value)


def test_another_library_reads_the_bytes_by_the_schema_alone() -> None:
    """V2: the bytes are plain Avro."""
    codec = Codec(Customer)
    schema = fastavro.parse_schema(json.loads(codec.schema.text))
    datum = fastavro.schemaless_reader(io.BytesIO(codec.encode(customer())), schema)
    assert (datum["name"], datum["suit"], datum["home"]) == ("Ann", "SPADES", {"street": "Main", "number": 5})


def test_unknown_types_are_generic_records() -> None:
    """V2: without a class a record is a mapping that knows its name, and is written again byte for byte."""
    codec = Codec(Customer)
    generic = GenericCodec(codec.schema)
    for value in (customer(), customer(contact=Suit.HEARTS), customer(contact=Place("x")), customer(contact="SPADES")):
        data = codec.encode(value)
        found = generic.decode(data)
        assert isinstance(found, GenericRecord)
        assert (found.name, found["home"].name, found["name"]) == ("shop.Customer", "shop.Place", "Ann")
        assert generic.encode(found) == data
    changed = generic.encode(found.with_fields(name="Eve"))
    assert codec.decode(changed).name == "Eve"
    assert isinstance(found["suit"], Symbol)
    assert pickle.loads(pickle.dumps(found["suit"])).enum == "shop.Suit"


def test_a_generic_record_may_leave_out_what_has_a_default() -> None:
    """V2: and nothing else; fields that are not there are named."""
    generic = GenericCodec(schema_of(StructOrder))
    assert Codec(StructOrder).decode(generic.encode({"sku": "a"})) == StructOrder("a")
    with pytest.raises(NotEncodable, match="sku"):
        generic.encode({"count": 1})
    with pytest.raises(NotEncodable, match="no field 'colour'"):
        generic.encode({"sku": "a", "colour": 1})


class NotForAvro:
    """A class of no known kind."""


class Numbers(enum.Enum):
    """Its members have names that Avro can't spell."""

    ÄPFEL = 1


SameName = dataclasses.make_dataclass("Place", [("x", int)])


def bad_class(kind: str, hint: Any) -> type:
    """Return a class whose field `odd` has the hint."""
    if kind == "dataclass":
        return dataclasses.make_dataclass("Bad", [("fine", int), ("odd", hint)])
    if kind == "struct":
        return msgspec.defstruct("Bad", [("fine", int), ("odd", hint)])
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return pydantic.create_model("Bad", __config__=config, fine=(int, ...), odd=(hint, ...))


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (Any, "Avro has nothing for"),
        (NotForAvro, "NotForAvro"),
        (list, "name the type of its items"),
        (tuple[int, str], "Avro has nothing for"),
        (dict[int, str], "keys of an Avro map are text"),
        (list[int] | list[str], "two branches that are array"),
        (uuid.UUID | str, "two branches that are string"),
        (Numbers, "can't name"),
        (complex, "complex"),
        (dt.timedelta, "timedelta"),
        (typing.TypeVar("T"), "T"),  # type: ignore[misc]
        (Annotated[int, AvroField(type="string")], "no Avro type for int"),
        (Annotated[Decimal, AvroField(precision=2, scale=3)], "make no decimal"),
        (dict[str, Place] | SameName | Place, "two classes are named 'Place'"),
    ],
)
@pytest.mark.parametrize("kind", ["dataclass", "struct", "model"])
def test_what_can_not_be_inferred_fails_at_the_definition(hint: Any, reason: str, kind: str) -> None:
    """V2: naming class and field, for each kind of class."""
    with pytest.raises(NoSchemaFor) as refused:
        avro(bad_class(kind, hint))
    assert (refused.value.owner, refused.value.field) == ("Bad", "odd")
    assert reason in str(refused.value)


def test_names_that_do_not_resolve_are_named() -> None:
    """V2: a hint that refers to nothing says which field has it."""
    with pytest.raises(NoSchemaFor, match=r"field 'later' of .*Early.*Missing"):

        @avro
        @dataclasses.dataclass
        class Early:
            now: int
            later: Missing  # type: ignore[name-defined]  # noqa: F821


def test_classes_inside_functions_see_each_other() -> None:
    """V2: hints are resolved where the class is defined."""

    @dataclasses.dataclass
    class Inner:
        x: int

    @avro
    @dataclasses.dataclass
    class Outer:
        inner: Inner
        next: Outer | None = None

    value = Outer(Inner(1), Outer(Inner(2)))
    assert Codec(Outer).decode(Codec(Outer).encode(value)) == value


def test_a_default_that_changes_is_refused() -> None:
    """V2: a schema must be the same in every process, so its defaults must be too."""
    with pytest.raises(NoSchemaFor, match="'id' of Fresh: its default differs at each call"):
        avro(dataclasses.make_dataclass("Fresh", [("id", uuid.UUID, dataclasses.field(default_factory=uuid.uuid4))]))
    given = Annotated[uuid.UUID, AvroField(default=uuid.UUID(int=0))]
    fresh = dataclasses.make_dataclass("Fresh2", [("id", given, dataclasses.field(default_factory=uuid.uuid4))])
    assert fields(fresh)["id"]["default"] == str(uuid.UUID(int=0))


def test_a_default_must_be_a_value_of_its_field() -> None:
    """V2: one that is not fails at the definition."""
    with pytest.raises(NoSchemaFor, match="'count' of Wrong: its default can't be written"):
        avro(dataclasses.make_dataclass("Wrong", [("count", int, "three")]))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"height": "tall"}, "height"),
        ({"height": (1 << 60) + 1}, "height"),
        ({"height": 1 << 5000}, "height"),
        ({"is_vip": "yes"}, "is_vip"),
        ({"small": 1 << 40}, "small"),
        ({"small": 1.5}, "small"),
        ({"seen": dt.datetime(2026, 1, 1)}, "seen"),  # noqa: DTZ001
        ({"born": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, "born"),
        ({"credit": Decimal("1.234")}, "credit"),
        ({"credit": Decimal("NaN")}, "credit"),
        ({"credit": Decimal("12345678901234")}, "credit"),
        ({"id": "not a uuid"}, "id"),
        ({"suit": "SPADES"}, "suit"),
        ({"home": Place(5)}, "home.street"),  # type: ignore[arg-type]
        ({"places": {"x": Place("y", 1.5)}}, "places.['x'].number"),  # type: ignore[arg-type]
        ({"contact": 1.5}, "contact"),
        ({"contact": [1, "2"]}, "contact.[1]"),
        ({"tags": "text"}, "tags"),
        ({"visits": {1 << 63}}, "visits.[0]"),
        ({"home": customer()}, "home"),
        ({"friends": [customer(), customer(name=None)]}, "friends.[1].name"),
    ],
)
def test_a_value_that_does_not_fit_is_named(changes: dict[str, Any], field: str) -> None:
    """V2: nothing is rounded, cut or guessed on its way out; the error names the innermost field."""
    with pytest.raises(NotEncodable) as refused:
        Codec(Customer).encode(customer(**changes))
    assert refused.value.field == field
    assert refused.value.schema == "shop.Customer"


def test_a_whole_number_in_a_field_of_fractions_is_not_rounded() -> None:
    """V2: 16 777 217 has no form in 32 bits, and 2^53 + 1 none in 64."""
    kind = dataclasses.make_dataclass(
        "Sizes", [("single", Annotated[float, AvroField(type="float")]), ("double", float), ("either", float | None)]
    )
    codec = Codec(kind)
    for fitting in (kind(1 << 24, 1 << 53, 3), kind(-(1 << 40), 0, 1 << 60), kind(1.5, 2.5, None)):
        assert codec.decode(codec.encode(fitting)) == fitting
    for field in ("single", "double", "either"):
        values = {"single": 0, "double": 0, "either": 0, field: (1 << 53) + 1}
        with pytest.raises(NotEncodable, match=f"'{field}': 9007199254740993 would be rounded"):
            codec.encode(kind(**values))
    with pytest.raises(NotEncodable, match="'single': 16777217 would be rounded to 32 bits"):
        codec.encode(kind((1 << 24) + 1, 0, 0))


def test_a_class_checks_what_comes_in() -> None:
    """V2: __post_init__ and pydantic's validation run on what was read, and their complaint is ours."""
    written = Codec(dataclasses.make_dataclass("FrozenOrder", [("sku", str), ("count", int)]))
    data = written.encode(written.decode(b"\x02a\x01"))
    with pytest.raises(NotDecodable, match="count is negative"):
        Codec(FrozenOrder).decode(data)
    model = Codec(dataclasses.make_dataclass("ModelOrder", [("sku", str), ("count", int)]))
    with pytest.raises(NotDecodable, match="greater than or equal to 0"):
        Codec(ModelOrder).decode(data, written_as=model.schema)


def test_damaged_bodies_are_refused() -> None:
    """V1: bytes that end too early, or too late, or are something else, raise a typed error and nothing else."""
    codec = Codec(Customer)
    data = codec.encode(customer())
    for cut in range(len(data)):
        with pytest.raises(NotDecodable):
            codec.decode(data[:cut])
    with pytest.raises(NotDecodable, match="1 bytes follow its end"):
        codec.decode(data + b"\x00")


def test_schemas_and_codecs_need_the_extra_only_when_used() -> None:
    """V2: importing the room imports no driver."""
    import subprocess
    import sys

    probe = (
        "import sys, headrace.serde; sys.exit(any(m in sys.modules for m in ('fastavro', 'confluent_kafka', 'httpx')))"
    )
    assert subprocess.run([sys.executable, "-c", probe], timeout=60, check=False).returncode == 0


class Word(enum.StrEnum):
    HELLO = "hello"


class OldWord(str, enum.Enum):  # noqa: UP042 - what people have from before StrEnum
    HELLO = "hello"
    lower = "x"  # a name that str has, too


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize("kind", [Word, OldWord, Level])
def test_enums_that_are_text_or_numbers_come_back(kind: type[enum.Enum]) -> None:
    """FA1: StrEnum, class X(str, Enum) and IntEnum come back as members, as fields, in unions, and as defaults."""
    first = next(iter(kind))

    @dataclasses.dataclass
    class Said:
        word: kind  # type: ignore[valid-type]
        either: int | str | kind | None  # type: ignore[valid-type]
        usual: kind = first  # type: ignore[valid-type]

    codec: Codec[Any] = Codec(avro(Said))
    for member in kind:
        for either in (member, "text", 5, None):
            value = Said(member, either)
            found = codec.decode(codec.encode(value))
            assert found == value
            assert (type(found.word), type(found.either), type(found.usual)) == (kind, type(either), kind)
            assert codec.from_json(codec.to_json(value)) == value


@dataclasses.dataclass
class Created:
    name: str


BillingCreated = avro(namespace="billing")(dataclasses.make_dataclass("Created", [("name", str)]))
ShippingCreated = avro(namespace="shipping")(dataclasses.make_dataclass("Created", [("name", str)]))


@pytest.mark.parametrize("kinds", [(BillingCreated, ShippingCreated), (ShippingCreated, BillingCreated)])
def test_classes_with_one_short_name_are_told_apart_in_unions(kinds: tuple[type, type]) -> None:
    """FA2: the full name decides which class a value becomes, in whatever order the union has them."""
    codec: Codec[Any] = Codec(typing.Union[kinds])  # noqa: UP007 - made of a variable
    for kind in kinds:
        value = kind("x")
        assert type(codec.decode(codec.encode(value))) is kind
        assert type(codec.from_json(codec.to_json(value))) is kind


def test_a_namesake_that_nobody_knows_is_not_taken_for_another() -> None:
    """FA2: a branch that the reader lacks, or that two of its classes could be, is an error and not a wrong class."""
    both: Codec[Any] = Codec(BillingCreated | ShippingCreated)
    for reader in (Codec(BillingCreated), Codec(BillingCreated | None)):
        assert reader.decode(both.encode(BillingCreated("x")), written_as=both.schema) == BillingCreated("x")
        with pytest.raises(NotDecodable, match=r"shipping\.Created"):
            reader.decode(both.encode(ShippingCreated("x")), written_as=both.schema)
        assert problems_of_reading(both.shape, reader.shape)
    plain: Codec[Any] = Codec(Created)
    with pytest.raises(NotDecodable, match=r"billing\.Created or shipping\.Created"):
        both.decode(plain.encode(Created("x")), written_as=plain.schema)
    assert problems_of_reading(plain.shape, both.shape)
    only: Codec[Any] = Codec(BillingCreated | None)
    assert only.decode(plain.encode(Created("x")), written_as=plain.schema) == BillingCreated("x")


def test_an_alias_is_closer_than_a_short_name() -> None:
    """FA2: a type that was moved is found by its alias, although another one has its short name."""
    moved = avro(namespace="new", aliases=("old.Created",))(dataclasses.make_dataclass("Made", [("name", str)]))
    old = avro(namespace="old")(dataclasses.make_dataclass("Created", [("name", str)]))
    codec: Codec[Any] = Codec(BillingCreated | moved)
    written: Codec[Any] = Codec(old)
    assert type(codec.decode(written.encode(old("x")), written_as=written.schema)) is moved


def test_a_class_without_a_namespace_can_not_be_named_inside_of_one() -> None:
    """A class that stands outside and inside of a namespace is refused where it is defined, with what to do."""
    inner = avro(namespace="deep")(dataclasses.make_dataclass("Inner", [("suit", Suit)]))
    outer = dataclasses.make_dataclass("Outer", [("suit", Suit), ("inner", inner)])
    with pytest.raises(NoSchemaFor, match=r"Suit has no namespace.*@avro\(namespace=…\)"):
        avro(outer)


@avro
@dataclasses.dataclass
class Link:
    next: Link | None = None


def chain(length: int) -> Link:
    """Return so many links, one in the other."""
    link = Link()
    for _ in range(length - 1):
        link = Link(link)
    return link


def test_what_is_nested_too_deep_is_refused() -> None:
    """A chain at the limit comes back; one beyond is refused when it is written, whatever its length."""
    codec = Codec(Link)
    assert codec.decode(codec.encode(chain(MAX_DEPTH))) == chain(MAX_DEPTH)
    for length in (MAX_DEPTH + 1, 5000):
        with pytest.raises(NotEncodable, match="nested too deep"):
            codec.encode(chain(length))
    with pytest.raises(NotEncodable, match="nested too deep"):
        codec.to_json(chain(5000))
    deep: Any = None
    for _ in range(5000):
        deep = {"next": deep}
    with pytest.raises(NotDecodable, match="nested too deep"):
        codec.from_json(deep)


@pytest.mark.parametrize("length", [500, 5_000, 1_000_000])
def test_a_body_that_is_nested_too_deep_does_not_end_the_process(length: int) -> None:
    """The Avro library is written in C and would run out of its stack."""
    with pytest.raises(NotDecodable, match="nested too deep"):
        Codec(Link).decode(b"\x02" * length + b"\x00")


@dataclasses.dataclass
class Branch:
    name: str
    twigs: list[Branch] = dataclasses.field(default_factory=list)
    next: Branch | None = None


_DEEP = b"\x00\x02" * 200_000
_ODD_BODIES = {
    "a length of more than 64 bits": b"\x80" * 9 + b"\x02\x02" + _DEEP,
    "a length of more than 10 bytes": b"\x80" * 10 + b"\x01\x02" + _DEEP,
    "a branch before the first": b"\x00\x00\x01" + b"\x00\x00\x02" * 200_000,
    "the least number of items": b"\x00" + b"\xff" * 9 + b"\x01\x00\x80\x89\x7a" + _DEEP,
}


@pytest.mark.parametrize("body", _ODD_BODIES.values(), ids=_ODD_BODIES.keys())
def test_an_odd_number_before_what_is_nested_too_deep_does_not_end_the_process(body: bytes) -> None:
    """A number that the Avro library reads in a way of its own is refused: what follows it would not be looked at."""
    with pytest.raises(NotDecodable):
        Codec(Branch).decode(body)


def test_a_body_that_never_ends_a_number_is_refused_at_once() -> None:
    """Half a megabyte of it took many seconds."""
    started = time.process_time()
    with pytest.raises(NotDecodable, match="more than 64 bits"):
        Codec(Branch).decode(b"\xff" * 500_000)
    assert time.process_time() - started < 2


def test_numbers_of_64_bits_are_read() -> None:
    """The greatest and the least come back, also behind what is looked over."""

    @dataclasses.dataclass
    class Numbered:
        of: Branch
        n: int

    codec = Codec(Numbered)
    for n in (-(2**63), 2**63 - 1, -1, 0):
        value = Numbered(Branch("a", [Branch("b")], Branch("c")), n)
        assert codec.decode(codec.encode(value)) == value


def test_a_record_that_is_used_often_is_looked_at_once() -> None:
    """30 records, each used twice by the next: a thousand million ways through the schema."""
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}]}
    for nr in range(1, 31):
        fields_ = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{nr - 1}"}]
        schema = {"type": "record", "name": f"R{nr}", "fields": fields_}

    assert skimmer_of(Schema(schema).shape, max_depth=MAX_DEPTH) is None
    assert not has_named_branches(Schema(schema).shape)


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    """As text and as values."""
    schema: Any = "long"
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    for source in (schema, "[" * 100_000):
        with pytest.raises(BadSchema, match="nested too deep"):
            Schema(source)


@dataclasses.dataclass
class Empty:
    pass


@pytest.mark.parametrize("hint", [list[None], list[Empty], dict[str, list[None]] | list[Empty]])
def test_a_few_bytes_can_not_stand_for_millions_of_items(hint: Any) -> None:
    """Items that take no bytes are counted before they are made."""
    codec: Codec[Any] = Codec(hint)
    count = io.BytesIO()
    fastavro.schemaless_writer(count, fastavro.parse_schema("long"), 1 << 40)
    union = b"" if typing.get_origin(hint) is list else b"\x02"
    with pytest.raises(NotDecodable, match="100000 items that take no bytes"):
        codec.decode(union + count.getvalue() + b"\x00")
    value = [None] * 1000 if hint == list[None] else [Empty()] * 1000
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(NotEncodable, match="100000 items that take no bytes"):
        codec.encode(value * 101)


@pytest.mark.parametrize("kind", ["timestamp-millis", "local-timestamp-millis", "time-millis"])
def test_microseconds_are_not_cut(kind: str) -> None:
    """Where milliseconds are kept, a finer time is refused."""
    moment: Any = dt.datetime(2026, 1, 1, 12, 0, 0, 5000, tzinfo=dt.UTC)
    if kind == "time-millis":
        moment = moment.time()
    elif kind.startswith("local"):
        moment = moment.replace(tzinfo=None)
    codec: Codec[Any] = Codec(Annotated[type(moment), AvroField(type=kind)])
    assert codec.decode(codec.encode(moment)) == moment
    with pytest.raises(NotEncodable, match="only milliseconds are kept"):
        codec.encode(moment.replace(microsecond=5001))


FIXED = {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 6, "scale": 2}


@pytest.mark.parametrize("hint", [Annotated[Decimal, AvroField(precision=6, scale=2)], Schema(FIXED)])
def test_a_decimal_has_no_more_digits_than_its_precision(hint: Any) -> None:
    """By its value: 1E+4 has five digits, a fixed would be cut to its bytes, and 1E+999999999 would take forever."""
    codec: Codec[Any] = GenericCodec(hint) if isinstance(hint, Schema) else Codec(hint)
    for held in ("9999.99", "-9999.99", "1E+3", "0E+999999999", "0E-999999999", "-0.000"):
        assert codec.decode(codec.encode(Decimal(held))) == Decimal(held)
    for wrong in ("1E+4", "-10000", "1E+12", "-1E+12", "1E+999999999", "NaN", "0.001"):
        with pytest.raises(NotEncodable):
            codec.encode(Decimal(wrong))
    with pytest.raises(NotEncodable, match="more than 4 digits before its point"):
        codec.encode(codec.from_json("-1E+999999999"))


def test_a_decimal_is_read_as_it_was_written() -> None:
    """With all digits that another program wrote, be it more than the precision; but not with a million of them."""
    wide, narrow = ({"type": "bytes", "logicalType": "decimal", "precision": p, "scale": 2} for p in (9, 4))
    written = GenericCodec(Schema(wide)).encode(Decimal("-1234567.89"))
    assert GenericCodec(Schema(narrow)).decode(written) == Decimal("-1234567.89")
    longest = GenericCodec(Schema({**wide, "precision": 9999})).encode(Decimal("9" * 2398 + ".99"))
    assert GenericCodec(Schema(wide)).decode(longest) == Decimal("9" * 2398 + ".99")

    started = time.process_time()
    with pytest.raises(NotDecodable, match="at most 1000 bytes"):
        GenericCodec(Schema(wide)).decode(Codec(bytes).encode(b"\x7f" * 1_000_000))
    assert time.process_time() - started < 2


def test_a_number_that_does_not_fit_into_32_bits_is_refused() -> None:
    """A finite number is not written as an infinite one."""
    codec: Codec[float] = Codec(Annotated[float, AvroField(type="float")])
    for held in (3.4028234663852886e38, math.inf, -math.inf, 0.5):
        assert codec.decode(codec.encode(held)) == held
    with pytest.raises(NotEncodable, match="too large for 32 bits"):
        codec.encode(-3.5e38)


@pytest.mark.parametrize("kind", ["timestamp-millis", "timestamp-micros"])
def test_a_time_that_nobody_could_read_is_refused(kind: str) -> None:
    """The first and the last hours of Python's calendar lie outside of it in UTC, in some time zones."""
    codec: Codec[Any] = Codec(Annotated[dt.datetime, AvroField(type=kind)])
    east, west = (dt.timezone(dt.timedelta(hours=hours)) for hours in (5, -5))
    first, last = dt.datetime(1, 1, 1, tzinfo=west), dt.datetime(9999, 12, 31, 23, tzinfo=east)
    for held in (first, last, first.replace(tzinfo=dt.UTC), last.replace(tzinfo=dt.UTC)):
        assert codec.decode(codec.encode(held)) == held
    for wrong in (first.replace(tzinfo=east), last.replace(tzinfo=west)):
        with pytest.raises(NotEncodable, match="years 1 to 9999"):
            codec.encode(wrong)


def test_what_a_subclass_adds_is_not_cut() -> None:
    """An instance of a subclass with further fields is refused; one that only behaves differently is written."""

    @dataclasses.dataclass
    class Polite(Place):
        def greeting(self) -> str:
            return "please"

    @dataclasses.dataclass
    class Large(Place):
        rooms: int = 3

    codec = Codec(Place)
    assert codec.decode(codec.encode(Polite("x"))) == Place("x")
    with pytest.raises(NotEncodable, match="no field 'rooms', which Large adds"):
        codec.encode(Large("x"))
    with pytest.raises(NotEncodable, match="no field 'rooms'"):
        Codec(customer().__class__).encode(customer(home=Large("x")))
    with pytest.raises(NotEncodable, match="it must be Place, not int"):
        codec.encode(5)  # type: ignore[arg-type]


def test_extras_of_a_model_are_not_cut() -> None:
    """A model that allows undeclared fields is written only when it has none."""

    class Open(pydantic.BaseModel):
        name: str

        model_config = pydantic.ConfigDict(extra="allow")

    codec = Codec(Open)
    assert codec.decode(codec.encode(Open(name="x"))) == Open(name="x")
    with pytest.raises(NotEncodable, match="no field 'size'"):
        codec.encode(Open(name="x", size=3))  # type: ignore[call-arg]


@pytest.mark.parametrize("default", [float("inf"), float("-inf"), float("nan")])
def test_a_default_that_json_can_not_hold_is_refused(default: float) -> None:
    """Other readers of the schema would not take `Infinity`; values may be infinite all the same."""
    kind = dataclasses.make_dataclass("Kind", [("size", float, dataclasses.field(default=default))])
    with pytest.raises(NoSchemaFor, match="size"):
        schema_of(kind)
    codec: Codec[Any] = Codec(float)
    assert codec.decode(codec.encode(float("inf"))) == float("inf")
    field = '{"name": "size", "type": "double", "default": Infinity}'
    with pytest.raises(BadSchema, match="JSON has no Infinity"):
        Schema(f'{{"type": "record", "name": "Kind", "fields": [{field}]}}')


def test_the_order_of_a_union_is_its_own() -> None:
    """`str | int` and `int | str` are equal to Python; each has the schema that it says."""
    for hint, names in (
        (str | int, ["string", "long"]),
        (int | str, ["long", "string"]),
        (str | int, ["string", "long"]),
    ):
        assert json.loads(schema_of(hint).text) == names
        assert json.loads(schema_of(list[hint]).text)["items"] == names


class Point(typing.NamedTuple):
    """Where it is."""

    x: int
    y: int = 0


@attrs.define
class Box:
    _corner: Point
    names: list[str] = attrs.field(factory=list)
    size: int = attrs.field(default=1, kw_only=True)
    area: int = attrs.field(init=False, default=0)


def test_named_tuples_and_attrs_classes_are_told_alike() -> None:
    """V2: fields, defaults and docs; private fields of attrs have another name when they are given."""
    assert fields(Point)["y"] == {"name": "y", "type": "long", "default": 0}
    assert json.loads(schema_of(Point).text)["doc"] == "Where it is."
    assert list(fields(Box)) == ["_corner", "names", "size"]
    assert (fields(Box)["names"]["default"], fields(Box)["size"]["default"]) == ([], 1)
    codec = Codec(Box)
    value = Box(Point(1, 2), ["a"], size=3)
    assert codec.decode(codec.encode(value)) == value
    assert codec.from_json(codec.to_json(value)) == value
    assert type(codec.decode(codec.encode(value))._corner) is Point
    with pytest.raises(NotEncodable, match=r"_corner\.x.*it must be a whole number"):
        codec.encode(Box(Point("x")))  # type: ignore[arg-type]
    with pytest.raises(NoSchemaFor, match="no type hint"):
        schema_of(collections.namedtuple("Bare", "x y"))


class Trip(typing.TypedDict):
    """Where to."""

    to: Point
    by: typing.Annotated[str, AvroField(aliases=("mode",), doc="what takes us")]
    stops: typing.NotRequired[list[str]]
    note: typing.NotRequired[typing.Annotated[str, AvroField(doc="whatever")]]
    price: Decimal | None


class Voyage(Trip, total=False):
    ship: str
    captain: typing.Required[str]


class TestTypedDicts:
    """V2: a TypedDict is a record; what is written comes back as an equal plain dict."""

    def test_fields_docs_and_aliases_are_told_like_those_of_other_classes(self) -> None:
        """A key that may be absent is null for readers that know no absence."""
        assert json.loads(schema_of(Trip).text)["doc"] == "Where to."
        assert list(fields(Trip)) == ["to", "by", "stops", "note", "price"]
        assert fields(Trip)["by"] == {"name": "by", "type": "string", "aliases": ["mode"], "doc": "what takes us"}
        assert fields(Trip)["note"] == {"name": "note", "type": ["null", "string"], "default": None, "doc": "whatever"}
        assert [name for name, field in fields(Voyage).items() if "default" in field] == ["stops", "note", "ship"]

    @pytest.mark.parametrize(
        "value",
        [
            {"to": Point(1), "by": "foot", "price": None},
            {"to": Point(1, 2), "by": "foot", "price": Decimal("1.5"), "stops": [], "note": ""},
        ],
    )
    def test_absent_keys_stay_absent(self, value: Trip) -> None:
        """And those that are there stay there, empty or None."""
        codec = Codec(Trip)
        assert codec.decode(codec.encode(value)) == value
        assert codec.from_json(json.loads(json.dumps(codec.to_json(value)))) == value
        assert type(codec.decode(codec.encode(value))) is dict
        assert codec.decode(codec.encode(collections.OrderedDict(value))) == value  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("change", "path", "story"),
        [
            ({"by": 5}, "by", "must be string"),
            ({"to": Point("x")}, r"to\.x", "it must be a whole number"),  # type: ignore[arg-type]
            ({"nosuch": 1}, "Trip", "there is no field 'nosuch'"),
            ({"stops": None}, "stops", "can't be None"),
        ],
    )
    def test_what_does_not_fit_is_named(self, change: dict[str, Any], path: str, story: str) -> None:
        """Nothing is dropped or filled in without a word."""
        value: Any = {"to": Point(1), "by": "foot", "price": None, **change}
        with pytest.raises(NotEncodable, match=f"{path}.*{story}"):
            Codec(Trip).encode(value)

    def test_a_required_key_that_is_missing_is_named(self) -> None:
        """Also one of a class whose other keys may be absent."""
        value: Any = {"to": Point(1), "by": "foot", "price": None, "ship": "Ann"}
        with pytest.raises(NotEncodable, match=r"captain.*missing"):
            Codec(Voyage).encode(value)

    def test_a_dict_can_be_of_one_side_of_a_union_only(self) -> None:
        """What a value is of is told by its class, never by trying."""
        codec: Codec[Any] = Codec(list[Trip | Point | str | None])
        value = [Point(1), "x", None, {"to": Point(2), "by": "car", "price": None}]
        assert codec.decode(codec.encode(value)) == value
        for hint in (Trip | Voyage, Trip | dict[str, int]):
            with pytest.raises(NoSchemaFor, match="two branches that are dicts"):
                schema_of(hint)

    def test_absent_and_none_are_told_apart_or_refused(self) -> None:
        """Where the class is defined, naming the field."""
        with pytest.raises(NoSchemaFor, match=r"'why' of .*Vague: it may be absent"):

            @avro
            class Vague(typing.TypedDict):
                why: typing.NotRequired[int | None]

        with pytest.raises(NoSchemaFor, match=r"'what' of .*Loose"):

            @avro
            class Loose(typing.TypedDict):
                what: typing.Any

    def test_data_of_an_earlier_version_lacks_the_key(self) -> None:
        """A key that was added later, and may be absent, is absent."""

        @avro(name="Trip")
        class Old(typing.TypedDict):
            to: Point
            mode: str
            price: Decimal | None

        old: Any = {"to": Point(3), "mode": "train", "price": None}
        found = Codec(Trip).decode(Codec(Old).encode(old), written_as=schema_of(Old))
        assert found == {"to": Point(3), "by": "train", "price": None}


def test_what_can_not_be_inferred_of_any_kind_fails_where_it_is_defined() -> None:
    """V2: NamedTuple, attrs class, TypedDict or Literal: the error names class and field."""
    with pytest.raises(NoSchemaFor, match=r"'second' of .*Pair"):

        @avro
        class Pair(typing.NamedTuple):
            first: int
            second: object

    with pytest.raises(NoSchemaFor, match=r"'load' of .*Crate"):

        @avro
        @attrs.define
        class Crate:
            load: list

    with pytest.raises(NoSchemaFor, match=r"'either' of .*Mixed"):

        @avro
        class Mixed(typing.TypedDict):
            either: typing.Literal["a", 1]


def test_literals_are_their_type_and_are_checked() -> None:
    """V2: the schema has the type that all choices have; another value is refused when written and when read."""

    @dataclasses.dataclass
    class Ticket:
        state: typing.Literal["open", "closed"]
        floor: typing.Literal[1, 2] = 1
        mood: typing.Literal["good", None] = None
        past: list[typing.Literal["open", "closed"]] = dataclasses.field(default_factory=list)
        other: int | typing.Literal["none"] = 5

    codec: Codec[Any] = Codec(Ticket)
    assert [field["type"] for field in fields(Ticket).values()][:3] == ["string", "long", ["null", "string"]]
    for value in (Ticket("open"), Ticket("closed", 2, "good", ["open"], "none")):
        assert codec.decode(codec.encode(value)) == value
        assert codec.from_json(codec.to_json(value)) == value
    for wrong, name in (
        (Ticket("x"), "state"),  # type: ignore[arg-type]
        (Ticket("open", True), "floor"),
        (Ticket("open", past=["y"]), r"past"),  # type: ignore[list-item]
        (Ticket("open", mood="bad"), "mood"),  # type: ignore[arg-type]
        (Ticket("open", other="some"), "other"),  # type: ignore[arg-type]
    ):
        with pytest.raises(NotEncodable, match=name):
            codec.encode(wrong)
    loose: Codec[Any] = GenericCodec(codec.schema)
    with pytest.raises(NotDecodable, match=r"state.*'x' is none of 'open', 'closed'"):
        codec.decode(loose.encode(GenericRecord("Ticket", {"state": "x"})))
    assert schema_of(typing.Literal[1]).text == '"long"'
    assert schema_of(typing.Literal[True]).text == '"boolean"'
    with pytest.raises(NoSchemaFor, match="choices are all text"):
        schema_of(typing.Literal["a", 1])
