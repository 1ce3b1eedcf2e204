"""Avro data as readable JSON, written and read: records are {"type": name, "data": {…}}, at every depth.

A union of null and one other type is written as the plain value; in other unions, values that are not records are
written as {"type": branch, "data": …} too. Bytes are base64; times, decimals and UUIDs are text; so are NaN and the
infinities, which JSON lacks. When it is read, unknown fields are ignored, and missing ones get their defaults.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headrace.errors import NotDecodable
from headrace.serde.defaults import datum_of_default
from headrace.serde.encoding import chosen_branch
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

__all__ = ["datum_of_json", "json_of_datum"]

_ENVELOPE = {"type", "data"}


def json_of_datum(shape: Shape, datum: Any) -> Any:  # noqa: ANN401
    """Return data of the Avro reader, or for the writer, as JSON values."""
    match shape:
        case PrimitiveShape() | FixedShape():
            return _json_of_primitive(shape, datum)
        case EnumShape():
            return str(datum)
        case ArrayShape():
            return [json_of_datum(shape.items, each) for each in datum]
        case MapShape():
            return {key: json_of_datum(shape.values, each) for key, each in datum.items()}
        case UnionShape():
            return _json_of_union(shape, datum)
        case RecordShape():
            values = {field.name: json_of_datum(field.shape, datum[field.name]) for field in shape.fields}
            return {"type": shape.name, "data": values}


def _json_of_union(shape: UnionShape, datum: Any) -> Any:  # noqa: ANN401
    branch, inner = _branch_of_datum(shape, datum)
    shown = json_of_datum(branch, inner)
    if is_optional(shape) or inner is None or isinstance(branch, RecordShape):
        return shown
    return {"type": branch_name(branch), "data": shown}


def _branch_of_datum(shape: UnionShape, datum: Any) -> tuple[Shape, Any]:  # noqa: ANN401
    if isinstance(datum, tuple):
        return next(branch for branch in shape.branches if branch_name(branch) == datum[0]), datum[1]
    return chosen_branch(shape, datum), datum


def _json_of_primitive(shape: PrimitiveShape | FixedShape, datum: Any) -> Any:  # noqa: ANN401
    kind = python_type(shape)
    if kind is bytes:
        return base64.b64encode(datum).decode()
    if kind is float:
        return _json_of_number(float(datum))
    if shape.logical is None:
        return datum
    return datum.isoformat() if hasattr(datum, "isoformat") else str(datum)


def _json_of_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def datum_of_json(shape: Shape, value: Any, where: str = "") -> Any:  # noqa: ANN401
    """Return the datum of a JSON value, as the Avro reader would return it. Raises NotDecodable, naming the field.

    The envelope with the type may be left out for a record, and for a branch of a union that its JSON type determines.
    """
    match shape:
        case PrimitiveShape() | FixedShape():
            return _datum_of_primitive(shape, value, where)
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
            return _datum_of_union(shape, value, where)
        case RecordShape():
            return _datum_of_record(shape, value, where)


def _datum_of_record(shape: RecordShape, value: Any, where: str) -> dict[str, Any]:  # noqa: ANN401
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


def _datum_of_union(shape: UnionShape, value: Any, where: str) -> Any:  # noqa: ANN401
    branch, inner = _branch_of_json(shape, value, where)
    datum = datum_of_json(branch, inner, where)
    return (branch.name, datum) if isinstance(branch, RecordShape | EnumShape | FixedShape) else datum


def _branch_of_json(shape: UnionShape, value: Any, where: str) -> tuple[Shape, Any]:  # noqa: ANN401
    by_name = {branch_name(branch): branch for branch in shape.branches}
    if value is None and "null" in by_name:
        return by_name["null"], None
    if is_optional(shape):
        return next(branch for name, branch in by_name.items() if name != "null"), value
    is_named = isinstance(value, Mapping) and value.keys() == _ENVELOPE and isinstance(value["type"], str)
    if is_named and value["type"] in by_name:
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


def _datum_of_primitive(shape: PrimitiveShape | FixedShape, value: Any, where: str) -> Any:  # noqa: ANN401
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


def _uuid(value: Any) -> uuid.UUID:  # noqa: ANN401
    if not isinstance(value, str):  # UUID itself raises AttributeError
        raise TypeError("it must be a text")
    return uuid.UUID(value)


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
    uuid.UUID: _uuid,
    Decimal: _decimal,
}


def _expect(kind: type, value: Any, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, kind):
        raise _wrong(where, f"it must be a {kind.__name__}, not {value!r}")
    return value


def _wrong(where: str, reason: str) -> NotDecodable:
    return NotDecodable("JSON", where or "the top", reason)
