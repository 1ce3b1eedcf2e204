"""Typed columns from framed Avro: each record is decoded in the JVM, with the schema it was written with.

Before that, the schemas are found: those that a topic was written with, the one each type is read as, and Spark's
limits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from headrace.errors import BadSchema, UnknownSubject
from headrace.serde import (
    HEADER_BYTES,
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
    frame_header,
    is_same_name,
    json_of_shape,
    matching_branch,
    problems_of_reading,
    short_name,
    source_of,
    subject_of,
    topic_versions,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "SchemaMember",
    "SchemaReading",
    "decoded",
    "is_framed_column",
    "reading_of_topic",
    "reading_of_topics",
    "reading_of_versions",
    "resolved",
    "spark_limit",
    "type_name",
    "unframed",
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
            alike = _duplicate(short_name(branch_name(branch)) for branch in shape.branches)
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
    alike = _duplicate(field.name for field in shape.fields)
    if alike:
        yield where, f"two fields are called {alike!r} but for upper and lower case"
    for field in shape.fields:
        yield from _limits(field.shape, f"{where}.{field.name}", around | {shape.name})


def _duplicate(names: Iterable[str]) -> str | None:
    """Return a name that occurs twice, ignoring case; None if there is none."""
    counted = Counter(name.lower() for name in names)
    return next((name for name, count in counted.items() if count > 1), None)


def resolved(writer: Schema, reader: Schema) -> tuple[Schema, Schema]:
    """Return both schemas with the reader's names and without aliases, so that the JVM resolves them as Headrace does.

    Avro's Java library prefers an alias to a field of the same name: a value moves to another field, or the query
    fails. Encoded bytes hold no names, so the writer's types and fields can have the reader's names. Raises BadSchema
    if two types of the writer become one type of the reader.
    """
    renamed = _Renaming(has_defaults=False).of(writer.shape, reader.shape)
    plain = _Renaming(has_defaults=True).of(reader.shape, reader.shape)
    return Schema(json_of_shape(renamed)), Schema(json_of_shape(plain))


class _Renaming:
    """One walk over a writer's schema that gives it the reader's names.

    Records are remembered, because they may be recursive; names, because each must belong to one type. A writer's
    defaults are left out: they are not used, and refer to fields by their old names.
    """

    def __init__(self, *, has_defaults: bool) -> None:
        self._has_defaults = has_defaults
        self._records: dict[tuple[int, int | None], RecordShape] = {}
        self._owners: dict[str, Shape] = {}

    def of(self, writer: Shape, reader: Shape | None) -> Shape:
        """Return the writer's shape with the reader's names; skipped parts, without a reader, keep their own."""
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
    """Return the reader's fields by the name of the writer's field that each reads."""
    found: dict[str, FieldShape] = {}
    for field in reader.fields:
        source = source_of(field, writer, reader)
        if source is not None and found.setdefault(source.name, field) is not field:
            raise BadSchema(f"{reader.name}.{field.name}", f"another field takes {source.name!r} too")
    return found


@dataclass(frozen=True, slots=True)
class SchemaMember:
    """One type: its newest schema, which reads it, and the schemas that wrote it, by id."""

    name: str
    reader: Schema
    writers: Mapping[int, Schema]

    @property
    def limit(self) -> str | None:
        """The reason why Spark has no type for it; None if it has one."""
        return spark_limit(self.reader)

    def problem_of(self, schema_id: int) -> str | None:
        """Return why the newest schema can't read what that id wrote; only levels below BACKWARD allow that."""
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
    """The types that bytes may have. Errors name the bytes by `what`. `is_single`: they have one subject."""

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
    """Return the schemas of a topic's values (or keys), of all its subjects or of `subject`; None if there are none."""
    what = f"the {part}s of topic {topic!r}"
    versions = registry.run(_versions(registry.registry, topic, part, subject))
    return reading_of_versions(what, versions, alone=subject or subject_of(topic, part)) if versions else None


def reading_of_topics(registry: BlockingRegistry, topics: Sequence[str]) -> SchemaReading | None:
    """Return the schemas of the events of these journals; None if there are none."""
    found = {topic: registry.run(_versions(registry.registry, topic, "value", None)) for topic in topics}
    versions = [version for each in found.values() for version in each]
    named = ", ".join(repr(topic) for topic, each in found.items() if each)
    return reading_of_versions(f"the events of {named}", versions) if versions else None


def reading_of_versions(what: str, versions: Sequence[Version], *, alone: str | None = None) -> SchemaReading:
    """Return how bytes of these versions are read: each subject by its last version. `alone` may be the only one."""
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
    """Return the schema that one type is read as: of several subjects, the last version with the highest id."""
    return max((group[-1] for group in groups), key=lambda version: version.schema_id).schema


def _writers(grouped: Mapping[str, Sequence[Sequence[Version]]]) -> dict[str, dict[int, Schema]]:
    """Return each type's schemas by id. A schema in the subjects of two types belongs to the type of its own name."""
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
    """Return the column names of types: short names, or full names where two short names are equal."""
    short = [short_name(name).lower() for name in grouped]
    return {
        name: short_name(name) if short.count(short_name(name).lower()) == 1 else name.replace(".", "_")
        for name in grouped
    }


