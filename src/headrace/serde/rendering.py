"""From a shape back to a schema's JSON."""

from __future__ import annotations

from typing import Any

from headrace.serde.logical import schema_of_primitive
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FieldShape,
    FixedShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
)

__all__ = ["json_of_shape"]


def json_of_shape(shape: Shape) -> Any:  # noqa: ANN401
    """Return the schema as JSON values; a named type is written out where it comes first, then called by name."""
    return _render(shape, "", set())


def _render(shape: Shape, around: str, seen: set[str]) -> Any:  # noqa: ANN401
    match shape:
        case PrimitiveShape():
            return schema_of_primitive(shape)
        case ArrayShape():
            return {"type": "array", "items": _render(shape.items, around, seen)}
        case MapShape():
            return {"type": "map", "values": _render(shape.values, around, seen)}
        case UnionShape():
            return [_render(branch, around, seen) for branch in shape.branches]
    if shape.name in seen:
        return shape.name
    seen.add(shape.name)
    return _named(shape, around, seen)


def _named(shape: RecordShape | EnumShape | FixedShape, around: str, seen: set[str]) -> dict[str, Any]:
    name = _name(shape.name, around)
    match shape:
        case RecordShape():
            inner = shape.name.rpartition(".")[0]
            fields = [_field(field, inner, seen) for field in shape.fields]
            return {"type": "record", **name, **_doc(shape.doc), **_aliases(shape.aliases), "fields": fields}
        case EnumShape():
            symbols = {"symbols": list(shape.symbols)}
            default = {} if shape.default is None else {"default": shape.default}
            return {"type": "enum", **name, **_doc(shape.doc), **_aliases(shape.aliases), **symbols, **default}
        case FixedShape():
            parts = {"type": "fixed", **name, **_aliases(shape.aliases), "size": shape.size}
            decimal = {"logicalType": "decimal", "precision": shape.precision, "scale": shape.scale}
            return {**parts, **decimal} if shape.logical else parts


def _name(full: str, around: str) -> dict[str, Any]:
    namespace, _, name = full.rpartition(".")
    return {"name": name} if namespace == around else {"name": name, "namespace": namespace}


def _field(field: FieldShape, around: str, seen: set[str]) -> dict[str, Any]:
    parts = {"name": field.name, **_doc(field.doc), **_aliases(field.aliases)}
    default = {} if field.default is NO_DEFAULT else {"default": field.default}
    return {**parts, "type": _render(field.shape, around, seen), **default}


def _doc(doc: str | None) -> dict[str, Any]:
    return {"doc": doc} if doc else {}


def _aliases(aliases: tuple[str, ...]) -> dict[str, Any]:
    return {"aliases": list(aliases)} if aliases else {}
