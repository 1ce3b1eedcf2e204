"""Shapes: the tree of an Avro schema, from which codecs are compiled, with the Python classes bound to it.

Where no class is bound, values are generic records and enum symbols.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

__all__ = [
    "NO_DEFAULT",
    "ArrayShape",
    "EnumShape",
    "FieldShape",
    "FixedShape",
    "GenericRecord",
    "MapShape",
    "PrimitiveShape",
    "RecordShape",
    "Shape",
    "Symbol",
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
    """A primitive type, with its logical type if that is known.

    `choices` are the values of a `Literal`; the schema does not contain them.
    """

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    choices: tuple[Any, ...] = ()


@dataclass(eq=False, slots=True)
class FixedShape:
    """A named type of a fixed number of bytes."""

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(eq=False, slots=True)
class EnumShape:
    """An enum. `default` is the symbol that a reader uses for an unknown symbol."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    bound: type[enum.Enum] | None = None


@dataclass(eq=False, slots=True)
class ArrayShape:
    """An array. `make` converts a list to the collection of the class's field."""

    items: Shape
    make: Callable[[Iterable[Any]], Any] = list


@dataclass(eq=False, slots=True)
class MapShape:
    """A map from text to values."""

    values: Shape


@dataclass(eq=False, slots=True)
class UnionShape:
    """A union of several types."""

    branches: tuple[Shape, ...]


@dataclass(eq=False, slots=True)
class FieldShape:
    """A field of a record. `default` is in the form of schemas; `make_default` makes the class's own default."""

    name: str
    shape: Shape
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    default: Any = NO_DEFAULT
    make_default: Callable[[], Any] | None = None


@dataclass(eq=False, slots=True)
class RecordShape:
    """A record. It may be recursive, so `fields` are filled in after it was made."""

    name: str
    fields: list[FieldShape] = field(default_factory=list, repr=False)
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    bound: type[Any] | None = None


Shape: TypeAlias = PrimitiveShape | FixedShape | EnumShape | ArrayShape | MapShape | UnionShape | RecordShape


def branch_name(shape: Shape) -> str:
    """Return the name of a shape as a branch of a union: its own name, or its type."""
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
    """Return True if the union is of null and one other type."""
    return len(shape.branches) == 2 and any(branch_name(branch) == "null" for branch in shape.branches)


def short_name(name: str) -> str:
    """Return the name without its namespace."""
    return name.rpartition(".")[2]


def has_named_branches(shape: Shape, seen: set[int] | None = None) -> bool:
    """Return True if a union in the shape has a branch of a named type; `seen` are shapes that were searched before."""
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


class GenericRecord(Mapping[str, Any]):
    """A record that was read without a class: a mapping of its fields, with its full name.

    Two are equal if their names and fields are. It can be written again, unchanged or changed by `with_fields`.
    """

    __slots__ = ("_fields", "name")

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name = name
        self._fields = dict(fields)

    def __getitem__(self, field: str) -> Any:  # noqa: ANN401
        return self._fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GenericRecord):
            return self.name == other.name and self._fields == other._fields
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def with_fields(self, **changes: Any) -> GenericRecord:  # noqa: ANN401
        """Return a copy with some fields changed."""
        return GenericRecord(self.name, {**self._fields, **changes})

    def __repr__(self) -> str:
        return f"GenericRecord({self.name!r}, {self._fields!r})"


class Symbol(str):
    """A symbol of an enum that was read without a class: text, with its enum's full name."""

    __slots__ = ("enum",)
    enum: str

    def __new__(cls, enum: str, symbol: str) -> Symbol:
        """Make a symbol of an enum."""
        made = super().__new__(cls, symbol)
        made.enum = enum
        return made

    def __reduce__(self) -> tuple[type[Symbol], tuple[str, str]]:
        return Symbol, (self.enum, str(self))
