"""The gateway's frames as a client reads them, and what its close codes mean; the layout is in docs/formats.md."""

from __future__ import annotations

import json
import struct
from typing import Any, Literal, NamedTuple

from headrace.errors import NotReadable

__all__ = ["CloseMeaning", "SocketFrame", "ask_schema", "close_meaning", "parse_frame"]

_VALUE, _PUSH, _PAIR, _SCHEMA = 0, 1, 2, 123
_LAGGED, _ABSENT, _PRESENT, _EXPIRED, _DELTA = 1, 2, 4, 8, 16
_HEADER = struct.Struct(">Bi")
_PUSH_HEAD = struct.Struct(">BiBH")
_PAIR_HEAD = struct.Struct(">BiBHHI")


class SocketFrame(NamedTuple):
    """A binary frame. `framed` is framed Avro, empty if there is no value; of a schema, it is the schema's JSON."""

    kind: Literal["value", "schema", "push", "pair"]
    framed: bytes
    schema_id: int | None = None
    id: int = 0
    offset: str = ""
    partition: int = 0
    key: Any = None
    is_lagged: bool = False
    is_present: bool = False
    is_expiry: bool = False
    is_delta: bool = False


def parse_frame(frame: bytes) -> SocketFrame:
    """Return what is in a binary frame. Raises NotReadable."""
    if not frame:
        return SocketFrame("value", b"")
    try:
        match frame[0]:
            case 0:
                return SocketFrame("value", frame, _schema_id(frame))
            case 123:
                return SocketFrame("schema", frame[_HEADER.size :], _HEADER.unpack_from(frame)[1])
            case 1:
                return _push(frame)
            case 2:
                return _pair(frame)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise NotReadable("a frame", f"{len(frame)} bytes", f"it is cut off or damaged: {error}") from error
    raise NotReadable("a frame", f"{len(frame)} bytes", f"it begins with byte {frame[0]}, which this client lacks")


def ask_schema(schema_id: int) -> bytes:
    """Return the frame that asks for a schema."""
    return _HEADER.pack(_SCHEMA, schema_id)


def _push(frame: bytes) -> SocketFrame:
    _, number, flags, length = _PUSH_HEAD.unpack_from(frame)
    end = _PUSH_HEAD.size + length
    offset = _part(frame, _PUSH_HEAD.size, end).decode()
    return SocketFrame("push", frame[end:], _schema_id(frame[end:]), number, offset, **_flags(flags))


def _pair(frame: bytes) -> SocketFrame:
    _, number, flags, partition, length, key_length = _PAIR_HEAD.unpack_from(frame)
    key_at = _PAIR_HEAD.size + length
    end = key_at + key_length
    offset = _part(frame, _PAIR_HEAD.size, key_at).decode()
    key = json.loads(_part(frame, key_at, end))
    framed = frame[end:]
    return SocketFrame("pair", framed, _schema_id(framed), number, offset, partition, key, **_flags(flags))


def _flags(flags: int) -> dict[str, bool]:
    return {
        "is_lagged": bool(flags & _LAGGED),
        "is_present": bool(flags & _PRESENT),
        "is_expiry": bool(flags & _EXPIRED),
        "is_delta": bool(flags & _DELTA),
    }


def _part(frame: bytes, start: int, end: int) -> bytes:
    if len(frame) < end:
        raise ValueError(f"{end} bytes are needed")
    return frame[start:end]


def _schema_id(framed: bytes) -> int | None:
    if not framed:
        return None
    first, schema_id = _HEADER.unpack_from(framed)
    if first != _VALUE:
        raise ValueError(f"framed Avro begins with byte 0, not {first}")
    return int(schema_id)


class CloseMeaning(NamedTuple):
    """What a client does about a close code: connect again, do so with a new token, give up, or nothing."""

    action: Literal["retry", "token", "refused", "closed"]
    status: int | None = None


def close_meaning(code: int) -> CloseMeaning:
    """Return what a close code means; of those above 4000, the rest is the HTTP status of a refusal."""
    if code == 1000:
        return CloseMeaning("closed")
    if code == 1009:
        return CloseMeaning("refused")
    if 4100 <= code < 4600:
        status = code - 4000
        if status == 401:
            return CloseMeaning("token", status)
        return CloseMeaning("retry" if status == 429 or status >= 500 else "refused", status)
    return CloseMeaning("retry")
