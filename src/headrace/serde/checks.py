"""Checks of primitive values before they are written.

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

__all__ = ["CHECKS", "UNTOUCHED"]

_INT_MAX = (1 << 31) - 1
_SINGLE = struct.Struct("<f")


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
    if not isinstance(value, float) and _SINGLE.unpack(_SINGLE.pack(number))[0] != number:
        raise ValueError(f"{value} would be rounded to 32 bits")
    return number


def _aware(value: Any) -> dt.datetime:  # noqa: ANN401
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise ValueError(f"a point in time needs its time zone: {value!r}")
    return value


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


def _decimal(value: Any) -> Decimal:  # noqa: ANN401
    if not isinstance(value, Decimal) or not value.is_finite():
        raise TypeError(f"it must be a finite Decimal, not {value!r}")
    return value


CHECKS: dict[str, Callable[[Any], Any]] = {
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
    "decimal": _decimal,
}

UNTOUCHED: dict[str, type] = {
    "null": type(None),
    "boolean": bool,
    "long": int,
    "float": float,
    "double": float,
    "date": dt.date,
    "uuid": uuid.UUID,
}
"""By type, the class whose direct instances need no check."""
