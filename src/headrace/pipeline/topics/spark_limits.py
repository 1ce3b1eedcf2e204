"""What an Avro schema may say that a Spark column can't hold, found before a query is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from headrace.serde import Schema
from headrace.serde.shapes import (
    ArrayShape,
    FixedShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
    branch_name,
    short_name,
)

__all__ = ["spark_limit"]

_MAX_PRECISION = 38


def spark_limit(schema: Schema) -> str | None:
    """Return why Spark has no type for the schema, naming the field; None if it has one."""
    found = next(_limits(schema.shape, schema.name, frozenset()), None)
    return None if found is None else f"Spark has no type for {found[0]}: {found[1]}"


def _limits(shape: Shape, where: str, around: frozenset[str]) -> Iterator[tuple[str, str]]:
    match shape:
        case RecordShape():
            yield from _record_limits(shape, where, around)
        case ArrayShape():
            yield from _limits(shape.items, f"{where}[]", around)
        case MapShape():
            yield from _limits(shape.values, f"{where}{{}}", around)
        case UnionShape():
            alike = _twice(short_name(branch_name(branch)) for branch in shape.branches)
            if alike:
                yield where, f"two types of a union are called {alike!r}"
            for branch in shape.branches:
                yield from _limits(branch, where, around)
        case PrimitiveShape() | FixedShape() if shape.logical == "decimal" and shape.precision > _MAX_PRECISION:
            yield where, f"a decimal has at most {_MAX_PRECISION} digits, not {shape.precision}"


def _record_limits(shape: RecordShape, where: str, around: frozenset[str]) -> Iterator[tuple[str, str]]:
    if shape.name in around:
        yield where, f"the record {shape.name!r} holds itself"
        return
    alike = _twice(field.name for field in shape.fields)
    if alike:
        yield where, f"two fields are called {alike!r} but for upper and lower case"
    for field in shape.fields:
        yield from _limits(field.shape, f"{where}.{field.name}", around | {shape.name})


def _twice(names: Iterable[str]) -> str | None:
    """Return a name that is there twice, for somebody who can't tell upper from lower case."""
    counted = Counter(name.lower() for name in names)
    return next((name for name, count in counted.items() if count > 1), None)
