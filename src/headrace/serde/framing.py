"""Confluent's wire format: a zero, the schema's id as four bytes, big-endian, then the Avro body."""

from __future__ import annotations

from headrace.errors import BadArgument, NotFramed

__all__ = ["HEADER_BYTES", "body_of", "frame_header", "is_framed", "schema_id_of"]

HEADER_BYTES = 5
_MAX_ID = (1 << 32) - 1


def frame_header(schema_id: int) -> bytes:
    """Return the five bytes in front of the body."""
    if not 0 <= schema_id <= _MAX_ID:
        raise BadArgument("schema id", schema_id, "ids are 32 bits")
    return b"\x00" + schema_id.to_bytes(4, "big")


def schema_id_of(data: bytes) -> int:
    """Return the id of the schema that `data` was written with. Raises NotFramed."""
    if len(data) < HEADER_BYTES:
        raise NotFramed(len(data), f"they need at least {HEADER_BYTES}")
    if data[0] != 0:
        raise NotFramed(len(data), f"they begin with {data[0]:#04x}, not 0x00")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def body_of(data: bytes) -> bytes:
    """Return the bytes behind the header. Raises NotFramed."""
    schema_id_of(data)
    return data[HEADER_BYTES:]


def is_framed(data: bytes) -> bool:
    """Return True if the bytes could be framed Avro."""
    return len(data) >= HEADER_BYTES and data[0] == 0
