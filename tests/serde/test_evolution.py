"""Classes change: what one version wrote another reads, and changes that would break somebody are told."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any

import pytest

from headrace.errors import BadSchema, IncompatibleSchema, NotDecodable
from headrace.serde import (
    AvroField,
    Codec,
    GenericCodec,
    Level,
    Rule,
    Schema,
    Version,
    avro,
    check_compatible,
    problems_of_reading,
    schema_of,
)


@dataclasses.dataclass
class V1:
    id: str
    label: str
    gone: int = 7


@dataclasses.dataclass
class V2:
    id: str
    name: Annotated[str, AvroField(aliases=("label",))]
    added: list[str] = dataclasses.field(default_factory=lambda: ["new"])


for version in (V1, V2):
    avro(name="Account")(version)


def test_an_older_record_is_read_by_a_newer_class() -> None:
    """V3: the added field takes its default, the removed one is skipped, the renamed one is found by its alias."""
    data = Codec(V1).encode(V1("a", "Ann", 3))
    first = Codec(V2).decode(data, written_as=schema_of(V1))
    second = Codec(V2).decode(data, written_as=schema_of(V1))
    assert first == V2("a", "Ann", ["new"])
    assert first.added is not second.added


def test_a_newer_record_is_read_by_an_older_class() -> None:
    """V3: the other way round: the field it has and the writer dropped takes its default, new ones are skipped."""

    @avro(name="Account")
    @dataclasses.dataclass
    class Old:
        id: str
        gone: int = 7

    data = Codec(V2).encode(V2("a", "Ann"))
    assert Codec(Old).decode(data, written_as=schema_of(V2)) == Old("a", 7)


def test_a_generic_reader_takes_defaults_from_its_schema() -> None:
    """V3: without classes too, logical types and nested records included."""
    place = {"type": "record", "name": "Place", "fields": [{"name": "street", "type": "string"}]}
    fields = [
        {"name": "id", "type": "string"},
        {"name": "since", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
        {
            "name": "credit",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "default": "\u00ff",
        },
        {"name": "place", "type": place, "default": {"street": "Main"}},
        {"name": "or_place", "type": ["Place", "null"], "default": {"street": "Side"}},
    ]
    reader = GenericCodec(Schema({"type": "record", "name": "Account", "fields": fields}))
    found = reader.decode(Codec(V1).encode(V1("a", "x")), written_as=schema_of(V1))
    assert found["since"] == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert found["credit"] == Decimal("-0.01")
    assert (found["place"]["street"], found["or_place"]["street"]) == ("Main", "Side")


def schema(kind: Any, *, name: str = "R", **more: Any) -> Schema:
    return Schema({"type": "record", "name": name, "fields": [{"name": "f", "type": kind, **more}]})


def enum_of(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("writer", "reader", "rule", "field"),
    [
        (schema("long"), schema("long"), None, ""),
        (schema("int"), schema("double"), None, ""),
        (schema("double"), schema("int"), Rule.TYPE, "f"),
        (schema("string"), schema("bytes"), None, ""),
        (schema("long"), schema("string"), Rule.TYPE, "f"),
        (schema("long"), schema(["null", "long"]), None, ""),
        (schema("int"), schema(["null", "double"]), None, ""),
        (schema(["null", "long"]), schema("long"), Rule.BRANCH, "f"),
        (schema(["null", "long", "string"]), schema(["null", "long"]), Rule.BRANCH, "f"),
        (schema(["null", "long"]), schema(["string", "long", "null"]), None, ""),
        (schema(enum_of("A", "B")), schema(enum_of("A")), Rule.SYMBOLS, "f"),
        (schema(enum_of("A", "B")), schema(enum_of("A", default="A")), None, ""),
        (schema(fixed(4)), schema(fixed(5)), Rule.SIZE, "f"),
        (schema(fixed(4)), schema(fixed(4, "G")), Rule.NAME, "f"),
        (schema("long", name="R"), schema("long", name="S"), Rule.NAME, "the top"),
        (schema("long", name="a.R"), schema("long", name="b.R"), None, ""),
        (schema(MILLIS), schema(MICROS), Rule.LOGICAL_TYPE, "f"),
        (schema("long"), schema(MICROS), Rule.LOGICAL_TYPE, "f"),
        (schema(decimal(9, 2)), schema(decimal(9, 3)), Rule.LOGICAL_TYPE, "f"),
        (schema({"type": "array", "items": "long"}), schema({"type": "array", "items": "string"}), Rule.TYPE, "f[]"),
        (schema({"type": "map", "values": "long"}), schema({"type": "map", "values": "string"}), Rule.TYPE, "f{}"),
        (schema({"type": "map", "values": "long"}), schema({"type": "array", "items": "long"}), Rule.TYPE, "f"),
        (Schema("string"), Schema("long"), Rule.TYPE, "the top"),
    ],
)
def test_avros_rules_of_resolution(writer: Schema, reader: Schema, rule: Rule | None, field: str) -> None:
    """V4: what may be read as what, and the name of the rule that forbids the rest."""
    found = [(problem.rule, problem.field) for problem in problems_of_reading(writer.shape, reader.shape)]
    assert found == ([] if rule is None else [(rule, field)])


def test_nested_and_recursive_records_are_compared_inside() -> None:
    """V4: the path leads to the field, through records that hold themselves."""

    def tree(value: str) -> Schema:
        children = {"name": "children", "type": {"type": "array", "items": "Tree"}}
        return Schema({"type": "record", "name": "Tree", "fields": [{"name": "value", "type": value}, children]})

    assert problems_of_reading(tree("long").shape, tree("long").shape) == []
    assert [each.field for each in problems_of_reading(tree("long").shape, tree("string").shape)] == ["value"]
    outer = [
        schema({"type": "record", "name": "In", "fields": [{"name": "x", "type": kind}]}) for kind in ("int", "null")
    ]
    assert [each.field for each in problems_of_reading(outer[0].shape, outer[1].shape)] == ["f.x"]


ADD_WITH_DEFAULT = (
    schema("long"),
    Schema(schema("long").text.replace("]}", ',{"name":"g","type":"int","default":1}]}')),
)
ADD = (schema("long"), Schema(schema("long").text.replace("]}", ',{"name":"g","type":"int"}]}')))
NEITHER = (schema("long"), schema("string"))


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        (Level.NONE, ["add with default", "add", "drop", "neither"]),
        (Level.BACKWARD, ["add with default", "drop"]),
        (Level.BACKWARD_TRANSITIVE, ["add with default", "drop"]),
        (Level.FORWARD, ["add with default", "add"]),
        (Level.FORWARD_TRANSITIVE, ["add with default", "add"]),
        (Level.FULL, ["add with default"]),
        (Level.FULL_TRANSITIVE, ["add with default"]),
    ],
)
def test_each_level_allows_what_it_says(level: Level, allowed: list[str]) -> None:
    """V4: all seven levels, against one earlier version."""
    changes = {"add with default": ADD_WITH_DEFAULT, "add": ADD, "drop": ADD[::-1], "neither": NEITHER}
    found = []
    for name, (old, new) in changes.items():
        try:
            check_compatible(new, [Version("s", 1, 1, old)], level, subject="s")
        except IncompatibleSchema:
            continue
        found.append(name)
    assert found == allowed


@pytest.mark.parametrize("level", [Level.BACKWARD, Level.FORWARD, Level.FULL])
def test_only_transitive_levels_look_past_the_last_version(level: Level) -> None:
    """V4: long, then nothing, then text under one name: each step is fine, the whole way is not."""
    long = Schema(schema("long", default=0).text)
    without = Schema({"type": "record", "name": "R", "fields": []})
    earlier = [Version("s", 1, 1, long), Version("s", 2, 2, without)]
    text = schema("string", default="")
    check_compatible(text, earlier, level, subject="s")
    with pytest.raises(IncompatibleSchema, match="against version 1") as refused:
        check_compatible(text, earlier, Level(f"{level}_TRANSITIVE"), subject="s")
    assert (refused.value.version, refused.value.field, refused.value.rule) == (1, "f", "type mismatch")


def test_every_problem_is_listed() -> None:
    """V4: one refusal tells all there is to mend, with direction, version and reason."""
    with pytest.raises(IncompatibleSchema) as refused:
        check_compatible(NEITHER[1], [Version("s", 4, 9, NEITHER[0])], Level.FULL, subject="s")
    assert len(refused.value.problems) == 2
    assert "field 'f': type mismatch against version 4 (BACKWARD, the new schema reading version 4)" in str(
        refused.value
    )
    assert "(FORWARD, version 4 reading the new schema): string can't be read as long" in str(refused.value)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


@dataclasses.dataclass
class Painted:
    colour: Colour


@pytest.mark.parametrize(
    ("writer", "reader", "field", "reason"),
    [
        (schema("string"), schema("long"), "f", "written as string and can't be read as long"),
        (schema("long"), schema("long", name="S"), "the top", "written as R and can't be read as S"),
        (Schema({"type": "record", "name": "R", "fields": []}), schema("long"), "f", "has no default"),
    ],
)
def test_a_reader_that_could_never_read_says_so_at_once(
    writer: Schema, reader: Schema, field: str, reason: str
) -> None:
    """V3: not at the first record that happens to differ, but when the reader is made."""
    with pytest.raises(NotDecodable, match=reason) as refused:
        GenericCodec(reader).reader_of(writer)
    assert refused.value.field == field


def test_a_value_the_reader_has_no_place_for_is_refused_alone() -> None:
    """V3: a union's other branch, or an unknown symbol, fails the record that has it and no other."""
    writer, reader = GenericCodec(schema(["null", "long"])), GenericCodec(schema("long"))
    read = reader.reader_of(writer.schema)
    assert read(writer.encode({"f": 5}), 0)["f"] == 5
    with pytest.raises(NotDecodable, match="written as null and can't be read as long"):
        read(writer.encode({"f": None}), 0)
    colours = enum_of("RED", "BLUE") | {"name": "Colour"}
    newer = GenericCodec(Schema({"type": "record", "name": "Painted", "fields": [{"name": "colour", "type": colours}]}))
    older = Codec(Painted)
    assert older.decode(newer.encode({"colour": "RED"}), written_as=newer.schema) == Painted(Colour.RED)
    with pytest.raises(NotDecodable, match="no symbol 'BLUE'"):
        older.decode(newer.encode({"colour": "BLUE"}), written_as=newer.schema)


