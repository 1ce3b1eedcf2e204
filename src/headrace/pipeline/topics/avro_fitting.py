"""Columns made to fit an Avro schema before Spark writes them: nothing is rounded, cut or left out on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import BadArgument
from headrace.pipeline.topics.avro_columns import unframed
from headrace.serde import Schema
from headrace.serde.rendering import json_of_shape
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
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

__all__ = ["fitted"]

# What Spark's types may become, by the type's name; each is exact.
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
    """Return the column as Spark's writer wants it for the schema. Raises BadArgument, naming the field.

    Fields that the frame lacks take their defaults; those that the schema lacks are refused.
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
    """Return the defaults of fields as a struct, as Avro itself makes them: by reading a record that has none."""
    from pyspark.sql import functions as f

    for field in missing:
        if field.default is NO_DEFAULT:
            _refuse(f"{where}.{field.name}", None, f"{shape.name} wants that field, and it has no default")
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
        _refuse(where, names, "Spark writes no unions but those of null and one other type")
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
