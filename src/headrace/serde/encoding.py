"""Encoders: functions from Python values to data for the Avro writer, compiled once, and the field that failed."""

from __future__ import annotations

import enum
import io
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from headrace.serde.avro_library import MOST_DIGITS, prepared, writer
from headrace.serde.classes import fields_of, has_extras, instance_class, values_of
from headrace.serde.primitives import CHECKS, UNTOUCHED, python_type
from headrace.serde.schema_json import json_of_shape
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FixedShape,
    GenericRecord,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    Symbol,
    UnionShape,
    branch_name,
    is_optional,
)

__all__ = ["Convert", "blame", "chosen_branch", "classes_of", "encoder_of"]


def chosen_branch(shape: UnionShape, value: Any) -> Shape:  # noqa: ANN401
    """Return the branch of a value: by its own class, else by a base class. Raises TypeError."""
    for branch in shape.branches:
        if type(value) in classes_of(branch) and _is_called(branch, value):
            return branch
    for branch in shape.branches:
        if isinstance(value, classes_of(branch)) and _is_called(branch, value):
            return branch
    wide = [b for b in shape.branches if branch_name(b) in ("float", "double")]
    if wide and isinstance(value, int) and not isinstance(value, bool):
        return wide[0]
    raise TypeError(f"{type(value).__name__} is none of {', '.join(branch_name(b) for b in shape.branches)}")


def _is_called(branch: Shape, value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, GenericRecord):
        return branch_name(branch) == value.name
    if isinstance(value, Symbol):
        return branch_name(branch) == value.enum
    return not isinstance(value, bool) or branch_name(branch) == "boolean"


def classes_of(shape: Shape) -> tuple[type, ...]:
    """Return the classes whose instances the shape accepts."""
    match shape:
        case PrimitiveShape() | FixedShape():
            return (python_type(shape),)
        case EnumShape():
            return (shape.bound,) if shape.bound else (Symbol, str)
        case ArrayShape():
            return (list, tuple, set, frozenset)
        case MapShape():
            return (dict,)
        case RecordShape():
            return (instance_class(shape.bound),) if shape.bound else (GenericRecord, dict)
    return ()


Convert: TypeAlias = Callable[[Any], Any]

_ZERO = Decimal(0)


def encoder_of(shape: Shape) -> Convert:
    """Return the function from values to data for the writer. The function raises TypeError or ValueError."""
    return _Encoders().of(shape) or _same