def _names(*fields: tuple[str, ...]) -> Schema:
    """Return a record of strings; what stands behind a name are its aliases."""
    described = [{"name": name, "type": "string", "default": "", "aliases": list(old)} for name, *old in fields]
    return Schema({"type": "record", "name": "R", "fields": described})


@pytest.mark.parametrize(
    ("reader", "found"),
    [
        (_names(("a", "b")), ["a"]),  # the data has both
        (_names(("x", "a", "b")), ["x"]),  # two that became one
        (_names(("x", "a"), ("y", "a")), ["y"]),  # one that became two
        (_names(("a", "b"), ("b",)), []),  # the alias of another field's name gives way to it
        (_names(("x", "a"), ("y", "b")), []),
    ],
)
def test_an_alias_that_readers_would_follow_differently_is_refused(reader: Schema, found: list[str]) -> None:
    """V4: Avro's libraries differ on data with a field and its alias, so such a change would break somebody."""
    problems = problems_of_reading(_names(("a",), ("b",)).shape, reader.shape)
    assert [(problem.field, problem.rule) for problem in problems] == [(name, Rule.NAME) for name in found]


def test_a_whole_number_read_as_a_float_is_one() -> None:
    """V3: a float of 32 bits has no 16777217, so nobody reads it; a double has."""
    kinds = {kind: Schema({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}) for kind in NUMBERS}
    data = GenericCodec(kinds["int"]).encode({"n": 16777217})
    read = {kind: GenericCodec(kinds[kind]).decode(data, written_as=kinds["int"])["n"] for kind in NUMBERS[1:]}
    assert read == {"float": 16777216.0, "double": 16777217.0}


