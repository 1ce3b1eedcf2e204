"""Finding the field that made a write fail. Slow, and only called when one did."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.serde.avro_library import prepared, writer
from headrace.serde.branches import chosen_branch
from headrace.serde.classes import instance_class
from headrace.serde.encoding import encoder_of
from headrace.serde.rendering import json_of_shape
from headrace.serde.shapes import NO_DEFAULT, ArrayShape, MapShape, RecordShape, Shape, UnionShape, branch_name

__all__ = ["blame"]


def blame(shape: Shape, value: Any, error: Exception) -> tuple[str, str]:  # noqa: ANN401
    """Return the path of the innermost part that can't be written, and why."""
    for name, part_shape, part in _parts(shape, value):
        problem = _problem(part_shape, part)
        if problem is not None:
            inner, reason = blame(part_shape, part, problem)
            return (name if inner == branch_name(part_shape) else f"{name}.{inner}"), reason
    return branch_name(shape), str(error) or type(error).__name__


def _problem(shape: Shape, value: Any) -> Exception | None:  # noqa: ANN401
    if value is _MISSING:
        return AttributeError("it is missing")
    try:
        writer()(io.BytesIO(), prepared(json_of_shape(shape)), encoder_of(shape)(value))
    except Exception as error:  # the caller already failed with it and raises
        return error
    return None


def _parts(shape: Shape, value: Any) -> Iterator[tuple[str, Shape, Any]]:  # noqa: ANN401
    match shape:
        case RecordShape() if value is not _MISSING and isinstance(value, _class_of(shape)):
            for field in shape.fields:
                if not _has_keys(shape) or field.name in value or field.default is NO_DEFAULT:
                    yield field.name, field.shape, _value(shape, field.name, value)
        case ArrayShape() if isinstance(value, list | tuple | set | frozenset):
            for index, each in enumerate(value):
                yield f"[{index}]", shape.items, each
        case MapShape() if isinstance(value, Mapping):
            for key, each in value.items():
                yield f"[{key!r}]", shape.values, each
        case UnionShape():
            yield from _branch_parts(shape, value)


def _branch_parts(shape: UnionShape, value: Any) -> Iterator[tuple[str, Shape, Any]]:  # noqa: ANN401
    try:
        branch = chosen_branch(shape, value)
    except TypeError:
        return
    yield from _parts(branch, value)


_MISSING = object()


def _value(shape: RecordShape, name: str, value: Any) -> Any:  # noqa: ANN401
    return value.get(name, _MISSING) if _has_keys(shape) else getattr(value, name, _MISSING)


def _class_of(shape: RecordShape) -> type[Any]:
    return Mapping if shape.bound is None else instance_class(shape.bound)


def _has_keys(shape: RecordShape) -> bool:
    return _class_of(shape) in (Mapping, dict)