_OPTIONS = {
    "mode": "FAILFAST",
    "datetimeRebaseMode": "CORRECTED",
    "enableStableIdentifiersForUnionType": "true",
    "stableIdentifierPrefixForUnionType": "",
}
_TO_THE_END = 2**31 - 1
_WRAPPED = "headrace_wrapped"


def decoded(data: Column, reading: SchemaReading, place: Column) -> Column:
    """Return framed bytes as typed values; null stays null. `place` is a text that says where a record is.

    The query fails on bytes that are not framed, and on schema ids that were not registered when it was planned; the
    error names the record. A type that Spark can't represent stays bytes.
    """
    from pyspark.sql import functions as f

    if reading.is_single:
        return _member(data, reading.members[0], reading, place)
    members = (_member(data, member, reading, place).alias(member.name) for member in reading.members)
    return f.when(data.isNotNull(), f.struct(*members))


def type_name(data: Column, reading: SchemaReading) -> Column:
    """Return the full name of the type that framed bytes were written with; null for other bytes."""
    from pyspark.sql import functions as f

    names = {schema_id: schema.name for member in reading.members for schema_id, schema in member.writers.items()}
    return _by_id(data, {schema_id: f.lit(name) for schema_id, name in names.items()})


def unframed(body: Column, writer: Schema, reader: Schema) -> Column:
    """Return the value of bytes without a header.

    Spark accepts only records at the top, so other types are wrapped in a record, which has the same encoding.
    """
    from pyspark.sql.avro.functions import from_avro

    writer, reader = resolved(writer, reader)
    if isinstance(reader.shape, RecordShape) and isinstance(writer.shape, RecordShape):
        return from_avro(body, writer.text, {**_OPTIONS, "avroSchema": reader.text})
    options = {**_OPTIONS, "avroSchema": _wrapped(reader)}
    return from_avro(body, _wrapped(writer), options)["it"]


def _body_column(data: Column) -> Column:
    """Return the bytes behind the header."""
    from pyspark.sql import functions as f

    return f.substring(data, HEADER_BYTES + 1, _TO_THE_END)


def is_framed_column(data: Column) -> Column:
    """Return a column that is true if bytes begin with the header of framed ones."""
    from pyspark.sql import functions as f

    return (f.length(data) >= HEADER_BYTES) & (f.substring(data, 1, 1) == f.lit(b"\x00"))


def _member(data: Column, member: SchemaMember, reading: SchemaReading, place: Column) -> Column:
    """Return the values of one type. Unreadable bytes fail every member, so that no query overlooks them."""
    from pyspark.sql import functions as f

    is_readable = _header(data).isin([f.lit(frame_header(each)) for each in reading.ids])
    wrong = _wrong(data, reading, place)
    if member.limit is not None:
        kept = _by_id(data, dict.fromkeys(member.writers, data))
        return kept.when(data.isNotNull() & ~is_readable, wrong)
    values = _by_id(data, {schema_id: _value(data, member, schema_id, place) for schema_id in member.writers})
    return values.when(data.isNotNull() & ~is_readable, unframed(wrong, member.reader, member.reader))


def _by_id(data: Column, choices: Mapping[int, Column]) -> Column:
    from pyspark.sql import functions as f

    header = _header(data)
    (first, found), *others = ((header == f.lit(frame_header(each)), column) for each, column in choices.items())
    return reduce(lambda chain, other: chain.when(*other), others, f.when(first, found))


def _value(data: Column, member: SchemaMember, schema_id: int, place: Column) -> Column:
    problem = member.problem_of(schema_id)
    if problem is None:
        return unframed(_body_column(data), member.writers[schema_id], member.reader)
    text = f"schema id {schema_id} can't be read as {member.name} is now, {problem}; at "
    return unframed(_failing(text, place), member.reader, member.reader)


def _wrapped(schema: Schema) -> str:
    field = {"name": "it", "type": json.loads(schema.text)}
    return json.dumps({"type": "record", "name": _WRAPPED, "fields": [field]})


def _wrong(data: Column, reading: SchemaReading, place: Column) -> Column:
    """Return a column that raises the error of unreadable bytes."""
    from pyspark.sql import functions as f

    schema_id = f.conv(f.hex(f.substring(data, 2, HEADER_BYTES - 1)), 16, 10)
    late = f" was not known for {reading.what} when this was planned; make the frame again, or name the subject; at "
    is_framed = is_framed_column(data)
    return f.when(is_framed, _failing("schema id ", schema_id, late, place)).otherwise(
        _failing(f"{reading.what} are not all framed Avro: not the record at ", place)
    )


def _failing(*parts: str | Column) -> Column:
    """Return a column that raises an error when it is evaluated. Its type is binary, because casts are limited."""
    from pyspark.sql import functions as f

    text = f.concat(*(f.lit(part) if isinstance(part, str) else part for part in parts))
    return f.raise_error(text).cast("binary")


def _header(data: Column) -> Column:
    from pyspark.sql import functions as f

    return f.substring(data, 1, HEADER_BYTES)
