"""Avro data as readable JSON: records are {"type": name, "data": {…}}, at every depth.

A union of null and one other type is written as the plain value; in other unions, values that are not records are
written as {"type": branch, "data": …} too. Bytes are base64; times, decimals and UUIDs are text; so are NaN and the
infinities, which JSON lacks.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from headrace.serde.encoding import chosen_branch
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
    branch_name,
    is_optional,
)

__all__ = ["json_of_datum"]


def json_of_datum(shape: Shape, datum: Any) -> Any:  # noqa: ANN401
    """Return data of the Avro reader, or for the writer, as JSON values."""
    match shape:
        case PrimitiveShape() | FixedShape():
            return _primitive(shape, datum)
        case EnumShape():
            return str(datum)
        case ArrayShape():
            return [json_of_datum(shape.items, each) for each in datum]
        case MapShape():
            return {key: json_of_datum(shape.values, each) for key, each in datum.items()}
        case UnionShape():
            return _union(shape, datum)
        case RecordShape():
            values = {field.name: json_of_datum(field.shape, datum[field.name]) for field in shape.fields}
            return {"type": shape.name, "data": values}


def _union(shape: UnionShape, datum: Any) -> Any:  # noqa: ANN401
    branch, inner = _branch_of(shape, datum)
    shown = json_of_datum(branch, inner)
    if is_optional(shape) or inner is None or isinstance(branch, RecordShape):
        return shown
    return {"type": branch_name(branch), "data": shown}


def _branch_of(shape: UnionShape, datum: Any) -> tuple[Shape, Any]:  # noqa: ANN401
    if isinstance(datum, tuple):
        return next(branch for branch in shape.branches if branch_name(branch) == datum[0]), datum[1]
    return chosen_branch(shape, datum), datum


def _primitive(shape: PrimitiveShape | FixedShape, datum: Any) -> Any:  # noqa: ANN401
    kind = python_type(shape)
    if kind is bytes:
        return base64.b64encode(datum).decode()
    if kind is float:
        return _number(float(datum))
    if shape.logical is None:
        return datum
    return datum.isoformat() if hasattr(datum, "isoformat") else str(datum)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
