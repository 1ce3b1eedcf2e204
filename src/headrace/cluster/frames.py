"""What travels between two nodes: the frames of many callers' requests and replies, and the errors in them.

    kind u8 | id u64 | time left in ms u32 | length of the method u8 | length of the payload u32 | method | payload

All numbers are little-endian. A message of a stream holds one frame or more. The time left is 0 where there is no
deadline. What a handler raised at one node is raised at the other, with its type, fields and `outcome_known`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from headrace import errors
from headrace.errors import BadArgument, HeadraceError, OperationFailed, Refused, RefusedByPeer

__all__ = [
    "GATHER_BYTES",
    "LARGEST_TIME_LEFT_MS",
    "Frame",
    "FrameKind",
    "decode_error",
    "encode_error",
    "encode_frame",
    "frames_in",
]

_HEADER = Struct("<BQIBI")
_SIZE = _HEADER.size
LARGEST_TIME_LEFT_MS = 2**32 - 1
GATHER_BYTES = 262_144  # frames gather in a message up to this size; a single one may be larger


class FrameKind(IntEnum):
    """What a frame is for. A request is answered by one reply or one error, a cancel by nothing.

    A goodbye comes from a node that stops: it answers the requests up to the id, and never saw those after it.
    """

    REQUEST = 1
    REPLY = 2
    ERROR = 3
    CANCEL = 4
    GOODBYE = 5


class Frame(NamedTuple):
    """One frame; `id` is the caller's, and names a request on its stream."""

    kind: int
    id: int
    time_left_ms: int
    method: bytes
    payload: bytes


def encode_frame(kind: int, id: int, *, time_left_ms: int = 0, method: bytes = b"", payload: bytes = b"") -> bytes:  # noqa: A002
    """Return the frame's bytes."""
    try:
        return _HEADER.pack(kind, id, time_left_ms, len(method), len(payload)) + method + payload
    except Exception as error:
        raise BadArgument("frame", (kind, id, time_left_ms, method, len(payload)), f"it must fit: {error}") from error


def frames_in(message: bytes) -> Iterator[Frame]:
    """Yield the frames of a message. Raises OperationFailed for bytes that are none."""
    at, end = 0, len(message)
    unpack = _HEADER.unpack_from
    while at < end:
        if end - at < _SIZE:
            raise OperationFailed("reading a frame", f"{end - at} bytes are too few for one", outcome_known=False)
        kind, number, time_left_ms, method_size, size = unpack(message, at)
        at += _SIZE
        payload_at = at + method_size
        next_at = payload_at + size
        if next_at > end:
            raise OperationFailed("reading a frame", f"{next_at - end} bytes are missing", outcome_known=False)
        yield Frame(kind, number, time_left_ms, message[at:payload_at], message[payload_at:next_at])
        at = next_at


class _Carried(msgspec.Struct, array_like=True):
    kind: str
    fields: dict[str, Any]
    message: str
    is_refused: bool
    outcome_known: bool


_decoder = msgspec.msgpack.Decoder(_Carried)


def encode_error(error: BaseException) -> bytes:
    """Return the bytes that carry the error. Of another package's errors the type's name and the message remain."""
    kind = type(error).__name__
    fields = _fields(error) if getattr(errors, kind, None) is type(error) else {}
    # An error that is not ours says nothing about what was done before it.
    outcome_known = bool(getattr(error, "outcome_known", isinstance(error, HeadraceError)))
    carried = _Carried(kind, fields, str(error), isinstance(error, Refused), outcome_known)
    return msgspec.msgpack.encode(carried, enc_hook=repr)


def decode_error(data: bytes, *, peer: str) -> HeadraceError:
    """Return the error as it was raised at the peer, or OperationFailed if its type is not known here."""
    try:
        carried = _decoder.decode(data)
    except msgspec.DecodeError as unread:
        return OperationFailed(f"a request to {peer}", f"its error can't be read: {unread}", outcome_known=False)
    kind = getattr(errors, carried.kind, None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and _has_fields(kind, carried.fields):
        error = kind.__new__(kind)
        error.__dict__.update({name: _as_raised(value) for name, value in carried.fields.items()})
        return error
    reason = f"{carried.kind}: {carried.message}" if carried.message else carried.kind
    if carried.is_refused:
        return RefusedByPeer(peer, reason)
    return OperationFailed(f"a request to {peer}", reason, outcome_known=carried.outcome_known)


def _fields(error: Any) -> dict[str, Any]:  # noqa: ANN401 - mypy takes no exception for a dataclass
    if not dataclasses.is_dataclass(error):
        return {}
    return {field.name: getattr(error, field.name) for field in dataclasses.fields(error)}


def _has_fields(kind: Any, fields: dict[str, Any]) -> bool:  # noqa: ANN401 - as above
    """Return True if the type has these fields here, too; a node of another version may have others."""
    return dataclasses.is_dataclass(kind) and {each.name for each in dataclasses.fields(kind)} == fields.keys()


def _as_raised(value: Any) -> Any:  # noqa: ANN401
    """Return lists as the tuples that they were."""
    return tuple(map(_as_raised, value)) if isinstance(value, list) else value
