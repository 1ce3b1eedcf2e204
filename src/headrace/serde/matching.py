"""Avro's rules on which types go together: names, promotions, branches of unions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from headrace.serde.logical import python_type
from headrace.serde.shapes import (
    ArrayShape,
    EnumShape,
    FieldShape,
    FixedShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
    short_name,
)

__all__ = ["NAMED", "PROMOTIONS", "as_it_is", "is_same_name", "matching_branch", "namesake", "promotion", "source_of"]

Named: TypeAlias = RecordShape | EnumShape | FixedShape
NAMED = (RecordShape, EnumShape, FixedShape)
N = TypeVar("N", RecordShape, EnumShape, FixedShape, Named)


def as_it_is(value: Any) -> Any:  # noqa: ANN401
    """Return the value: the promotion between types that are the same to Python."""
    return value


def _as_float(value: int) -> float:
    """Return the number that a float of 32 bits has for a whole one, as every other reader does."""
    return float(_FLOAT.unpack(_FLOAT.pack(value))[0])


_FLOAT = struct.Struct("<f")

PROMOTIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("int", "long"): as_it_is,
    ("int", "float"): _as_float,
    ("int", "double"): float,
    ("long", "float"): _as_float,
    ("long", "double"): float,
    ("float", "double"): as_it_is,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): lambda value: value.decode(),
}


def is_same_name(writer: Named, reader: Named) -> bool:
    """Say whether the reader's type may be the writer's: by unqualified name, as Avro has it, or through an alias."""
    return _distance(writer, reader) is not None


def namesake(writer: Named, readers: Iterable[N], *, others: Sequence[Shape] = ()) -> N | None:
    """Return the one of the readers' types that the writer's is: by full name, else by alias, else by short name.

    A type that one of the `others`, the further branches of the writer's union, has the full name of is theirs. Two
    that are equally good are none: taking one of them could give a value of the wrong class without a word.
    """
    taken = {other.name for other in others if isinstance(other, NAMED)} - {writer.name}
    found = [(_distance(writer, reader), reader) for reader in readers if reader.name not in taken]
    closest = min((distance for distance, _ in found if distance is not None), default=None)
    alike = [reader for distance, reader in found if distance is not None and distance == closest]
    return alike[0] if len(alike) == 1 else None


def _distance(writer: Named, reader: Named) -> int | None:
    """Return how far apart the names are, 0 for the same full name; None if they have nothing in common."""
    ways = (
        writer.name == reader.name,
        writer.name in reader.aliases,
        short_name(writer.name) == short_name(reader.name),
        short_name(writer.name) in reader.aliases,
    )
    return ways.index(True) if True in ways else None


def promotion(writer: PrimitiveShape | FixedShape, reader: PrimitiveShape | FixedShape) -> Callable[[Any], Any] | None:
    """Return what turns values of the one into values of the other; None if nothing may.

    Values are compared as Python sees them: a time in milliseconds is as good as one in microseconds.
    """
    if isinstance(writer, FixedShape) or isinstance(reader, FixedShape):
        alike = isinstance(writer, FixedShape) and isinstance(reader, FixedShape) and is_same_name(writer, reader)
        if alike and writer.size == reader.size and writer.logical == reader.logical:  # type: ignore[union-attr]
            return as_it_is
        return as_it_is if writer.logical == reader.logical == "decimal" else None
    if writer.logical or reader.logical:
        is_zoned = _is_local(writer) == _is_local(reader)
        same = bool(writer.logical and reader.logical) and python_type(writer) is python_type(reader)
        return as_it_is if same and is_zoned else None
    return as_it_is if writer.kind == reader.kind else PROMOTIONS.get((writer.kind, reader.kind))


def matching_branch(writer: Shape, reader: UnionShape, *, others: Sequence[Shape] = ()) -> Shape | None:
    """Return the reader's branch for what the writer wrote: the first that is the same, else the first it goes into.

    Of named types it is the `namesake`; `others` are the further branches of the writer's union.
    """
    alike = [branch for branch in reader.branches if _is_alike(writer, branch)]
    if alike and isinstance(writer, NAMED):
        found = namesake(writer, [branch for branch in alike if isinstance(branch, NAMED)], others=others)
        if found is not None or not isinstance(writer, FixedShape):
            return found
    if alike:  # bytes of a fixed size are the same under any name
        return alike[0]
    for branch in reader.branches:
        if _is_primitive(writer) and _is_primitive(branch) and promotion(writer, branch):  # type: ignore[arg-type]
            return branch
    return None


def source_of(field: FieldShape, writer: RecordShape, reader: RecordShape) -> FieldShape | None:
    """Return the field of the writer that the reader's takes its value from: its namesake, else a free one by alias."""
    by_name = {each.name: each for each in writer.fields}
    if field.name in by_name:
        return by_name[field.name]
    taken = {each.name for each in reader.fields}
    return next((by_name[alias] for alias in field.aliases if alias in by_name and alias not in taken), None)


def _is_alike(writer: Shape, reader: Shape) -> bool:
    match writer, reader:
        case PrimitiveShape(), PrimitiveShape():
            return writer.kind == reader.kind and promotion(writer, reader) is not None
        case FixedShape(), FixedShape():
            return promotion(writer, reader) is not None
        case (ArrayShape(), ArrayShape()) | (MapShape(), MapShape()):
            return True
        case RecordShape(), RecordShape():
            return is_same_name(writer, reader)
        case EnumShape(), EnumShape():
            return is_same_name(writer, reader)
    return False


def _is_primitive(shape: Shape) -> bool:
    return isinstance(shape, PrimitiveShape | FixedShape)


def _is_local(shape: PrimitiveShape) -> bool:
    return str(shape.logical).startswith("local-")
