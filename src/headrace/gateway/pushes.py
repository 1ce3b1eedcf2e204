"""What is on its way to the client of a WebSocket: a bounded queue for each subscription, and the frames in it.

A client that is slower than the changes of a key gets the newest value, marked as lagged, in place of all that waited.
Others are not slowed, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict, deque
from typing import Any

from headrace.errors import Busy
from headrace.gateway.metrics import REFUSED
from headrace.state import StateChange

__all__ = [
    "MORE_FRAMES",
    "NO_SCHEMA",
    "PUSH",
    "PUSHES",
    "SCHEMA",
    "SIGN_OF_LIFE",
    "VALUE",
    "PushQueue",
    "encode_pair",
    "encode_push",
    "schema_frame",
    "schema_id_asked",
]

VALUE, PUSH, PAIR, SCHEMA = 0, 1, 2, 123

_LAGGED, _ABSENT, _PRESENT, _EXPIRED, _DELTA = 1, 2, 4, 8, 16
_ASKED = struct.Struct(">Bi")
_HEAD = struct.Struct(">BiBH")
_PAIR_HEAD = struct.Struct(">BiBHHI")
_MOST_PER_SOCKET = 10_000
PUSHES = "headrace.pushes"  # an extension of ASGI: `is_ready` and `write`, for frames that need not wait
MORE_FRAMES = "headrace.more_frames"  # in a message of ASGI: another frame follows before anything else happens


class PushQueue:
    """The changes that wait to be sent: `waiting`, by the number of their subscription, in turn.

    At most `limit` wait for one subscription, and 10 000 for all together, beside the newest of each.
    With `is_closing` a client that is too slow makes `get` raise Busy; otherwise its changes are conflated.
    """

    def __init__(self, limit: int, *, is_closing: bool = False) -> None:
        self._limit = limit
        self._is_closing = is_closing
        self.waiting: OrderedDict[int, deque[StateChange[Any, Any]]] = OrderedDict()
        self._count = 0
        self._is_overrun = False
        self._filled = asyncio.Event()

    def put(self, number: int, change: StateChange[Any, Any]) -> None:
        """Add a change; if too many wait, it replaces them, and is marked as lagged."""
        queue = self.waiting.setdefault(number, deque())
        if len(queue) >= self._limit or (queue and self._count >= _MOST_PER_SOCKET):
            REFUSED.labels("slow_socket").inc()
            self._is_overrun = self._is_closing
            self._count -= len(queue)
            queue.clear()
            change = change._replace(is_lagged=True, delta=None)
        queue.append(change)
        self._count += 1
        self._filled.set()

    def drop(self, number: int) -> None:
        """Forget what waits for a subscription that has ended."""
        self._count -= len(self.waiting.pop(number, ()))

    async def wait(self) -> None:
        """Wait until there is a change. Raises Busy if the client is to be closed."""
        while not self.waiting and not self._is_overrun:
            self._filled.clear()
            await self._filled.wait()
        if self._is_overrun:
            raise Busy("the queue of a WebSocket", self._limit)

    def take(self) -> tuple[int, StateChange[Any, Any]] | None:
        """Return the next change, of each subscription in turn; None if there is none."""
        if not self.waiting:
            return None
        number, queue = self.waiting.popitem(last=False)
        change = queue.popleft()
        self._count -= 1
        if queue:
            self.waiting[number] = queue
        return number, change


def encode_push(number: int, change: StateChange[Any, Any], avro: bytes, *, is_delta: bool = False) -> bytes:
    """Return the binary frame of a change: 1, the subscription, flags, the place to resume after, the framed value."""
    place = change.token.encode()
    return _HEAD.pack(PUSH, number, _flags_of(change, is_delta=is_delta), len(place)) + place + avro


def encode_pair(
    number: int, partition: int, key: bytes, change: StateChange[Any, Any], avro: bytes, *, is_delta: bool = False
) -> bytes:
    """Return the binary frame of one key of a collection: 2, as a push, with its partition and its key as JSON."""
    place = change.token.encode()
    flags = _flags_of(change, is_delta=is_delta)
    return _PAIR_HEAD.pack(PAIR, number, flags, partition, len(place), len(key)) + place + key + avro


def _flags_of(change: StateChange[Any, Any], *, is_delta: bool) -> int:
    flags = _LAGGED * change.is_lagged + _ABSENT * (change.value is None) + _DELTA * is_delta
    return flags + _PRESENT * change.is_present + _EXPIRED * change.is_expiry


def schema_frame(schema_id: int, text: str) -> bytes:
    """Return the frame that tells a schema: 123, its id, its JSON."""
    return _ASKED.pack(SCHEMA, schema_id) + text.encode()


def schema_id_asked(frame: bytes) -> int | None:
    """Return the id of the schema that a client asks for; None if the frame asks for none."""
    if len(frame) != _ASKED.size or frame[0] != SCHEMA:
        return None
    return int(_ASKED.unpack(frame)[1])


NO_SCHEMA = 0
SIGN_OF_LIFE = schema_frame(NO_SCHEMA, "")
"""The answer to a client that asks for the schema which nothing has: it wants to know whether somebody is there.

Browsers can't send pings, and do not tell of a connection whose other end is gone without a word.
"""
