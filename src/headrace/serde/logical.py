"""Logical types: their Python classes, and the conversion to and from raw values."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

from headrace.serde.avro_library import logical_readers, logical_writers
from headrace.serde.shapes import FixedShape, PrimitiveShape

__all__ = ["PYTHON_TYPES", "logical_value", "python_type", "raw_value", "schema_of_primitive"]

PYTHON_TYPES: dict[str, type] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "date": dt.date,
    "time-millis": dt.time,
    "time-micros": dt.time,
    "timestamp-millis": dt.datetime,
    "timestamp-micros": dt.datetime,
    "local-timestamp-millis": dt.datetime,
    "local-timestamp-micros": dt.datetime,
    "uuid": uuid.UUID,
    "decimal": Decimal,
}


def python_type(shape: PrimitiveShape | FixedShape) -> type:
    """Return the Python class of the shape's values."""
    return PYTHON_TYPES[shape.logical or (shape.kind if isinstance(shape, PrimitiveShape) else "bytes")]


def schema_of_primitive(shape: PrimitiveShape) -> str | dict[str, Any]:
    """Return the schema as JSON values."""
    if shape.logical is None:
        return shape.kind
    schema: dict[str, Any] = {"type": shape.kind, "logicalType": shape.logical}
    return {**schema, "precision": shape.precision, "scale": shape.scale} if shape.logical == "decimal" else schema


def logical_value(shape: PrimitiveShape | FixedShape, raw: Any) -> Any:  # noqa: ANN401
    """Return the logical value of a raw one."""
    if shape.logical is None:
        return raw
    return logical_readers()[_key(shape)](raw, _schema(shape), None)


def raw_value(shape: PrimitiveShape | FixedShape, value: Any) -> Any:  # noqa: ANN401
    """Return the raw value of a logical one, as it is written."""
    if shape.logical is None:
        return value
    return logical_writers()[_key(shape)](value, _schema(shape))


def _key(shape: PrimitiveShape | FixedShape) -> str:
    return f"{'fixed' if isinstance(shape, FixedShape) else shape.kind}-{shape.logical}"


def _schema(shape: PrimitiveShape | FixedShape) -> dict[str, Any]:
    if isinstance(shape, PrimitiveShape):
        return {"type": shape.kind, "precision": shape.precision, "scale": shape.scale}
    return {"type": "fixed", "size": shape.size, "precision": shape.precision, "scale": shape.scale}
