"""Compatibility of schemas: rules of resolution between writer and reader, levels, and the problems of a change."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from headrace.errors import IncompatibleSchema
from headrace.serde.ports import Version
from headrace.serde.primitives import python_type
from headrace.serde.schemas import Schema
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
    short_name,
)

__all__ = [
    "NAMED",
    "PROMOTIONS",
    "Level",
    "Problem",
    "Rule",
    "as_it_is",
    "check_compatible",
    "incompatibilities",
    "is_same_name",
    "matching_branch",
    "namesake",
    "problems_of_reading",
    "promotion",
    "source_of",
]

Named: TypeAlias = RecordShape | EnumShape | FixedShape
NAMED = (RecordShape, EnumShape, FixedShape)
N = TypeVar("N", RecordShape, EnumShape, FixedShape, Named)


def as_it_is(value: Any) -> Any:  # noqa: ANN401
    """Return the value unchanged: the promotion between types that are the same in Python."""
    return value


def _as_float(value: int) -> float:
    """Return a whole number rounded to a 32-bit float, as every other reader does."""
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
    """Return True if the names match: the short names are equal, as Avro's rules say, or an alias matches."""
    return _distance(writer, reader) is not None


def namesake(writer: Named, readers: Iterable[N], *, others: Sequence[Shape] = ()) -> N | None:
    """Return the reader's type that matches the writer's: by full name, else by alias, else by short name.

    `others` are the other branches of the writer's union; a type with the full name of one of them belongs to that
    branch. If two types match equally well, none is returned: choosing one could silently give a value of the wrong
    class.
    """
    taken = {other.name for other in others if isinstance(other, NAMED)} - {writer.name}
    found = [(_distance(writer, reader), reader) for reader in readers if reader.name not in taken]
    closest = min((distance for distance, _ in found if distance is not None), default=None)
    alike = [reader for distance, reader in found if distance is not None and distance == closest]
    return alike[0] if len(alike) == 1 else None


def _distance(writer: Named, reader: Named) -> int | None:
    """Return how closely the names match, 0 for the same full name; None if they don't match."""
    ways = (
        writer.name == reader.name,
        writer.name in reader.aliases,
        short_name(writer.name) == short_name(reader.name),
        short_name(writer.name) in reader.aliases,
    )
    return ways.index(True) if True in ways else None


def promotion(writer: PrimitiveShape | FixedShape, reader: PrimitiveShape | FixedShape) -> Callable[[Any], Any] | None:
    """Return the function from values of the writer's type to values of the reader's; None if there is none.

    Logical types with the same Python class can be read as each other: times in milliseconds and in microseconds.
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
    """Return the reader's branch for a type of the writer: the first of the same type, else the first promotion.

    A named type's branch is its `namesake`. `others` are the other branches of the writer's union.
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
    """Return the writer's field with the value of a reader's field: of the same name, else of an unused alias."""
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


class Rule(StrEnum):
    """The rule that a change breaks."""

    NAME = "name mismatch"
    TYPE = "type mismatch"
    LOGICAL_TYPE = "logical type mismatch"
    DEFAULT = "field without default"
    SYMBOLS = "missing enum symbols"
    SIZE = "fixed size mismatch"
    BRANCH = "missing union branch"


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a reader can't read a writer's data."""

    field: str
    rule: Rule
    detail: str


def problems_of_reading(writer: Shape, reader: Shape) -> list[Problem]:
    """Return all reasons why the reader can't read everything that the writer may write; empty if it can."""
    return list(_Comparison().of(writer, reader, ""))


