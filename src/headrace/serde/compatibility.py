"""Whether data of one schema can be read with another, and if not: which field, which rule, why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.serde.matching import NAMED, PROMOTIONS, is_same_name, matching_branch, source_of
from headrace.serde.shapes import (
    NO_DEFAULT,
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

__all__ = ["Problem", "Rule", "problems_of_reading"]


class Rule(StrEnum):
    """What a change can break."""

    NAME = "name mismatch"
    TYPE = "type mismatch"
    LOGICAL_TYPE = "logical type mismatch"
    DEFAULT = "field without default"
    SYMBOLS = "missing enum symbols"
    SIZE = "fixed size mismatch"
    BRANCH = "missing union branch"


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a reader could not take a writer's data."""

    field: str
    rule: Rule
    detail: str


def problems_of_reading(writer: Shape, reader: Shape) -> list[Problem]:
    """Return all that keeps the reader from reading whatever the writer may write; empty when nothing does."""
    return list(_Comparison().of(writer, reader, ""))


class _Comparison:
    """One walk; pairs of records that are being compared already are not entered again."""

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
        if isinstance(branch, NAMED) and _is_anothers(branch, writer, reader):
            yield _problem(
                where, Rule.BRANCH, f"{branch_name(branch)} is not {branch_name(reader)}, which may come too"
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
            # Each branch is tried on its own; what was entered in vain must be entered again for the next.
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
    """Name the fields that different readers of Avro would fill differently, or not at all.

    Data with both a field and its alias has two values for it, and a value that two aliases name has two places.
    """
    names = {field.name for field in reader.fields}
    given: set[str] = set()
    for field in reader.fields:
        aliases = [each.name for each in writer.fields if each.name in field.aliases and each.name not in names]
        own = [each.name for each in writer.fields if each.name == field.name]
        inside = f"{where}.{field.name}" if where else field.name
        if len(own + aliases) > 1:
            yield _problem(inside, Rule.NAME, f"the data has {' and '.join(own + aliases)}, and all are this field")
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
        yield _problem(where, Rule.SYMBOLS, f"{', '.join(missing)} may come, and {reader.name} has no default")


def _is_anothers(branch: Shape, writer: UnionShape, reader: Shape) -> bool:
    """Say whether the reader's type has the full name of another branch of the writer's union."""
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