class _Encoders:
    """One compilation. Records are remembered, because they may be recursive."""

    def __init__(self) -> None:
        self._records: dict[int, list[Convert]] = {}

    def of(self, shape: Shape) -> Convert | None:
        """Return the function, or None if the value needs no conversion."""
        match shape:
            case PrimitiveShape() if shape.choices:
                return _choice_of(shape)
            case PrimitiveShape() | FixedShape() if shape.logical == "decimal":
                return _decimal_of(shape)
            case PrimitiveShape():
                return CHECKS.get(shape.logical or shape.kind)
            case FixedShape():
                return None
            case EnumShape():
                return _symbol_of(shape)
            case ArrayShape():
                return self._array(shape)
            case MapShape():
                return self._map(shape)
            case UnionShape():
                return self._union(shape)
            case RecordShape():
                return self._record(shape)

    def _array(self, shape: ArrayShape) -> Convert:
        each = self.of(shape.items)
        if each is None:
            return _list
        return lambda values: [each(value) for value in _list(values)]

    def _map(self, shape: MapShape) -> Convert | None:
        each = self.of(shape.values)
        return None if each is None else lambda values: {key: each(value) for key, value in values.items()}

    def _union(self, shape: UnionShape) -> Convert | None:
        if is_optional(shape):
            return self._optional(shape)
        encoders = {id(branch): (branch_name(branch), self.of(branch) or _same) for branch in shape.branches}
        by_class = {cls: encoders[id(branch)] for branch in shape.branches for cls in classes_of(branch)}
        for named_by_value in (GenericRecord, Symbol, dict, str):
            if sum(named_by_value in classes_of(branch) for branch in shape.branches) > 1:
                by_class.pop(named_by_value, None)

        def encode(value: Any) -> Any:  # noqa: ANN401
            name, convert = by_class.get(type(value)) or encoders[id(chosen_branch(shape, value))]
            return name, convert(value)

        return encode

    def _optional(self, shape: UnionShape) -> Convert | None:
        (branch,) = [each for each in shape.branches if branch_name(each) != "null"]
        name, convert = branch_name(branch), self.of(branch) or _same
        return lambda value: None if value is None else (name, convert(value))

    def _record(self, shape: RecordShape) -> Convert:
        if id(shape) not in self._records:
            cell: list[Convert] = []
            self._records[id(shape)] = cell
            cell.append(self._compile(shape))
            return cell[0]
        cell = self._records[id(shape)]
        return lambda value: cell[0](value)  # noqa: PLW0108 - the cell of a recursive record is still empty here

    def _compile(self, shape: RecordShape) -> Convert:
        names = tuple(field.name for field in shape.fields)
        conversions = [(f.name, _untouched(f.shape), convert) for f in shape.fields if (convert := self.of(f.shape))]
        values = _fields_of_generic(shape) if shape.bound is None else values_of(shape.bound, names)
        bound = Mapping if shape.bound is None else instance_class(shape.bound)
        whole = {bound}  # the classes whose instances have only the record's fields
        may_have_extras = has_extras(bound)

        def encode(value: Any) -> Any:  # noqa: ANN401
            if type(value) not in whole and shape.bound is not None:
                _check_subclass(shape, bound, type(value), names)
                whole.add(type(value))
            elif not isinstance(value, bound):
                raise TypeError(f"it must be {shape.name}, not {type(value).__name__}")
            if may_have_extras and value.__pydantic_extra__:
                raise TypeError(f"{shape.name} has no field {min(value.__pydantic_extra__)!r}")
            datum = values(value)
            for name, untouched, convert in conversions:
                part = datum[name]
                if type(part) is not untouched:
                    datum[name] = convert(part)
            return datum

        return encode


def _check_subclass(shape: RecordShape, bound: type, cls: type, names: tuple[str, ...]) -> None:
    """Raise TypeError for a subclass with more fields, which would silently be lost."""
    if not issubclass(cls, bound):
        raise TypeError(f"it must be {shape.name}, not {cls.__name__}")
    if bound is dict:
        return  # the keys of each dict are checked when it is written
    more = [field.name for field in fields_of(cls) if field.name not in names]
    if more:
        raise TypeError(
            f"{shape.name} has no field {more[0]!r}, which {cls.__name__} adds; name that class in the hint"
        )


def _untouched(shape: Shape) -> type | None:
    """Return the class whose instances need no conversion: comparing classes is cheaper than calling the converter."""
    match shape:
        case PrimitiveShape() if shape.choices:
            return None
        case PrimitiveShape():
            return UNTOUCHED.get(shape.logical or shape.kind)
        case ArrayShape() if isinstance(shape.items, PrimitiveShape) and shape.items.kind in ("string", "bytes"):
            return None if shape.items.logical or shape.items.choices else list
        case UnionShape() if any(branch_name(branch) == "null" for branch in shape.branches):
            return type(None)
    return None


def _fields_of_generic(shape: RecordShape) -> Convert:
    from headrace.serde.decoding import make_default

    makers = {field.name: make_default(field) for field in shape.fields}

    def values(record: Mapping[str, Any]) -> dict[str, Any]:
        unknown = record.keys() - makers.keys()
        if unknown:
            raise TypeError(f"{shape.name} has no field {min(unknown)!r}")
        return {name: record[name] if name in record else _made(name, make) for name, make in makers.items()}

    return values


def _made(field: str, make: Callable[[], Any] | None) -> Any:  # noqa: ANN401
    if make is None:
        raise TypeError(f"field {field!r} is missing and has no default")
    return make()