class _Comparison:
    """One comparison of two schemas. A pair of recursive records is compared only once."""

    def __init__(self, entered: Iterable[tuple[int, int]] = ()) -> None:
        self._entered = set(entered)

    def of(self, writer: Shape, reader: Shape, where: str) -> Iterator[Problem]:
        if isinstance(writer, UnionShape):
            for branch in writer.branches:
                yield from self._branch_of(writer, branch, reader, where)
            return
        if isinstance(reader, UnionShape):
            yield from self._into_union(writer, reader, where)
            return
        yield from self._alike(writer, reader, where)

    def _branch_of(self, writer: UnionShape, branch: Shape, reader: Shape, where: str) -> Iterator[Problem]:
        if isinstance(reader, UnionShape):
            yield from self._into_union(branch, reader, where, others=writer.branches)
            return
        if isinstance(branch, NAMED) and _belongs_to_other_branch(branch, writer, reader):
            yield _problem(
                where, Rule.BRANCH, f"{branch_name(branch)} is not {branch_name(reader)}, which the writer has too"
            )
            return
        for problem in self._alike(branch, reader, where):
            is_whole = problem.field == (where or "the top") and len(writer.branches) > 1
            yield Problem(problem.field, Rule.BRANCH, problem.detail) if is_whole else problem

    def _into_union(
        self, writer: Shape, reader: UnionShape, where: str, *, others: Sequence[Shape] = ()
    ) -> Iterator[Problem]:
        chosen = matching_branch(writer, reader, others=others) if isinstance(writer, RecordShape | EnumShape) else None
        if chosen is not None:
            yield from self._alike(writer, chosen, where)
            return
        if isinstance(writer, RecordShape | EnumShape):
            yield _missing(writer, reader, where)
            return
        closest: list[Problem] | None = None
        for branch in reader.branches:
            # Each branch is tried on its own: pairs that were compared for one branch are compared again for the next.
            found = list(_Comparison(self._entered).of(writer, branch, where))
            if not found:
                return
            if branch_name(branch) == branch_name(writer):
                closest = found
        if closest is not None:
            yield from closest
            return
        yield _missing(writer, reader, where)

    def _alike(self, writer: Shape, reader: Shape, where: str) -> Iterator[Problem]:
        match writer, reader:
            case ((PrimitiveShape() | FixedShape()), (PrimitiveShape() | FixedShape())):
                yield from _primitives(writer, reader, where)
            case EnumShape(), EnumShape():
                yield from _enums(writer, reader, where)
            case ArrayShape(), ArrayShape():
                yield from self.of(writer.items, reader.items, f"{where}[]")
            case MapShape(), MapShape():
                yield from self.of(writer.values, reader.values, f"{where}{{}}")
            case RecordShape(), RecordShape():
                yield from self._records(writer, reader, where)
            case _:
                yield _problem(where, Rule.TYPE, f"{branch_name(writer)} can't be read as {branch_name(reader)}")

    def _records(self, writer: RecordShape, reader: RecordShape, where: str) -> Iterator[Problem]:
        if not is_same_name(writer, reader):
            yield _problem(where, Rule.NAME, f"{writer.name} can't be read as {reader.name} without an alias")
            return
        pair = (id(writer), id(reader))
        if pair in self._entered:
            return
        self._entered.add(pair)
        yield from _ambiguities(writer, reader, where)
        for field in reader.fields:
            inside = f"{where}.{field.name}" if where else field.name
            source = source_of(field, writer, reader)
            if source is not None:
                yield from self.of(source.shape, field.shape, inside)
            elif field.default is NO_DEFAULT:
                yield _problem(inside, Rule.DEFAULT, "data may lack the field, and it has no default")


def _ambiguities(writer: RecordShape, reader: RecordShape, where: str) -> Iterator[Problem]:
    """Yield the fields that different Avro readers would fill differently.

    Data with both a field and its alias has two values for the field; a value that two fields have as alias has two
    fields.
    """
    names = {field.name for field in reader.fields}
    given: set[str] = set()
    for field in reader.fields:
        aliases = [each.name for each in writer.fields if each.name in field.aliases and each.name not in names]
        own = [each.name for each in writer.fields if each.name == field.name]
        inside = f"{where}.{field.name}" if where else field.name
        if len(own + aliases) > 1:
            yield _problem(inside, Rule.NAME, f"the data has {' and '.join(own + aliases)}, which all name this field")
        if claimed := given.intersection(aliases):
            yield _problem(inside, Rule.NAME, f"{', '.join(sorted(claimed))} is the alias of another field as well")
        given.update(aliases)


