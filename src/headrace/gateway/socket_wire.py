"""The two ends of a WebSocket: frames on the connection, and the schemas that its client may ask for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from headrace.access import Caller
from headrace.errors import NotFound, UnknownSchema
from headrace.gateway.keyspaces import ServedKeyspace
from headrace.gateway.pushes import MORE_FRAMES, PUSHES, schema_frame
from headrace.gateway.state_forms import MessageForm
from headrace.serde import Registry, Schema, Version, short_name, subject_of

__all__ = ["Say", "SocketLeft", "SocketTypes", "SocketWire"]

Say: TypeAlias = Callable[[str | bytes], Awaitable[None]]
"""Sends a frame that is no push."""

_MOST_REASON_BYTES = 120  # of a close frame, whose payload has 125


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
