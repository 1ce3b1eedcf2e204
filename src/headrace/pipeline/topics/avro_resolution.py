"""A writer's schema in the reader's words, so that the JVM resolves the two as Headrace does.

Avro's Java library lets an alias win over a field's own namesake: a value moves to another field, or the query fails.
The bytes say nothing of names, so the writer's types and fields are called here as the reader calls those that take
them, and aliases are left out of both.
"""

from __future__ import annotations

from headrace.errors import BadSchema
from headrace.serde import Schema
from headrace.serde.matching import is_same_name, matching_branch, source_of
from headrace.serde.rendering import json_of_shape
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FieldShape,
    FixedShape,
    MapShape,
    RecordShape,
    Shape,
    UnionShape,
)

__all__ = ["resolved"]


def resolved(writer: Schema, reader: Schema) -> tuple[Schema, Schema]:
    """Return both, without aliases. Raises BadSchema where two types of the writer go into one of the reader."""
    renamed = _Renaming(has_defaults=False).of(writer.shape, reader.shape)
    plain = _Renaming(has_defaults=True).of(reader.shape, reader.shape)
    return Schema(json_of_shape(renamed)), Schema(json_of_shape(plain))


class _Renaming:
    """One walk. Records are remembered, because they may hold themselves; names, because each must be one type's.

    A writer's defaults are of no use, and would call fields by their old names.
    """

    def __init__(self, *, has_defaults: bool) -> None:
        self._has_defaults = has_defaults
        self._records: dict[tuple[int, int | None], RecordShape] = {}
        self._owners: dict[str, Shape] = {}

    def of(self, writer: Shape, reader: Shape | None) -> Shape:
        """Return the writer's shape in the reader's names; without a reader, for what is skipped, in its own."""
        if isinstance(reader, UnionShape) and not isinstance(writer, UnionShape):
            reader = matching_branch(writer, reader)
        match writer:
            case UnionShape():
                return UnionShape(tuple(self.of(branch, reader) for branch in writer.branches))
            case ArrayShape():
                return ArrayShape(self.of(writer.items, reader.items if isinstance(reader, ArrayShape) else None))
            case MapShape():
                return MapShape(self.of(writer.values, reader.values if isinstance(reader, MapShape) else None))
            case EnumShape():
                name = self._name(writer, reader)
                return EnumShape(name, writer.symbols, default=writer.default)
            case FixedShape():
                name = self._name(writer, reader)
                return FixedShape(name, writer.size, (), writer.logical, writer.precision, writer.scale)
            case RecordShape():
                return self._record(writer, reader)
        return writer

    def _record(self, writer: RecordShape, reader: Shape | None) -> RecordShape:
        pair = (id(writer), None if reader is None else id(reader))
        if pair not in self._records:
            made = self._records[pair] = RecordShape(self._name(writer, reader))
            takers = _takers(writer, reader) if isinstance(reader, RecordShape) else {}
            made.fields = [self._field(field, takers.get(field.name)) for field in writer.fields]
        return self._records[pair]

    def _field(self, field: FieldShape, taker: FieldShape | None) -> FieldShape:
        shape = self.of(field.shape, taker.shape if taker else None)
        default = field.default if self._has_defaults else NO_DEFAULT
        return FieldShape(taker.name if taker else field.name, shape, default=default)

    def _name(self, writer: RecordShape | EnumShape | FixedShape, reader: Shape | None) -> str:
        is_named = isinstance(reader, RecordShape | EnumShape | FixedShape) and is_same_name(writer, reader)
        name: str = reader.name if is_named else writer.name  # type: ignore[union-attr]
        if self._owners.setdefault(name, writer) is not writer:
            raise BadSchema(name, f"two types would be read as it, {writer.name!r} one of them")
        return name


def _takers(writer: RecordShape, reader: RecordShape) -> dict[str, FieldShape]:
    """Return the reader's fields by the name of the writer's that they take."""
    found: dict[str, FieldShape] = {}
    for field in reader.fields:
        source = source_of(field, writer, reader)
        if source is not None and found.setdefault(source.name, field) is not field:
            raise BadSchema(f"{reader.name}.{field.name}", f"another field takes {source.name!r} too")
    return found