def _primitives(
    writer: PrimitiveShape | FixedShape, reader: PrimitiveShape | FixedShape, where: str
) -> Iterator[Problem]:
    if isinstance(writer, FixedShape) and isinstance(reader, FixedShape):
        if not is_same_name(writer, reader):
            yield _problem(where, Rule.NAME, f"{writer.name} can't be read as {reader.name} without an alias")
        elif writer.size != reader.size:
            yield _problem(where, Rule.SIZE, f"{writer.size} bytes can't be read as {reader.size}")
    elif branch_name(writer) != branch_name(reader) and (branch_name(writer), branch_name(reader)) not in PROMOTIONS:
        yield _problem(where, Rule.TYPE, f"{branch_name(writer)} can't be read as {branch_name(reader)}")
        return
    if _logical(writer) != _logical(reader):
        yield _problem(where, Rule.LOGICAL_TYPE, f"{_logical(writer)} can't be read as {_logical(reader)}")


def _enums(writer: EnumShape, reader: EnumShape, where: str) -> Iterator[Problem]:
    if not is_same_name(writer, reader):
        yield _problem(where, Rule.NAME, f"{writer.name} can't be read as {reader.name} without an alias")
        return
    missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if missing and reader.default is None:
        yield _problem(where, Rule.SYMBOLS, f"data may hold {', '.join(missing)}, and {reader.name} has no default")


def _belongs_to_other_branch(branch: Shape, writer: UnionShape, reader: Shape) -> bool:
    """Return True if the reader's type has the full name of another branch of the writer's union."""
    return matching_branch(branch, UnionShape((reader,)), others=writer.branches) is None and any(
        branch_name(other) == branch_name(reader) for other in writer.branches
    )


def _missing(writer: Shape, reader: UnionShape, where: str) -> Problem:
    branches = ", ".join(branch_name(branch) for branch in reader.branches)
    return _problem(where, Rule.BRANCH, f"{branch_name(writer)} is none of {branches}")


def _logical(shape: PrimitiveShape | FixedShape) -> str:
    if shape.logical == "decimal":
        return f"decimal({shape.precision}, {shape.scale})"
    return shape.logical or "a plain value"


def _problem(where: str, rule: Rule, detail: str) -> Problem:
    return Problem(where or "the top", rule, detail)


class Level(StrEnum):
    """The compatibility level of a subject.

    BACKWARD: a new version reads data of the last one. FORWARD: the last version reads data of the new one. FULL:
    both. TRANSITIVE: the same for all earlier versions, not only for the last.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether a new version is compared with all earlier versions."""
        return self.endswith("_TRANSITIVE")

    @property
    def directions(self) -> tuple[str, ...]:
        """BACKWARD, FORWARD, both or none."""
        plain = self.removesuffix("_TRANSITIVE")
        return {"NONE": (), "FULL": ("BACKWARD", "FORWARD")}.get(plain, (plain,))


def incompatibilities(new: Schema, earlier: Sequence[Version], level: Level) -> Iterator[tuple[int, str, Problem]]:
    """Yield each problem that breaks the level, with its version and direction; the latest version first."""
    relevant = sorted(earlier, key=lambda each: -each.version)
    for each in relevant if level.is_transitive else relevant[:1]:
        for direction in level.directions:
            old = each.schema.shape
            writer, reader = (old, new.shape) if direction == "BACKWARD" else (new.shape, old)
            for problem in problems_of_reading(writer, reader):
                yield each.version, direction, problem


def check_compatible(new: Schema, earlier: Sequence[Version], level: Level, *, subject: str) -> None:
    """Raise IncompatibleSchema, with every problem, if the new schema breaks the level."""
    found = list(incompatibilities(new, earlier, level))
    if not found:
        return
    version, _, first = found[0]
    lines = tuple(_line(*each) for each in found)
    raise IncompatibleSchema(subject, level, first.field, version, first.rule, lines)


def _line(version: int, direction: str, problem: Problem) -> str:
    who = f"the new schema reading version {version}"
    if direction == "FORWARD":
        who = f"version {version} reading the new schema"
    return f"field {problem.field!r}: {problem.rule} against version {version} ({direction}, {who}): {problem.detail}"
