"""Framed Avro from columns: a schema is found or inferred and registered, and the JVM encodes fitted columns."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import BadArgument, UnknownSubject
from headrace.pipeline.spark.session import provide_avro
from headrace.pipeline.topics.avro_read import unframed
from headrace.serde import (
    NO_DEFAULT,
    ArrayShape,
    BlockingRegistry,
    EnumShape,
    FieldShape,
    FixedShape,
    KeyCodec,
    MapShape,
    Part,
    PrimitiveShape,
    RecordShape,
    Schema,
    Shape,
    UnionShape,
    branch_name,
    frame_header,
    json_of_shape,
    latest_version,
    schema_of,
    subject_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["ColumnEncoding", "encoded", "fitted", "inferred_schema"]

_PRIMITIVES: dict[str, Any] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
    "time(6)": {"type": "long", "logicalType": "time-micros"},
}


def inferred_schema(kind: DataType, topic: str, part: str) -> Schema:
    """Return a schema for a column; records are named after the topic. Raises BadArgument, BadSchema."""
    words = re.findall(r"[A-Za-z0-9]+", f"{topic} {part}" if part == "key" else topic)
    name = "".join(word[0].upper() + word[1:] for word in words) or "Record"
    return Schema(_json(kind, name if name[0].isalpha() else f"T{name}", part))


def _json(kind: Any, name: str, where: str) -> Any:  # noqa: ANN401
    match kind.typeName():
        case "struct":
            fields = [_inferred_field(each, f"{name}_{each.name}", f"{where}.{each.name}") for each in kind.fields]
            return {"type": "record", "name": name, "fields": fields}
        case "array":
            return {"type": "array", "items": _nullable(kind.elementType, kind.containsNull, name, f"{where}[]")}
        case "map" if kind.keyType.simpleString() == "string":
            return {"type": "map", "values": _nullable(kind.valueType, kind.valueContainsNull, name, f"{where}{{}}")}
        case "decimal":
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if kind.simpleString() not in _PRIMITIVES:
        raise BadArgument(f"column {where}", kind.simpleString(), "Avro has no such type; cast it, or leave it out")
    return _PRIMITIVES[kind.simpleString()]


def _inferred_field(field: Any, name: str, where: str) -> dict[str, Any]:  # noqa: ANN401
    default = {"default": None} if field.nullable else {}
    return {"name": field.name, "type": _nullable(field.dataType, field.nullable, name, where), **default}


def _nullable(kind: Any, is_nullable: bool, name: str, where: str) -> Any:  # noqa: ANN401
    inner = _json(kind, name, where)
    return ["null", inner] if is_nullable else inner


# By target type, the Spark types that can be cast to it without loss.
_WIDER = {
    "int": ("tinyint", "smallint", "int"),
    "bigint": ("tinyint", "smallint", "int", "bigint"),
    "double": ("float", "double", "tinyint", "smallint", "int"),
}
_PLAIN = {
    "null": "void",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "time-micros": "time(6)",
    "uuid": "string",
}
_UUID = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
_MILLIS = ("timestamp-millis", "local-timestamp-millis")


def fitted(column: Column, kind: DataType, shape: Shape, where: str) -> Column:
    """Return the column in the form that Spark's Avro writer needs for the schema. Raises BadArgument for a field.

    Fields that the frame lacks get their defaults; fields that the schema lacks are refused.
    """
    match shape:
        case RecordShape():
            return _record(column, kind, shape, where)
        case ArrayShape():
            return _array(column, kind, shape, where)
        case MapShape():
            return _map(column, kind, shape, where)
        case UnionShape():
            return fitted(column, kind, _only_branch(shape, where), where)
        case PrimitiveShape() | FixedShape() if shape.logical == "decimal":
            return _decimal(column, kind, shape, where)
        case EnumShape() | FixedShape():
            return _plain(column, kind, "string" if isinstance(shape, EnumShape) else "binary", where)
        case PrimitiveShape():
            return _primitive(column, kind, shape, where)


def _record(column: Column, kind: Any, shape: RecordShape, where: str) -> Column:  # noqa: ANN401
    from pyspark.sql import functions as f

    if kind.typeName() != "struct":
        _refuse(where, kind, f"the record {shape.name} is written from a struct")
    known = {field.name for field in shape.fields}
    for name in kind.names:
        if name not in known:
            _refuse(f"{where}.{name}", kind[name].dataType, f"{shape.name} has no such field; leave it out or add it")
    missing = [field for field in shape.fields if field.name not in kind.names]
    defaults = _defaults(shape, missing, where) if missing else None
    parts = [
        defaults[each.name] if defaults is not None and each in missing else _field(column, kind, each, where)
        for each in shape.fields
    ]
    made = f.struct(*(part.alias(each.name) for part, each in zip(parts, shape.fields, strict=True)))
    return f.when(column.isNotNull(), made)


def _field(column: Column, kind: StructType, field: FieldShape, where: str) -> Column:
    return fitted(column[field.name], kind[field.name].dataType, field.shape, f"{where}.{field.name}")


def _defaults(shape: RecordShape, missing: list[FieldShape], where: str) -> Column:
    """Return the defaults of fields as a struct, made by Avro itself: it reads a record without fields."""
    from pyspark.sql import functions as f

    for field in missing:
        if field.default is NO_DEFAULT:
            _refuse(f"{where}.{field.name}", None, f"{shape.name} needs that field, and it has no default")
    written = Schema({"type": "record", "name": shape.name, "fields": []})
    return unframed(f.lit(b""), written, Schema(json_of_shape(RecordShape(shape.name, missing))))


def _array(column: Column, kind: Any, shape: ArrayShape, where: str) -> Column:  # noqa: ANN401
    from pyspark.sql import functions as f

    if kind.typeName() != "array":
        _refuse(where, kind, "it must be an array")
    return f.transform(column, lambda item: fitted(item, kind.elementType, shape.items, f"{where}[]"))


def _map(column: Column, kind: Any, shape: MapShape, where: str) -> Column:  # noqa: ANN401
    from pyspark.sql import functions as f

    if kind.typeName() != "map" or kind.keyType.simpleString() != "string":
        _refuse(where, kind, "it must be a map of texts")
    return f.transform_values(column, lambda _, item: fitted(item, kind.valueType, shape.values, f"{where}{{}}"))


def _only_branch(shape: UnionShape, where: str) -> Shape:
    branches = [branch for branch in shape.branches if branch_name(branch) != "null"]
    if len(branches) != 1:
        names = ", ".join(branch_name(branch) for branch in shape.branches)
        _refuse(where, names, "Spark writes only unions of null and one other type")
    return branches[0]


def _primitive(column: Column, kind: DataType, shape: PrimitiveShape, where: str) -> Column:
    from pyspark.sql import functions as f

    made = _plain(column, kind, _LOGICAL.get(shape.logical or "", _PLAIN[shape.kind]), where)
    if shape.logical == "uuid":
        text = f.concat(f.lit(f"{where} must be a UUID, but is "), column)
        return f.when(column.isNull() | column.rlike(_UUID), made).otherwise(f.raise_error(text))
    if shape.logical in _MILLIS:
        text = f.concat(f.lit(f"{where} keeps milliseconds, and would lose some of "), column.cast("string"))
        is_whole = f.date_format(column, "SSSSSS").endswith("000")
        return f.when(column.isNull() | is_whole, made).otherwise(f.raise_error(text))
    return made


def _plain(column: Column, kind: DataType, wanted: str, where: str) -> Column:
    given = kind.simpleString()
    if given in (wanted, "void"):  # void is null, which the writer refuses where the schema does
        return column.cast(wanted) if given == "void" and wanted != "void" else column
    if given not in _WIDER.get(wanted, ()):
        _refuse(where, kind, f"it must be {wanted}; cast it, if nothing is lost by that")
    return column.cast(wanted)


def _decimal(column: Column, kind: Any, shape: PrimitiveShape | FixedShape, where: str) -> Column:  # noqa: ANN401
    wanted = f"decimal({shape.precision},{shape.scale})"
    if kind.typeName() == "void":
        return column.cast(wanted)
    if kind.typeName() != "decimal":
        _refuse(where, kind, f"it must be {wanted}")
    if kind.scale > shape.scale or kind.precision - kind.scale > shape.precision - shape.scale:
        _refuse(where, kind, f"not all of its values fit into {wanted}; cast it, if nothing is lost by that")
    return column.cast(wanted)


def _refuse(where: str, given: DataType | str | None, rule: str) -> NoReturn:
    shown = given if given is None or isinstance(given, str) else given.simpleString()
    raise BadArgument(f"column {where}", shown, rule)


_AS_THEY_ARE = ("string", "binary")


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How a frame is encoded. `schema` is a class or a schema, `key` the type of keys that `KeyCodec` writes."""

    registry: BlockingRegistry
    schema: Any = None
    key: Any = None


