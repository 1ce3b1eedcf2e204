"""Primitive and logical types: their Python classes, their raw values, and the checks before a value is written.

fastavro accepts values that lose data: it writes 1.5 as the long 1, any text as the boolean true, and a time without a
zone as local time.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.serde.avro_library import DECIMAL, MOST_DIGITS, logical_readers, logical_writers
from headrace.serde.shapes import FixedShape, PrimitiveShape

__all__ = ["PYTHON_TYPES", "UNTOUCHED", "check_of", "logical_value", "python_type", "raw_value", "schema_of_primitive"]

PYTHON_TYPES: dict[str, type] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "date": dt.date,
    "time-millis": dt.time,
    "time-micros": dt.time,
    "timestamp-millis": dt.datetime,
    "timestamp-micros": dt.datetime,
    "local-timestamp-millis": dt.datetime,
    "local-timestamp-micros": dt.datetime,
    "uuid": uuid.UUID,
    "decimal": Decimal,
}

_INT_MAX = (1 << 31) - 1
_SINGLE = struct.Struct("<f")
_OUTERMOST_YEARS = (dt.MINYEAR, dt.MAXYEAR)
_ZERO = Decimal(0)


def python_type(shape: PrimitiveShape | FixedShape) -> type:
    """Return the Python class of the shape's values."""
    return PYTHON_TYPES[shape.logical or (shape.kind if isinstance(shape, PrimitiveShape) else "bytes")]


def schema_of_primitive(shape: PrimitiveShape) -> str | dict[str, Any]:
    """Return the schema as JSON values."""
    if shape.logical is None:
        return shape.kind
    schema: dict[str, Any] = {"type": shape.kind, "logicalType": shape.logical}
    return {**schema, "precision": shape.precision, "scale": shape.scale} if shape.logical == "decimal" else schema


def logical_value(shape: PrimitiveShape | FixedShape, raw: Any) -> Any:  # noqa: ANN401
    """Return the logical value of a raw one."""
    if shape.logical is None:
        return raw
    return logical_readers()[_key(shape)](raw, _schema(shape), None)


def raw_value(shape: PrimitiveShape | FixedShape, value: Any) -> Any:  # noqa: ANN401
    """Return the raw value of a logical one, as it is written."""
    if shape.logical is None:
        return value
    return logical_writers()[_key(shape)](value, _schema(shape))


def _key(shape: PrimitiveShape | FixedShape) -> str:
    logical = DECIMAL if shape.logical == "decimal" else shape.logical
    return f"{'fixed' if isinstance(shape, FixedShape) else shape.kind}-{logical}"


def _schema(shape: PrimitiveShape | FixedShape) -> dict[str, Any]:
    if isinstance(shape, PrimitiveShape):
        return {"type": shape.kind, "precision": shape.precision, "scale": shape.scale}
    return {"type": "fixed", "size": shape.size, "precision": shape.precision, "scale": shape.scale}


def _long(value: Any) -> int:  # noqa: ANN401
    if type(value) is int:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise TypeError(f"it must be a whole number, not {value!r}")


def _int(value: Any) -> int:  # noqa: ANN401
    if not -_INT_MAX - 1 <= _long(value) <= _INT_MAX:
        raise ValueError(f"{value} does not fit into 32 bits")
    return _long(value)


def _boolean(value: Any) -> bool:  # noqa: ANN401
    if value is True or value is False:
        return value
    raise TypeError(f"it must be True or False, not {value!r}")


def _double(value: Any) -> float:  # noqa: ANN401
    if isinstance(value, float):
        return value
    number = float(_long(value))
    if int(number) != value:
        raise ValueError(f"{value} would be rounded to {number}")
    return number


def _single(value: Any) -> float:  # noqa: ANN401
    number = _double(value)
    try:
        written = _SINGLE.unpack(_SINGLE.pack(number))[0]
    except OverflowError as error:
        raise ValueError(f"{value} is too large for 32 bits, and would be infinite") from error
    if not isinstance(value, float) and written != number:
        raise ValueError(f"{value} would be rounded to 32 bits")
    return number


def _aware(value: Any) -> dt.datetime:  # noqa: ANN401
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise ValueError(f"a point in time needs its time zone: {value!r}")
    if value.year in _OUTERMOST_YEARS:
        _check_readable(value)
    return value


def _check_readable(value: dt.datetime) -> None:
    """Raise ValueError for a time that is in no year of Python's in UTC, which is how it is read."""
    try:
        value.astimezone(dt.UTC)
    except OverflowError as error:
        raise ValueError(f"{value!r} lies outside of the years 1 to 9999 of UTC") from error


def _naive(value: Any) -> dt.datetime:  # noqa: ANN401
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise ValueError(f"a local time has no time zone: {value!r}")
    return value


def _date(value: Any) -> dt.date:  # noqa: ANN401
    # A datetime is a date to Python, and would lose its time of day here.
    if type(value) is not dt.date:
        raise TypeError(f"it must be a date, not {value!r}")
    return value


def _local_time(value: Any) -> dt.time:  # noqa: ANN401
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise TypeError(f"it must be a time without a time zone, not {value!r}")
    return value


def _millis(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the check for a time that is kept in milliseconds: microseconds would be lost."""

    def whole(value: Any) -> Any:  # noqa: ANN401
        if check(value).microsecond % 1000:
            raise ValueError(f"{value!r} has microseconds, and only milliseconds are kept")
        return value

    return whole


def _null(value: Any) -> None:  # noqa: ANN401
    if value is not None:
        raise TypeError(f"it must be None, not {value!r}")


def _uuid(value: Any) -> uuid.UUID:  # noqa: ANN401
    if not isinstance(value, uuid.UUID):
        raise TypeError(f"it must be a UUID, not {value!r}")
    return value


def _decimal_of(precision: int, scale: int) -> Callable[[Any], Decimal]:
    """Return the check of decimals by their value.

    fastavro counts the digits that are written: it takes 1E+9 for a number of one digit, and cuts it to fit a fixed.
    The million digits of 1E+999999 keep it busy for minutes.
    """
    most = min(precision, MOST_DIGITS) - scale

    def check(value: Any) -> Decimal:  # noqa: ANN401
        if not isinstance(value, Decimal) or not value.is_finite():
            raise TypeError(f"it must be a finite Decimal, not {value!r}")
        if not value:
            return _ZERO  # the value of 0E+999999 too
        if value.adjusted() >= most:
            raise ValueError(f"{value} has more than {most} digits before its point")
        return value

    return check


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _single,
    "double": _double,
    "date": _date,
    "time-millis": _millis(_local_time),
    "time-micros": _local_time,
    "timestamp-millis": _millis(_aware),
    "timestamp-micros": _aware,
    "local-timestamp-millis": _millis(_naive),
    "local-timestamp-micros": _naive,
    "uuid": _uuid,
}


def check_of(shape: PrimitiveShape | FixedShape) -> Callable[[Any], Any] | None:
    """Return the function that checks a value before it is written, and returns it; None if none is needed."""
    if shape.logical == "decimal":
        return _decimal_of(shape.precision, shape.scale)
    return _CHECKS.get(shape.logical or shape.kind) if isinstance(shape, PrimitiveShape) else None


UNTOUCHED: dict[str, type] = {
    "null": type(None),
    "boolean": bool,
    "long": int,
    "double": float,
    "date": dt.date,
    "uuid": uuid.UUID,
}


"""By type, the class whose direct instances need no check."""
