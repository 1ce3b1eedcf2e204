"""The wire of a WebSocket: frames on the connection, changes that wait to be sent, and schemas that clients ask for.

A client that is slower than the changes of a key gets the newest value, marked as lagged, in place of all that waited.
Others are not slowed, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.types import Receive, Scope, Send

from headrace.access import Caller
from headrace.errors import Busy, NotFound, UnknownSchema
from headrace.gateway.keyspaces import ServedKeyspace
from headrace.gateway.metrics import REFUSED
from headrace.gateway.state_forms import MessageForm
from headrace.serde import Registry, Schema, Version, short_name, subject_of
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
    "Say",
    "SocketLeft",
    "SocketTypes",
    "SocketWire",
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

Say: TypeAlias = Callable[[str | bytes], Awaitable[None]]
"""Sends a frame that is no push."""

_MOST_REASON_BYTES = 120  # of a close frame, whose payload has 125


class PushQueue:
    """The changes that wait to be sent: `waiting`, by the number of their subscription, in turn.

    At most `limit` wait for one subscription, and 10 000 for all together, beside the newest of each.
    With `is_closing` a client that is too slow makes `wait` raise Busy; otherwise its changes are conflated.
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


class SocketLeft(Exception):
    """The client has left, and did not get the frame."""


class SocketWire:
    """The connection: frames in, frames out. Who sends takes care that only one frame is on its way.

    While it `is_ready`, `write` writes a frame at once; on servers that can't do so it never is.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        pushes = (scope.get("extensions") or {}).get(PUSHES)
        self.is_ready: Callable[[], bool] = _never if pushes is None else pushes["is_ready"]
        self.write: Callable[[str | bytes], None] = _nowhere if pushes is None else pushes["write"]

    async def accept(self, protocol: str | None) -> None:
        """Open the socket."""
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": protocol})

    async def frames(self) -> AsyncIterator[str | bytes]:
        """Yield the client's frames until it leaves."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            yield text if text is not None else message.get("bytes") or b""
            await asyncio.sleep(0)  # many frames that came at once must not hold up everybody else

    async def send(self, *frames: str | bytes) -> None:
        """Send frames; it waits while the client is slower than the frames. Raises SocketLeft."""
        last = len(frames) - 1
        try:
            for number, frame in enumerate(frames):
                kind = "text" if isinstance(frame, str) else "bytes"
                await self._send({"type": "websocket.send", kind: frame, MORE_FRAMES: number < last})
        except OSError as error:  # as ASGI has it
            raise SocketLeft from error

    async def close(self, code: int, reason: str) -> None:
        """Close the socket with a code and a reason."""
        with contextlib.suppress(RuntimeError, OSError):  # the client may have left in this moment
            shown = reason.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
            await self._send({"type": "websocket.close", "code": code, "reason": shown})


def _never() -> bool:
    return False


def _nowhere(frame: str | bytes) -> None:
    raise RuntimeError("this server writes no frame at once")


class SocketTypes:
    """The schemas of a keyspace's values and messages, which a client may ask for by name or id."""

    def __init__(self, registry: Registry, served: ServedKeyspace, messages: Mapping[str, MessageForm]) -> None:
        self.registry = registry
        self.messages: dict[str, MessageForm] = {each.schema_name: each for each in messages.values()}
        specs = served.spec.state_specs(partitions=1)
        self._subjects = [subject_of(spec.topic) for spec in specs.values()]
        self._subjects += [subject_of(spec.delta_topic) for spec in specs.values() if spec.delta is not None]
        self._subjects += [subject_of(f"{served.spec.name}.{each.name}") for each in messages.values()]

    async def by_name(self, name: str) -> bytes:
        """Return the frame with the newest schema of a type. Raises NotFound."""
        found = [each for each in await self._versions() if name in (each.schema.name, short_name(each.schema.name))]
        if not found:
            raise NotFound(f"type {name[:60]!r}")
        newest = max(found, key=lambda each: each.version)
        return schema_frame(newest.schema_id, newest.schema.text)

    async def by_id(self, schema_id: int, caller: Caller) -> bytes:
        """Return the frame with a schema of this keyspace, or with any for a caller that may read all.

        Raises UnknownSchema.
        """
        if caller.may("read", "schema", "*"):
            return schema_frame(schema_id, (await self.registry.schema(schema_id)).text)
        for each in await self._versions():
            if each.schema_id == schema_id:
                return schema_frame(schema_id, each.schema.text)
        raise UnknownSchema(schema_id, "")

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema of an id. Raises UnknownSchema."""
        return await self.registry.schema(schema_id)

    async def _versions(self) -> list[Version]:
        known = set(await self.registry.subjects())
        return [each for name in self._subjects if name in known for each in await self.registry.versions(name)]
