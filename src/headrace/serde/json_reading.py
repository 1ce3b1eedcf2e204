"""Parsing of the JSON form to Avro data. Unknown fields are ignored, and missing ones get their defaults."""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.errors import NotDecodable
from headrace.serde.defaults import datum_of_default
from headrace.serde.primitives import python_type
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FixedShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
    branch_name,
    is_optional,
    short_name,
)

__all__ = ["datum_of_json"]

_ENVELOPE = {"type", "data"}


def datum_of_json(shape: Shape, value: Any, where: str = "") -> Any:  # noqa: ANN401
    """Return the datum of a JSON value, as the Avro reader would return it. Raises NotDecodable, naming the field.

    The envelope with the type may be left out for a record, and for a branch of a union that its JSON type determines.
    """
    match shape:
        case PrimitiveShape() | FixedShape():
            return _primitive(shape, value, where)
        case EnumShape():
            if value not in shape.symbols:
                raise _wrong(where, f"{value!r} is no symbol of {shape.name}")
            return value
        case ArrayShape():
            items = _expect(list, value, where)
            return [datum_of_json(shape.items, each, f"{where}[{nr}]") for nr, each in enumerate(items)]
        case MapShape():
            values = _expect(dict, value, where)
            return {key: datum_of_json(shape.values, each, f"{where}[{key!r}]") for key, each in values.items()}
        case UnionShape():
            return _union(shape, value, where)
        case RecordShape():
            return _record(shape, value, where)


def _record(shape: RecordShape, value: Any, where: str) -> dict[str, Any]:  # noqa: ANN401
    fields = _expect(dict, value, where)
    if fields.keys() == _ENVELOPE and isinstance(fields["data"], Mapping) and isinstance(fields["type"], str):
        if short_name(fields["type"]) != short_name(shape.name):
            raise _wrong(where, f"it must be {shape.name}, not {fields['type']}")
        fields = fields["data"]
    datum = {}
    for field in shape.fields:
        inside = f"{where}.{field.name}" if where else field.name
        if field.name in fields:
            datum[field.name] = datum_of_json(field.shape, fields[field.name], inside)
        elif field.default is NO_DEFAULT:
            raise _wrong(inside, "it is missing and has no default")
        else:
            datum[field.name] = datum_of_default(field.shape, field.default)
    return datum


def _union(shape: UnionShape, value: Any, where: str) -> Any:  # noqa: ANN401
    branch, inner = _branch_of(shape, value, where)
    datum = datum_of_json(branch, inner, where)
    return (branch.name, datum) if isinstance(branch, RecordShape | EnumShape | FixedShape) else datum


def _branch_of(shape: UnionShape, value: Any, where: str) -> tuple[Shape, Any]:  # noqa: ANN401
    by_name = {branch_name(branch): branch for branch in shape.branches}
    if value is None and "null" in by_name:
        return by_name["null"], None
    if is_optional(shape):
        return next(branch for name, branch in by_name.items() if name != "null"), value
    if isinstance(value, Mapping) and value.keys() == _ENVELOPE and value["type"] in by_name:
        branch = by_name[value["type"]]
        return branch, value if isinstance(branch, RecordShape) else value["data"]
    for name in _BARE.get(type(value), ()):
        if name in by_name:
            return by_name[name], value
    raise _wrong(where, f"{value!r} is none of {', '.join(by_name)}; name one with {{'type': …, 'data': …}}")


_BARE: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("long", "int", "double", "float"),
    float: ("double", "float"),
    str: ("string",),
    list: ("array",),
    dict: ("map",),
}


def _primitive(shape: PrimitiveShape | FixedShape, value: Any, where: str) -> Any:  # noqa: ANN401
    kind = python_type(shape)
    try:
        datum = _PARSERS[kind](value)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise _wrong(where, f"{value!r} is no {shape.logical or branch_name(shape)}: {error}") from error
    if isinstance(shape, FixedShape) and shape.logical is None and len(datum) != shape.size:
        raise _wrong(where, f"{shape.name} has {shape.size} bytes, not {len(datum)}")
    return datum


def _exactly(kind: type) -> Any:  # noqa: ANN401
    def parse(value: object) -> object:
        if type(value) is not kind:
            raise TypeError(f"it must be {kind.__name__}")
        return value

    return parse


def _float(value: Any) -> float:  # noqa: ANN401
    if isinstance(value, bool):
        raise TypeError("it must be a number")
    return float(value)


def _decimal(value: Any) -> Decimal:  # noqa: ANN401
    # By way of text: 0.1 means a tenth, not the nearest binary number.
    return Decimal(str(value))


_PARSERS: dict[type, Any] = {
    type(None): _exactly(type(None)),
    bool: _exactly(bool),
    int: _exactly(int),
    float: _float,
    str: _exactly(str),
    bytes: lambda value: base64.b64decode(value, validate=True),
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
    dt.time: dt.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    Decimal: _decimal,
}


def _expect(kind: type, value: Any, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, kind):
        raise _wrong(where, f"it must be a {kind.__name__}, not {value!r}")
    return value


def _wrong(where: str, reason: str) -> NotDecodable:
    return NotDecodable("JSON", where or "the top", reason)