def encoded(frame: DataFrame, topic: str, encoding: ColumnEncoding) -> tuple[DataFrame, bool]:
    """Return the frame with keys and values as bytes, and True if the keys are framed.

    All schemas are found and checked against the columns before the first one is registered. Raises BadArgument,
    IncompatibleSchema.
    """
    provide_avro(frame.sparkSession)
    key, value = _kind_of(frame, "key"), _kind_of(frame, "value")
    is_framed = encoding.key is None and key.simpleString() not in _AS_THEY_ARE
    value_schema = _schema_for(value, topic, "value", encoding.registry, encoding.schema)
    values = _body(value, value_schema, "value")
    if not is_framed:
        keys = _canonical(key, encoding.key)
        return _with(frame, keys, _framed(values, topic, "value", value_schema, encoding.registry)), False
    key_schema = _schema_for(key, topic, "key", encoding.registry, None)
    bodies = _body(key, key_schema, "key")
    keys = _framed(bodies, topic, "key", key_schema, encoding.registry)
    return _with(frame, keys, _framed(values, topic, "value", value_schema, encoding.registry)), True


def _kind_of(frame: DataFrame, part: Part) -> DataType:
    if part not in frame.columns:
        raise BadArgument(f"column {part}", None, "it must be there")
    found: DataType = frame.schema[part].dataType
    return found


