"""Defaults: conversion between the JSON in a schema and the data that Avro's reader and writer use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.serde.primitives import logical_value, raw_value
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
)

__all__ = ["datum_of_default", "default_of_datum"]

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "bytes": (str,),
    "string": (str,),
}
_BITS = {"int": 31, "long": 63}


def datum_of_default(shape: Shape, default: Any) -> Any:  # noqa: ANN401
    """Return the datum of a default, as the Avro reader would return it. Raises ValueError or TypeError."""
    match shape:
        case PrimitiveShape() | FixedShape():
            return _primitive(shape, default)
        case EnumShape():
            if default not in shape.symbols:
                raise ValueError(f"{default!r} is no symbol of {shape.name}")
            return default
        case ArrayShape():
            return [datum_of_default(shape.items, each) for each in _expect(default, list)]
        case MapShape():
            return {key: datum_of_default(shape.values, each) for key, each in _expect(default, dict).items()}
        case UnionShape():
            return _of_branch(shape, default)
        case RecordShape():
            return _record(shape, _expect(default, dict))


def default_of_datum(shape: Shape, datum: Any) -> Any:  # noqa: ANN401
    """Return the JSON of a datum for the Avro writer. A datum of a union must belong to its first branch."""
    match shape:
        case PrimitiveShape() | FixedShape():
            raw = raw_value(shape, datum)
            return raw.decode("latin-1") if isinstance(raw, bytes) else raw
        case EnumShape():
            return datum
        case ArrayShape():
            return [default_of_datum(shape.items, each) for each in datum]
        case MapShape():
            return {key: default_of_datum(shape.values, each) for key, each in datum.items()}
        case RecordShape():
            return {each.name: default_of_datum(each.shape, datum[each.name]) for each in shape.fields}
        case UnionShape():
            return default_of_datum(shape.branches[0], datum[1] if isinstance(datum, tuple) else datum)


def _primitive(shape: PrimitiveShape | FixedShape, default: Any) -> Any:  # noqa: ANN401
    kind = "bytes" if isinstance(shape, FixedShape) else shape.kind
    _check_type(kind, default)
    if kind in _BITS and not -(1 << _BITS[kind]) <= default < 1 << _BITS[kind]:
        raise OverflowError(f"it is out of range for {kind}")
    raw = default.encode("latin-1") if kind == "bytes" else default
    if isinstance(shape, FixedShape) and len(raw) != shape.size:
        raise ValueError(f"{shape.name} has {shape.size} bytes")
    return logical_value(shape, float(raw) if kind in ("float", "double") else raw)


def _check_type(kind: str, default: object) -> None:
    if not isinstance(default, _TYPES[kind]) or (isinstance(default, bool) and kind != "boolean"):
        raise TypeError(f"it must be {kind}")


def _of_branch(shape: UnionShape, default: Any) -> Any:  # noqa: ANN401
    """Return the datum of the first branch that the default fits: Avro took only the first branch until 1.8."""
    errors: list[Exception] = []
    for branch in shape.branches:
        try:
            datum = datum_of_default(branch, default)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            errors.append(error)
        else:
            return (branch_name(branch), datum) if isinstance(branch, RecordShape | EnumShape | FixedShape) else datum
    raise errors[0]


def _record(shape: RecordShape, default: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for field in shape.fields:
        given = default.get(field.name, field.default)
        if given is NO_DEFAULT:
            raise ValueError(f"field {field.name!r} of {shape.name} is missing")
        values[field.name] = datum_of_default(field.shape, given)
    return values


def _expect(default: Any, kind: type) -> Any:  # noqa: ANN401
    if not isinstance(default, kind):
        raise TypeError(f"it must be a {kind.__name__}")
    return default
