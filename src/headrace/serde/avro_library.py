"""The functions of fastavro that this package uses, imported on first use. No other module imports fastavro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import cache
from typing import Any, TypeAlias

from headrace.errors import MissingExtra

__all__ = [
    "DECIMAL",
    "MOST_DIGITS",
    "Body",
    "Read",
    "Write",
    "logical_readers",
    "logical_writers",
    "prepared",
    "reader",
    "writer",
]

DECIMAL = "headrace-decimal"
"""Decimals for fastavro, whose own are rounded to the precision when they are read, and take minutes for a megabyte."""

MOST_DIGITS = 2400
"""As many digits as a decimal can have, whatever its precision."""

_MOST_BYTES = 1000
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)

Body: TypeAlias = Any
"""A datum as fastavro reads and writes it: dicts, lists, and (name, datum) for a named branch of a union."""
Write: TypeAlias = Callable[[Any, Any, Body], None]
Read: TypeAlias = Callable[..., Body]


@cache
def _library() -> Any:  # noqa: ANN401
    try:
        import fastavro
        import fastavro.read
        import fastavro.write
    except ImportError as error:
        raise MissingExtra("fastavro", "avro") from error
    for kind in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{kind}-{DECIMAL}"] = _read_decimal
        fastavro.write.LOGICAL_WRITERS[f"{kind}-{DECIMAL}"] = fastavro.write.LOGICAL_WRITERS[f"{kind}-decimal"]
    return fastavro


def _read_decimal(data: bytes, schema: Mapping[str, Any], _reader: object = None) -> Decimal:
    """Return the decimal as it was written. Raises ValueError if it is absurdly long."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"a decimal has at most {_MOST_BYTES} bytes, not {len(data)}")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0), _EXACT)


def prepared(schema: Any) -> Any:  # noqa: ANN401
    """Return the schema in the form that reader and writer need."""
    return _library().parse_schema(schema)


def writer() -> Write:
    """Return the function that writes a datum, without a header, to a file."""
    return _library().schemaless_writer  # type: ignore[no-any-return]


def reader() -> Read:
    """Return the function that reads a datum, without a header, from a file."""
    return _library().schemaless_reader  # type: ignore[no-any-return]


def logical_readers() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that convert raw values to logical ones, by type and logical type."""
    return _library().read.LOGICAL_READERS  # type: ignore[no-any-return]


def logical_writers() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that convert logical values to raw ones, by type and logical type."""
    return _library().write.LOGICAL_WRITERS  # type: ignore[no-any-return]