def _schema_for(kind: DataType, topic: str, part: Part, registry: BlockingRegistry, given: Any) -> Schema:  # noqa: ANN401
    """Return the schema to write with: the given one, else the subject's newest, else one inferred from the columns."""
    if given is not None:
        return given if isinstance(given, Schema) else schema_of(given)
    try:
        return registry.run(latest_version(registry.registry, subject_of(topic, part))).schema
    except UnknownSubject:
        return inferred_schema(kind, topic, part)


def _body(kind: DataType, schema: Schema, part: Part) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import to_avro

    return to_avro(fitted(f.col(part), kind, schema.shape, part), schema.text)


def _framed(body: Column, topic: str, part: Part, schema: Schema, registry: BlockingRegistry) -> Column:
    from pyspark.sql import functions as f

    version = registry.run(registry.registry.register(subject_of(topic, part), schema))
    return f.concat(f.lit(frame_header(version.schema_id)), body)


def _canonical(kind: DataType, wanted: Any) -> Column:  # noqa: ANN401
    """Return keys as `KeyCodec` writes them."""
    from pyspark.sql import functions as f

    key = f.col("key")
    if wanted is None:
        return key
    if wanted is int:
        return f.unhex(f.lpad(f.hex(fitted(key, kind, schema_of(int).shape, "key")), 16, "0"))
    if wanted not in (str, bytes, uuid.UUID) and not isinstance(wanted, Schema):
        KeyCodec(wanted)  # refuses what has no canonical form
    schema = wanted if isinstance(wanted, Schema) else schema_of(wanted)
    if wanted in (str, bytes, uuid.UUID):
        return fitted(key, kind, schema.shape, "key")
    return _body(kind, schema, "key")


def _with(frame: DataFrame, keys: Column, values: Column) -> DataFrame:
    return frame.withColumns({"key": keys, "value": values})