NUMBERS = ("int", "float", "double")


def test_a_fixed_decimal_is_read_under_another_name() -> None:
    """V3: a decimal is a number whatever its type is called, also in a union."""

    def fixed(name: str) -> dict[str, object]:
        return {"type": "fixed", "name": name, "size": 4, "logicalType": "decimal", "precision": 6, "scale": 2}

    for old in (fixed("A"), ["null", fixed("A")]):
        writer = GenericCodec(Schema(old))
        for new in (fixed("B"), ["null", fixed("B")]):
            reader = GenericCodec(Schema(new))
            assert reader.decode(writer.encode(Decimal("1.25")), written_as=writer.schema) == Decimal("1.25")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "bytes", "logicalType": "decimal"}, b"\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, b"\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}, b"\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1}, b"\x01"),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3}, b"\x01"),
        ({"type": "fixed", "name": "F", "size": 0, "logicalType": "decimal", "precision": 1}, b""),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "uuid"}, b"\x01\x02"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 7),
        ({"type": "string", "logicalType": "date"}, "7"),
    ],
    ids=str,
)
def test_a_logical_type_that_is_not_valid_is_ignored(kind: dict[str, Any], value: object) -> None:
    """Avro says so, and Java does so: a topic whose schema has one can be read, as the type below it."""
    codec = GenericCodec(Schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}))
    assert codec.decode(codec.encode({"a": value}))["a"] == value


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (["null", "long"], 5),
        (["long", "null"], None),
        (["null", "string", {"type": "map", "values": "long"}], {"a": 1}),
        (["null", {"type": "enum", "name": "E", "symbols": ["X"]}], "X"),
    ],
    ids=str,
)
def test_a_default_may_belong_to_any_branch_of_its_union(kind: list[Any], default: object) -> None:
    """Since Avro 1.9 it need not be of the first one; schemas that Java programs register are read."""
    written = Schema({"type": "record", "name": "R", "fields": []})
    reader = GenericCodec(
        Schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, "default": default}]})
    )
    found = reader.decode(b"", written_as=written)
    assert found["a"] == default
    assert reader.decode(reader.encode(found))["a"] == default


def test_a_default_that_fits_no_branch_is_refused() -> None:
    """The error is about the first branch."""
    with pytest.raises(BadSchema, match="it must be null"):
        Schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"], "default": "x"}]})
