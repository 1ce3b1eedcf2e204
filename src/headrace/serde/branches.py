"""Which branch of a union a value belongs to: decided by its class, never by trying."""

from __future__ import annotations

from typing import Any

from headrace.serde.classes import instance_class
from headrace.serde.generic import GenericRecord, Symbol
from headrace.serde.logical import python_type
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
)

__all__ = ["chosen_branch", "classes_of"]


def chosen_branch(shape: UnionShape, value: Any) -> Shape:  # noqa: ANN401
    """Return the branch that a value belongs to: by its very class first, then by what it is a kind of."""
    for branch in shape.branches:
        if type(value) in classes_of(branch) and _is_called(branch, value):
            return branch
    for branch in shape.branches:
        if isinstance(value, classes_of(branch)) and _is_called(branch, value):
            return branch
    wide = [b for b in shape.branches if branch_name(b) in ("float", "double")]
    if wide and isinstance(value, int) and not isinstance(value, bool):
        return wide[0]
    raise TypeError(f"{type(value).__name__} is none of {', '.join(branch_name(b) for b in shape.branches)}")


def _is_called(branch: Shape, value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, GenericRecord):
        return branch_name(branch) == value.name
    if isinstance(value, Symbol):
        return branch_name(branch) == value.enum
    return not isinstance(value, bool) or branch_name(branch) == "boolean"


def classes_of(shape: Shape) -> tuple[type, ...]:
    """Return the classes whose instances the shape takes."""
    match shape:
        case PrimitiveShape() | FixedShape():
            return (python_type(shape),)
        case EnumShape():
            return (shape.bound,) if shape.bound else (Symbol, str)
        case ArrayShape():
            return (list, tuple, set, frozenset)
        case MapShape():
            return (dict,)
        case RecordShape():
            return (instance_class(shape.bound),) if shape.bound else (GenericRecord, dict)
    return ()
