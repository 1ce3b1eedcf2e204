"""What an Avro schema says, as a tree that all else is compiled from; classes are bound to it where they are known."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

__all__ = [
    "NO_DEFAULT",
    "ArrayShape",
    "EnumShape",
    "FieldShape",
    "FixedShape",
    "MapShape",
    "PrimitiveShape",
    "RecordShape",
    "Shape",
    "UnionShape",
    "branch_name",
    "has_named_branches",
    "is_optional",
    "short_name",
]


class _NoDefault(enum.Enum):
    NO_DEFAULT = "no default"


NO_DEFAULT: Final = _NoDefault.NO_DEFAULT


@dataclass(frozen=True, slots=True)
class PrimitiveShape:
    """A primitive type, with its logical type if it has one that is understood.

    `choices`, where there are any, are the values that a `Literal` names; schemas can't tell them.
    """

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    choices: tuple[Any, ...] = ()


@dataclass(eq=False, slots=True)
class FixedShape:
    """So many bytes, under a name."""

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(eq=False, slots=True)
class EnumShape:
    """One of some symbols; `default` is what a reader takes for a symbol it does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    bound: type[enum.Enum] | None = None


@dataclass(eq=False, slots=True)
class ArrayShape:
    """A list; `make` turns one into the collection that the class wants."""

    items: Shape
    make: Callable[[Iterable[Any]], Any] = list


@dataclass(eq=False, slots=True)
class MapShape:
    """Values by text."""

    values: Shape


@dataclass(eq=False, slots=True)
class UnionShape:
    """One of several."""

    branches: tuple[Shape, ...]


@dataclass(eq=False, slots=True)
class FieldShape:
    """A field of a record. `default` is in the form that schemas use; `make_default` makes the class's own."""

    name: str
    shape: Shape
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    default: Any = NO_DEFAULT
    make_default: Callable[[], Any] | None = None


@dataclass(eq=False, slots=True)
class RecordShape:
    """Named fields. It may hold itself, so `fields` are filled in after it was made."""

    name: str
    fields: list[FieldShape] = field(default_factory=list, repr=False)
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    bound: type[Any] | None = None


Shape: TypeAlias = PrimitiveShape | FixedShape | EnumShape | ArrayShape | MapShape | UnionShape | RecordShape


def branch_name(shape: Shape) -> str:
    """Return what a shape is called as a branch of a union: its name, or its type."""
    match shape:
        case PrimitiveShape():
            return shape.kind
        case ArrayShape():
            return "array"
        case MapShape():
            return "map"
        case UnionShape():
            return "union"
    return shape.name


def is_optional(shape: UnionShape) -> bool:
    """Say whether null is the only other side of the union."""
    return len(shape.branches) == 2 and any(branch_name(branch) == "null" for branch in shape.branches)


def short_name(name: str) -> str:
    """Return the name without its namespace."""
    return name.rpartition(".")[2]


def has_named_branches(shape: Shape, seen: set[int] | None = None) -> bool:
    """Say whether any union in the shape has a branch that is known by its name; `seen` are shapes that have none."""
    seen = set() if seen is None else seen
    if id(shape) in seen:
        return False
    seen.add(id(shape))
    match shape:
        case ArrayShape():
            return has_named_branches(shape.items, seen)
        case MapShape():
            return has_named_branches(shape.values, seen)
        case RecordShape():
            return any(has_named_branches(each.shape, seen) for each in shape.fields)
        case UnionShape():
            named = any(isinstance(branch, RecordShape | EnumShape | FixedShape) for branch in shape.branches)
            return named or any(has_named_branches(branch, seen) for branch in shape.branches)
    return False