def _choice_of(shape: PrimitiveShape) -> Convert:
    known = {(type(choice), choice) for choice in shape.choices}

    def encode(value: Any) -> Any:  # noqa: ANN401
        if (type(value), value) not in known:
            raise ValueError(f"{value!r} is none of {', '.join(map(repr, shape.choices))}")
        return value

    return encode


def _decimal_of(shape: PrimitiveShape | FixedShape) -> Convert:
    """Return the check of decimals by their value.

    fastavro counts the digits that are written: it takes 1E+9 for a number of one digit, and cuts it to fit a fixed.
    """
    check, most = CHECKS["decimal"], min(shape.precision, MOST_DIGITS) - shape.scale

    def encode(value: Any) -> Any:  # noqa: ANN401
        number = check(value)
        if not number:
            return _ZERO  # the value of 0E+9 too
        if number.adjusted() >= most:
            raise ValueError(f"{value} has more than {most} digits before its point")
        return number

    return encode


def _symbol_of(shape: EnumShape) -> Convert:
    def encode(value: Any) -> str:  # noqa: ANN401
        symbol = value.name if isinstance(value, enum.Enum) else value
        if symbol not in shape.symbols or (shape.bound is not None and not isinstance(value, shape.bound)):
            raise ValueError(f"{value!r} is no symbol of {shape.name}")
        return str(symbol)

    return encode


def _list(values: Any) -> list[Any]:  # noqa: ANN401
    if isinstance(values, str | bytes | Mapping):
        raise TypeError(f"it must be a list, not {type(values).__name__}")
    return values if type(values) is list else list(values)


def _same(value: Any) -> Any:  # noqa: ANN401
    return value


def blame(shape: Shape, value: Any, error: Exception) -> tuple[str, str]:  # noqa: ANN401
    """Return the path of the innermost part that can't be written, and the reason."""
    for name, part_shape, part in _parts(shape, value):
        problem = _problem(part_shape, part)
        if problem is not None:
            inner, reason = blame(part_shape, part, problem)
            return (name if inner == branch_name(part_shape) else f"{name}.{inner}"), reason
    return branch_name(shape), str(error) or type(error).__name__


def _problem(shape: Shape, value: Any) -> Exception | None:  # noqa: ANN401
    if value is _MISSING:
        return AttributeError("it is missing")
    try:
        writer()(io.BytesIO(), prepared(json_of_shape(shape)), encoder_of(shape)(value))
    except Exception as error:  # the caller raises it
        return error
    return None


def _parts(shape: Shape, value: Any) -> Iterator[tuple[str, Shape, Any]]:  # noqa: ANN401
    match shape:
        case RecordShape() if value is not _MISSING and isinstance(value, _class_of(shape)):
            for field in shape.fields:
                if not _has_keys(shape) or field.name in value or field.default is NO_DEFAULT:
                    yield field.name, field.shape, _value(shape, field.name, value)
        case ArrayShape() if isinstance(value, list | tuple | set | frozenset):
            for index, each in enumerate(value):
                yield f"[{index}]", shape.items, each
        case MapShape() if isinstance(value, Mapping):
            for key, each in value.items():
                yield f"[{key!r}]", shape.values, each
        case UnionShape():
            yield from _branch_parts(shape, value)


def _branch_parts(shape: UnionShape, value: Any) -> Iterator[tuple[str, Shape, Any]]:  # noqa: ANN401
    try:
        branch = chosen_branch(shape, value)
    except TypeError:
        return
    yield from _parts(branch, value)


_MISSING = object()


def _value(shape: RecordShape, name: str, value: Any) -> Any:  # noqa: ANN401
    return value.get(name, _MISSING) if _has_keys(shape) else getattr(value, name, _MISSING)


def _class_of(shape: RecordShape) -> type[Any]:
    return Mapping if shape.bound is None else instance_class(shape.bound)


def _has_keys(shape: RecordShape) -> bool:
    return _class_of(shape) in (Mapping, dict)
