"""Random hints, classes, schemas and values of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import itertools
import typing
import uuid
from decimal import Decimal
from typing import Any, Literal

import attrs
import msgspec
import pydantic
import typing_extensions
from hypothesis import strategies as st

from headrace.serde import GenericRecord, Symbol, avro
from headrace.serde.primitives import python_type
from headrace.serde.shapes import (
    ArrayShape,
    EnumShape,
    FixedShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
)

names = (f"N{n}" for n in itertools.count())
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
AWARE = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))  # noqa: DTZ001


@avro(namespace="deck")
class Suit(enum.Enum):
    A = 1
    B = 2


@avro(namespace="deck")
class Word(enum.StrEnum):
    A = "a"
    B = "b"


@avro(namespace="deck")
class Text(str, enum.Enum):  # noqa: UP042 - what people have from before StrEnum
    A = "x"
    split = "y"


@avro(namespace="deck")
class Number(enum.IntEnum):
    A = 1
    B = 2


@avro(name="Suit", namespace="other")
class OtherSuit(enum.Enum):
    A = 1
    B = 2


SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: LONGS,
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=8),
    str: TEXT,
    dt.datetime: AWARE,
    dt.date: st.dates(),
    dt.time: st.times(),
    uuid.UUID: st.uuids(),
    Decimal: st.decimals(min_value=-(10**19), max_value=10**19, places=18),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    **{each: st.sampled_from(each) for each in (Suit, Word, Text, Number, OtherSuit)},
}

Hinted = tuple[Any, st.SearchStrategy[Any]]


def _optional(inner: Hinted) -> Hinted:
    return inner[0] | None, st.none() | inner[1]


def _list(inner: Hinted) -> Hinted:
    return list[inner[0]], st.lists(inner[1], max_size=3)


def _tuple(inner: Hinted) -> Hinted:
    return tuple[inner[0], ...], st.lists(inner[1], max_size=3).map(tuple)


def _map(inner: Hinted) -> Hinted:
    return dict[str, inner[0]], st.dictionaries(TEXT, inner[1], max_size=3)


def _record(inner: list[Hinted], kind: str, is_namesake: bool) -> Hinted:
    """Return a class; namesakes have one short name, each in a namespace of its own."""
    unique, fields = next(names), {f"f{n}": hint for n, (hint, _) in enumerate(inner)}
    name = "Namesake" if is_namesake else unique
    if kind == "dataclass":
        cls: type = dataclasses.make_dataclass(name, list(fields.items()))
    elif kind == "slots":
        cls = dataclasses.make_dataclass(name, list(fields.items()), slots=True, frozen=True)
    elif kind == "tuple":
        cls = typing.NamedTuple(name, list(fields.items()))
    elif kind == "dict":
        cls = typing_extensions.TypedDict(name, fields)  # type: ignore[operator]
    elif kind == "partial":
        return _partial(inner, name, unique if is_namesake else "")
    elif kind == "attrs":
        cls = attrs.make_class(name, {field: attrs.field(type=hint) for field, hint in fields.items()})
    elif kind == "struct":
        cls = msgspec.defstruct(name, list(fields.items()))
    else:
        config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        cls = pydantic.create_model(name, __config__=config, **{field: (hint, ...) for field, hint in fields.items()})
    if is_namesake:
        avro(namespace=unique)(cls)
    return cls, st.builds(cls, **{f"f{n}": values for n, (_, values) in enumerate(inner)})


def _partial(inner: list[Hinted], name: str, namespace: str) -> Hinted:
    """Return a TypedDict whose keys may be absent, but for those that may be None."""
    may_be_none = [type(None) in typing.get_args(hint) for hint, _ in inner]  # Optional[…] has no None in its text
    hints = {
        f"f{n}": hint if may_be_none[n] else typing.NotRequired[hint]  # type: ignore[valid-type]
        for n, (hint, _) in enumerate(inner)
    }
    cls: type = typing_extensions.TypedDict(name, hints)  # type: ignore[operator]
    if namespace:
        avro(namespace=namespace)(cls)
    values = {f"f{n}": each for n, (_, each) in enumerate(inner)}
    optional = {key: values.pop(key) for key in list(values) if typing.get_origin(hints[key]) is typing.NotRequired}
    return cls, st.fixed_dictionaries(values, optional=optional)


def _union(first: Hinted, second: Hinted) -> Hinted:
    hint = int | str | bool | first[0] | second[0] | Suit | OtherSuit | Text | None
    enums = SIMPLE[Suit] | SIMPLE[OtherSuit] | SIMPLE[Text]
    return hint, st.one_of(LONGS, TEXT, st.booleans(), first[1], second[1], enums, st.none())


def _is_plain(hinted: Hinted) -> bool:
    """`X | None` of an X that is a union already would be one union to Python."""
    return "None" not in str(hinted[0])


KINDS = ("dataclass", "slots", "struct", "model", "tuple", "attrs")


def records(
    children: st.SearchStrategy[Hinted], kinds: tuple[str, ...] = (*KINDS, "dict", "partial")
) -> st.SearchStrategy[Hinted]:
    """Return classes of any kind with such fields."""
    fields = st.lists(children, min_size=1, max_size=4)
    return st.builds(_record, fields, st.sampled_from(kinds), st.booleans())


def _deeper(children: st.SearchStrategy[Hinted]) -> st.SearchStrategy[Hinted]:
    return st.one_of(
        children.filter(_is_plain).map(_optional),
        children.map(_list),
        children.map(_tuple),
        children.map(_map),
        records(children),
        st.builds(_union, records(children), records(children, KINDS)),  # one of them a dict at most
    )


HINTS = st.recursive(st.sampled_from(list(SIMPLE.items())), _deeper, max_leaves=6)
CLASSES = records(HINTS)


def values_of(shape: Shape) -> st.SearchStrategy[Any]:
    """Return values of a generic schema."""
    match shape:
        case PrimitiveShape():
            return _primitives(shape)
        case FixedShape():
            return st.binary(min_size=shape.size, max_size=shape.size)
        case EnumShape():
            return st.sampled_from(shape.symbols).map(lambda symbol: Symbol(shape.name, symbol))
        case ArrayShape():
            return st.lists(values_of(shape.items), max_size=2)
        case MapShape():
            return st.dictionaries(TEXT, values_of(shape.values), max_size=2)
        case UnionShape():
            return st.one_of(*(values_of(branch) for branch in shape.branches))
        case RecordShape():
            fields = {field.name: values_of(field.shape) for field in shape.fields}
            return st.fixed_dictionaries(fields).map(lambda values: GenericRecord(shape.name, values))


def _primitives(shape: PrimitiveShape) -> st.SearchStrategy[Any]:
    if shape.kind == "null":
        return st.none()
    if shape.kind == "int" and shape.logical is None:
        return INTS
    if shape.kind == "float":
        return st.floats(allow_nan=False, width=32)
    if shape.kind == "bytes" and shape.logical is None:
        return TEXT.map(str.encode)  # read as a string, bytes must be one
    if shape.logical == "decimal":
        return st.decimals(min_value=-99, max_value=99, places=shape.scale)
    if shape.logical == "timestamp-millis":
        return AWARE.map(lambda each: each.replace(microsecond=0))
    return SIMPLE[python_type(shape)]


PRIMITIVE_JSON = st.sampled_from(
    [
        *[("boolean", True), ("int", 1), ("long", 2), ("float", 1.5), ("double", 2.5), ("bytes", "b"), ("string", "s")],
        ({"type": "long", "logicalType": "timestamp-micros"}, 3),
        ({"type": "long", "logicalType": "timestamp-millis"}, 4),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "\u0001"),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=1))),
    ]
)


@st.composite
def field_types(draw: st.DrawFn, number: int) -> tuple[Any, Any]:
    """Return a type for field `number`, and a default of it; named types are called after the field."""
    kind = draw(st.integers(0, 7))
    inner, default = draw(PRIMITIVE_JSON)
    if kind == 0:
        return {"type": "array", "items": inner}, []
    if kind == 1:
        return {"type": "map", "values": inner}, {}
    if kind == 2:
        return ["null", inner], None
    if kind == 3:
        symbols = draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True))
        known = draw(st.booleans())
        enum_type = {"type": "enum", "name": f"E{number}", "symbols": symbols}
        return (enum_type | {"default": symbols[0]} if known else enum_type), symbols[0]
    if kind == 4:
        record = {"type": "record", "name": f"R{number}", "fields": [{"name": "x", "type": inner, "default": default}]}
        return record, {}
    if kind == 5:
        spaces = draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
        fields = [{"name": "x", "type": inner, "default": default}]
        return [{"type": "record", "name": f"{space}.U{number}", "fields": fields} for space in spaces], {}
    return inner, default


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Return a record schema; two of them share names, so that they look like versions of one another."""
    fields = []
    for number in draw(st.lists(st.integers(0, 3), max_size=4, unique=True)):
        kind, default = draw(field_types(number))
        has_default = draw(st.booleans())
        alias = draw(st.sampled_from([None, None, f"f{(number + 1) % 4}"]))
        field = {"name": f"f{number}", "type": kind}
        field |= {"default": default} if has_default else {}
        fields.append(field | ({"aliases": [alias]} if alias else {}))
    return {"type": "record", "name": "Thing", "fields": fields}


@st.composite
def versions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return a schema and changed copies of it."""
    found = [draw(schemas())]
    for _ in range(draw(st.integers(1, 4))):
        other, base = draw(schemas()), found[-1]
        kept = [field for field in base["fields"] if draw(st.integers(0, 3))]
        new = [f for f in other["fields"] if f["name"] not in {field["name"] for field in kept}]
        found.append({**base, "fields": [*kept, *new[: draw(st.integers(0, 2))]]})
    return found
