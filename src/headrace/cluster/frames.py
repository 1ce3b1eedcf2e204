"""Frames: how requests and replies of many callers share the messages of one stream.

    kind u8 | id u64 | time left in ms u32 | length of the method u8 | length of the payload u32 | method | payload

All numbers are little-endian. A message holds one frame or more. The time left is 0 where there is no deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from headrace.errors import BadArgument, OperationFailed

__all__ = ["GATHER_BYTES", "LARGEST_TIME_LEFT_MS", "Frame", "FrameKind", "encode_frame", "frames_in"]

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
