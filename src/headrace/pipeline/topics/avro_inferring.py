"""An Avro schema for columns that have none yet: what Spark says of them, every nullable field with default null."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.errors import BadArgument
from headrace.serde import Schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["inferred_schema"]

_PRIMITIVES: dict[str, Any] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
    "time(6)": {"type": "long", "logicalType": "time-micros"},
}


def inferred_schema(kind: DataType, topic: str, part: str) -> Schema:
    """Return a schema for a column; records are called after the topic. Raises BadArgument, BadSchema."""
    words = re.findall(r"[A-Za-z0-9]+", f"{topic} {part}" if part == "key" else topic)
    name = "".join(word[0].upper() + word[1:] for word in words) or "Record"
    return Schema(_json(kind, name if name[0].isalpha() else f"T{name}", part))


def _json(kind: Any, name: str, where: str) -> Any:  # noqa: ANN401
    match kind.typeName():
        case "struct":
            fields = [_field(each, f"{name}_{each.name}", f"{where}.{each.name}") for each in kind.fields]
            return {"type": "record", "name": name, "fields": fields}
        case "array":
            return {"type": "array", "items": _nullable(kind.elementType, kind.containsNull, name, f"{where}[]")}
        case "map" if kind.keyType.simpleString() == "string":
            return {"type": "map", "values": _nullable(kind.valueType, kind.valueContainsNull, name, f"{where}{{}}")}
        case "decimal":
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if kind.simpleString() not in _PRIMITIVES:
        raise BadArgument(f"column {where}", kind.simpleString(), "Avro has no such type; cast it, or leave it out")
    return _PRIMITIVES[kind.simpleString()]


def _field(field: Any, name: str, where: str) -> dict[str, Any]:  # noqa: ANN401
    default = {"default": None} if field.nullable else {}
    return {"name": field.name, "type": _nullable(field.dataType, field.nullable, name, where), **default}


def _nullable(kind: Any, is_nullable: bool, name: str, where: str) -> Any:  # noqa: ANN401
    inner = _json(kind, name, where)
    return ["null", inner] if is_nullable else inner
