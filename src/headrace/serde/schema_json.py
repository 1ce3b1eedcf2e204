"""Conversion between a schema's JSON and its shape. Errors say where the JSON breaks the specification."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import BadSchema
from headrace.serde.avro_library import DECIMAL
from headrace.serde.defaults import datum_of_default
from headrace.serde.primitives import schema_of_primitive
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
    branch_name,
)

__all__ = ["LOGICAL_TYPES", "PRIMITIVES", "is_name", "json_of_shape", "shape_of_json", "without_ignored"]


def json_of_shape(shape: Shape) -> Any:  # noqa: ANN401
    """Return the schema as JSON values. A named type is written in full the first time, then by name."""
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
            return {"type": "record", **name, **_doc(shape.doc), **_rendered_aliases(shape.aliases), "fields": fields}
        case EnumShape():
            symbols = {"symbols": list(shape.symbols)}
            default = {} if shape.default is None else {"default": shape.default}
            return {"type": "enum", **name, **_doc(shape.doc), **_rendered_aliases(shape.aliases), **symbols, **default}
        case FixedShape():
            parts = {"type": "fixed", **name, **_rendered_aliases(shape.aliases), "size": shape.size}
            decimal = {"logicalType": "decimal", "precision": shape.precision, "scale": shape.scale}
            return {**parts, **decimal} if shape.logical else parts


def _name(full: str, around: str) -> dict[str, Any]:
    namespace, _, name = full.rpartition(".")
    return {"name": name} if namespace == around else {"name": name, "namespace": namespace}


def _field(field: FieldShape, around: str, seen: set[str]) -> dict[str, Any]:
    parts = {"name": field.name, **_doc(field.doc), **_rendered_aliases(field.aliases)}
    default = {} if field.default is NO_DEFAULT else {"default": field.default}
    return {**parts, "type": _render(field.shape, around, seen), **default}


def _doc(doc: str | None) -> dict[str, Any]:
    return {"doc": doc} if doc else {}


def _rendered_aliases(aliases: tuple[str, ...]) -> dict[str, Any]:
    return {"aliases": list(aliases)} if aliases else {}


PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
LOGICAL_TYPES = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "uuid": "string",
    "decimal": "bytes",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def is_name(text: str) -> bool:
    """Return True if the text is a name in Avro; dots are allowed."""
    return _NAME.fullmatch(text) is not None


def shape_of_json(raw: Any) -> Shape:  # noqa: ANN401
    """Return the shape of a schema given as JSON values. Raises BadSchema."""
    parser = _Parser()
    shape = parser.shape(raw, namespace="", where="the top")
    parser.check_defaults()
    return shape


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Shape] = {}
        self._with_default: list[tuple[str, FieldShape]] = []

    def shape(self, raw: Any, *, namespace: str, where: str) -> Shape:  # noqa: ANN401
        if isinstance(raw, str):
            return self._named_or_primitive(raw, namespace, where)
        if isinstance(raw, list):
            return self._union(raw, namespace, where)
        if not isinstance(raw, Mapping) or "type" not in raw:
            raise BadSchema(where, f"a schema is a name, a list or an object with a type, not {raw!r}")
        return self._object(raw, namespace, where)

    def check_defaults(self) -> None:
        """Raise BadSchema for a default that is no value of its field. All names must be known by then."""
        for where, field in self._with_default:
            try:
                datum_of_default(field.shape, field.default)
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise BadSchema(where, f"default {field.default!r} does not fit: {error}") from error

    def _object(self, raw: Mapping[str, Any], namespace: str, where: str) -> Shape:
        match raw["type"]:
            case "record" | "error":
                return self._record(raw, namespace, where)
            case "enum":
                return self._enum(raw, namespace, where)
            case "fixed":
                return self._fixed(raw, namespace, where)
            case "array":
                return ArrayShape(self.shape(_given(raw, "items", where), namespace=namespace, where=f"{where}[]"))
            case "map":
                return MapShape(self.shape(_given(raw, "values", where), namespace=namespace, where=f"{where}{{}}"))
            case kind if isinstance(kind, str) and kind in PRIMITIVES:
                return _primitive(kind, raw)
            case inner:
                return self.shape(inner, namespace=namespace, where=where)

    def _named_or_primitive(self, name: str, namespace: str, where: str) -> Shape:
        if name in PRIMITIVES:
            return PrimitiveShape(name)
        full = _full(name, namespace)
        if full not in self._named:
            raise BadSchema(where, f"there is no type {full!r}")
        return self._named[full]

    def _union(self, raw: list[Any], namespace: str, where: str) -> Shape:
        branches = tuple(self.shape(each, namespace=namespace, where=where) for each in raw)
        names = [branch_name(branch) for branch in branches]
        if not names or "union" in names or len(set(names)) < len(names):
            raise BadSchema(where, f"a union has branches of different types, and no unions; this one has {names}")
        return UnionShape(branches)

    def _record(self, raw: Mapping[str, Any], namespace: str, where: str) -> Shape:
        name, inner = self._name(raw, namespace, where)
        record = RecordShape(name, aliases=_aliases(raw, inner), doc=raw.get("doc"))
        self._declare(name, record, where)
        where = name if where == "the top" else where
        fields = _given(raw, "fields", where)
        if not isinstance(fields, list):
            raise BadSchema(where, "fields is a list")
        for each in fields:
            field = self._field(each, inner, where)
            if any(field.name == other.name for other in record.fields):
                raise BadSchema(f"{where}.{field.name}", "the record has two fields of this name")
            record.fields.append(field)
        return record

    def _field(self, raw: Any, namespace: str, where: str) -> FieldShape:  # noqa: ANN401
        if not isinstance(raw, Mapping):
            raise BadSchema(where, f"a field is an object, not {raw!r}")
        name = _given(raw, "name", where)
        if not isinstance(name, str) or not is_name(name) or "." in name:
            raise BadSchema(where, f"{name!r} is no name for a field")
        where = f"{where}.{name}"
        shape = self.shape(_given(raw, "type", where), namespace=namespace, where=where)
        default = raw.get("default", NO_DEFAULT)
        field = FieldShape(name, shape, tuple(raw.get("aliases", ())), raw.get("doc"), default)
        if default is not NO_DEFAULT:
            self._with_default.append((where, field))
        return field

    def _enum(self, raw: Mapping[str, Any], namespace: str, where: str) -> Shape:
        name, inner = self._name(raw, namespace, where)
        symbols, default = tuple(_given(raw, "symbols", where)), raw.get("default")
        if len(set(symbols)) < len(symbols) or not all(isinstance(each, str) and is_name(each) for each in symbols):
            raise BadSchema(where, f"the symbols of {name} are not different names: {list(symbols)}")
        if default is not None and default not in symbols:
            raise BadSchema(where, f"default {default!r} is no symbol of {name}")
        return self._declare(name, EnumShape(name, symbols, default, _aliases(raw, inner), raw.get("doc")), where)

    def _fixed(self, raw: Mapping[str, Any], namespace: str, where: str) -> Shape:
        name, inner = self._name(raw, namespace, where)
        size = _given(raw, "size", where)
        if not isinstance(size, int) or size < 0:
            raise BadSchema(where, f"the size of {name} is {size!r}")
        fixed = FixedShape(name, size, _aliases(raw, inner))
        if _is_fixed_decimal(raw):
            fixed.logical, fixed.precision, fixed.scale = "decimal", raw["precision"], raw.get("scale", 0)
        return self._declare(name, fixed, where)

    def _name(self, raw: Mapping[str, Any], namespace: str, where: str) -> tuple[str, str]:
        name = _given(raw, "name", where)
        if not isinstance(name, str) or not is_name(name):
            raise BadSchema(where, f"{name!r} is no name")
        full = _full(name, raw.get("namespace", namespace) or "")
        return full, full.rpartition(".")[0]

    def _declare(self, name: str, shape: Shape, where: str) -> Shape:
        if name in self._named:
            raise BadSchema(where, f"two types are named {name!r}")
        self._named[name] = shape
        return shape


def _primitive(kind: str, raw: Mapping[str, Any]) -> PrimitiveShape:
    logical = raw.get("logicalType")
    # The specification says that an unknown logical type, or one of another type, is ignored.
    if LOGICAL_TYPES.get(str(logical)) != kind:
        return PrimitiveShape(kind)
    if logical != "decimal":
        return PrimitiveShape(kind, logical)
    if not _is_decimal(raw):
        return PrimitiveShape(kind)
    return PrimitiveShape(kind, logical, raw["precision"], raw.get("scale", 0))


def _is_decimal(raw: Mapping[str, Any]) -> bool:
    precision, scale = raw.get("precision"), raw.get("scale", 0)
    return type(precision) is int and type(scale) is int and precision > 0 and 0 <= scale <= precision


def _is_fixed_decimal(raw: Mapping[str, Any]) -> bool:
    """Return True for a decimal whose digits the bytes can hold."""
    is_decimal = raw.get("logicalType") == "decimal" and _is_decimal(raw)
    return is_decimal and bool(raw["precision"] <= math.log10(2) * (8 * raw["size"] - 1))


_PARTS = frozenset({"type", "items", "values", "fields"})


def without_ignored(raw: Any) -> Any:  # noqa: ANN401
    """Return a schema's JSON without the logical types that its shape ignores: the Avro reader would fail on some.

    Decimals are named so that they are read and written as ours.
    """
    if isinstance(raw, list):
        return [without_ignored(each) for each in raw]
    if not isinstance(raw, Mapping):
        return raw
    kept = {key: without_ignored(part) if key in _PARTS else part for key, part in raw.items()}
    if "logicalType" in raw and not _is_logical(raw):
        del kept["logicalType"]
    elif kept.get("logicalType") == "decimal":
        kept["logicalType"] = DECIMAL
    return kept


def _is_logical(raw: Mapping[str, Any]) -> bool:
    kind = raw.get("type")
    if kind == "fixed":
        return _is_fixed_decimal(raw)
    return isinstance(kind, str) and kind in PRIMITIVES and _primitive(kind, raw).logical is not None


def _given(raw: Mapping[str, Any], key: str, where: str) -> Any:  # noqa: ANN401
    if key not in raw:
        raise BadSchema(where, f"{key!r} is missing")
    return raw[key]


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _aliases(raw: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    return tuple(_full(alias, namespace) for alias in raw.get("aliases", ()))
