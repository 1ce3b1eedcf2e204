"""Which schemas framed bytes were written with, which one each is read as, and what a Spark column can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import BadSchema, UnknownSubject
from headrace.serde import (
    NO_DEFAULT,
    ArrayShape,
    BlockingRegistry,
    EnumShape,
    FieldShape,
    FixedShape,
    MapShape,
    Part,
    PrimitiveShape,
    RecordShape,
    Registry,
    Schema,
    Shape,
    UnionShape,
    Version,
    branch_name,
    is_same_name,
    json_of_shape,
    matching_branch,
    problems_of_reading,
    short_name,
    source_of,
    subject_of,
    topic_versions,
)

__all__ = [
    "SchemaMember",
    "SchemaReading",
    "reading_of_topic",
    "reading_of_topics",
    "reading_of_versions",
    "resolved",
    "spark_limit",
]

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


@dataclass(frozen=True, slots=True)
class SchemaMember:
    """One type: its newest schema, and all that were written under it, by id."""

    name: str
    reader: Schema
    writers: Mapping[int, Schema]

    @property
    def limit(self) -> str | None:
        """Why Spark has no type for it, if that is so."""
        return spark_limit(self.reader)

    def problem_of(self, schema_id: int) -> str | None:
        """Return why the newest schema can't read what that one wrote; only levels below BACKWARD allow that."""
        found = problems_of_reading(self.writers[schema_id].shape, self.reader.shape)
        if found:
            return f"field {found[0].field!r}: {found[0].rule}: {found[0].detail}"
        try:
            resolved(self.writers[schema_id], self.reader)
        except BadSchema as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class SchemaReading:
    """The types that bytes may be of. `what` is what errors call the bytes; `is_single` where they have one subject."""

    what: str
    members: Sequence[SchemaMember]
    is_single: bool

    @property
    def ids(self) -> Sequence[int]:
        """All ids, sorted."""
        return sorted(schema_id for member in self.members for schema_id in member.writers)


def reading_of_topic(
    registry: BlockingRegistry, topic: str, part: Part = "value", *, subject: str | None = None
) -> SchemaReading | None:
    """Return how a topic's values (or keys) are read, by its subjects or by the one that is named; None without any."""
    what = f"the {part}s of topic {topic!r}"
    versions = registry.run(_versions(registry.registry, topic, part, subject))
    return reading_of_versions(what, versions, alone=subject or subject_of(topic, part)) if versions else None


def reading_of_topics(registry: BlockingRegistry, topics: Sequence[str]) -> SchemaReading | None:
    """Return how the events of these journals are read; None when no schema is there."""
    found = {topic: registry.run(_versions(registry.registry, topic, "value", None)) for topic in topics}
    versions = [version for each in found.values() for version in each]
    named = ", ".join(repr(topic) for topic, each in found.items() if each)
    return reading_of_versions(f"the events of {named}", versions) if versions else None


def reading_of_versions(what: str, versions: Sequence[Version], *, alone: str | None = None) -> SchemaReading:
    """Return how bytes of these versions are read: those of a subject as its last one. `alone` can have one type."""
    by_subject: dict[str, list[Version]] = {}
    for version in sorted(versions, key=lambda each: (each.subject, each.version)):
        by_subject.setdefault(version.subject, []).append(version)
    grouped: dict[str, list[list[Version]]] = {}
    for group in by_subject.values():
        grouped.setdefault(group[-1].schema.name, []).append(group)
    writers = _writers(grouped)
    names = _names(grouped)
    members = [SchemaMember(names[name], _newest(groups), writers[name]) for name, groups in sorted(grouped.items())]
    return SchemaReading(what, members, is_single=set(by_subject) == {alone})


async def _versions(registry: Registry, topic: str, part: Part, subject: str | None) -> Sequence[Version]:
    if subject is None:
        return await topic_versions(registry, topic, part)
    try:
        return await registry.versions(subject)
    except UnknownSubject:
        return ()


def _newest(groups: Sequence[Sequence[Version]]) -> Schema:
    """Return what one type is read as; of several subjects, the last version that came in last."""
    return max((group[-1] for group in groups), key=lambda version: version.schema_id).schema


def _writers(grouped: Mapping[str, Sequence[Sequence[Version]]]) -> dict[str, dict[int, Schema]]:
    """Return each type's schemas by id. One that is in two types' subjects belongs to the type of its name."""
    owners: dict[int, tuple[str, Schema]] = {}
    for name, groups in grouped.items():
        for version in (each for group in groups for each in group):
            if version.schema_id not in owners or version.schema.name == name:
                owners[version.schema_id] = (name, version.schema)
    found: dict[str, dict[int, Schema]] = {name: {} for name in grouped}
    for schema_id, (name, schema) in sorted(owners.items()):
        found[name][schema_id] = schema
    return found


def _names(grouped: Mapping[str, object]) -> dict[str, str]:
    """Return what the types are called as columns: short names, or whole ones where two would be called alike."""
    short = [short_name(name).lower() for name in grouped]
    return {
        name: short_name(name) if short.count(short_name(name).lower()) == 1 else name.replace(".", "_")
        for name in grouped
    }
