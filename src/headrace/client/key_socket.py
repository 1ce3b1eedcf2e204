"""A socket on one key: the present value, then each change, as framed Avro or as JSON; and messages to the key.

Its frames have no offsets, so a new connection begins with the present value, which is given only if it differs.
`GatewayState.subscribe` resumes without a gap.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.client.connection import ConnectionOptions, Retries, ended_of, json_text, open_socket
from headrace.client.frames import SocketFrame, ask_schema, parse_frame
from headrace.errors import Closed, GatewayUnavailable
from headrace.serde import HEADER_BYTES, GenericCodec, Schema, frame_header

__all__ = ["KeySocket"]

_JSON = "headrace.json"
_NOTHING = object()


class KeySocket:
    """Values of one key with `async for`, None while it has none; `send` gives its handler a message."""

    def __init__(
        self, options: ConnectionOptions, *, is_json: bool, on_end: Callable[[KeySocket], None] = lambda _: None
    ) -> None:
        self._options = options
        self._is_json = is_json
        self._socket: Any = None
        self._opened = asyncio.Event()
        self._values: asyncio.Queue[Any] = asyncio.Queue()
        self._codecs: dict[int, GenericCodec] = {}
        self._named: dict[str, tuple[int, GenericCodec]] = {}
        self._asked: deque[asyncio.Future[SocketFrame]] = deque()
        self._last: Any = _NOTHING
        self._error: Exception | None = None
        self._running = asyncio.create_task(self._run(), name="headrace-client-key-socket")
        self._running.add_done_callback(lambda _: on_end(self))

    def __aiter__(self) -> KeySocket:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401
        """Return the next value. Raises what ended the socket."""
        reading = asyncio.ensure_future(self._values.get())
        try:
            await asyncio.wait({reading, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
        finally:
            reading.cancel()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def send(self, message: str, data: dict[str, Any]) -> None:
        """Send a message to the handler of the key, at most once; its effect comes back as a change.

        Raises GatewayUnavailable if the connection is lost on the way, and what ended the socket.
        """
        import websockets

        socket = await self._open()
        try:
            if self._is_json:
                await socket.send(json_text({"type": message, "data": data}, "message"))
                return
            schema_id, codec = await self._codec_named(socket, message)
            await socket.send(codec.encode(codec.from_json(data), prefix=frame_header(schema_id)))
        except websockets.ConnectionClosed as error:
            raise GatewayUnavailable(0, "the connection was lost", outcome_known=False) from error

    async def close(self) -> None:
        """End the socket."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _open(self) -> Any:  # noqa: ANN401
        """Return the socket, when it is open."""
        while self._socket is None or self._running.done():
            opening = asyncio.ensure_future(self._opened.wait())
            await asyncio.wait({opening, self._running}, return_when=asyncio.FIRST_COMPLETED)
            opening.cancel()
            if self._running.done():
                raise self._error or Closed("the socket")
        return self._socket

    async def _run(self) -> None:
        try:
            retries = Retries(self._options.backoff)
            while True:
                ended = await ended_of(open_socket(self._options, [_JSON] if self._is_json else []), self._serve)
                self._disconnected()
                refusal = await self._options.refusal(ended, retries)
                if refusal is not None:
                    self._error = refusal
                    return
                await retries.wait(ended.open_s)
        except Exception as error:  # whoever reads must hear of it, or it would look like an end in order
            self._error = error

    async def _serve(self, socket: Any) -> None:  # noqa: ANN401
        self._socket = socket
        self._opened.set()
        frames: asyncio.Queue[Any] = asyncio.Queue()
        work = [asyncio.ensure_future(self._read(socket, frames)), asyncio.ensure_future(self._take(socket, frames))]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _read(self, socket: Any, frames: asyncio.Queue[Any]) -> None:  # noqa: ANN401
        """Put frames in line; schemas are taken at once, because frames in line wait for them."""
        while True:
            data = await socket.recv()
            frame = json.loads(data) if isinstance(data, str) else parse_frame(data)
            if isinstance(frame, SocketFrame) and frame.kind == "schema":
                asked = self._asked.popleft()
                if not asked.done():
                    asked.set_result(frame)
            else:
                frames.put_nowait(frame)

    async def _take(self, socket: Any, frames: asyncio.Queue[Any]) -> None:  # noqa: ANN401
        while True:
            frame = await frames.get()
            if isinstance(frame, SocketFrame):
                value = None if frame.schema_id is None else await self._decoded(socket, frame.schema_id, frame.framed)
            else:
                value = frame or None
            if value != self._last:
                self._last = value
                self._values.put_nowait(value)

    async def _decoded(self, socket: Any, schema_id: int, framed: bytes) -> Any:  # noqa: ANN401
        if schema_id not in self._codecs:
            found = await self._ask(socket, ask_schema(schema_id))
            self._codecs[schema_id] = GenericCodec(Schema(found.framed.decode()))
        codec = self._codecs[schema_id]
        return codec.to_json(codec.decode(framed, start=HEADER_BYTES))

    async def _codec_named(self, socket: Any, name: str) -> tuple[int, GenericCodec]:  # noqa: ANN401
        if name not in self._named:
            found = await self._ask(socket, name)
            self._named[name] = (found.schema_id or 0, GenericCodec(Schema(found.framed.decode())))
        return self._named[name]

    async def _ask(self, socket: Any, frame: str | bytes) -> SocketFrame:  # noqa: ANN401
        """Ask for a schema; answers come in the order of the questions."""
        asked: asyncio.Future[SocketFrame] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        await socket.send(frame)
        return await asked

    def _disconnected(self) -> None:
        self._socket = None
        self._opened.clear()
        while self._asked:
            asked = self._asked.popleft()
            if not asked.done():
                asked.set_exception(GatewayUnavailable(0, "the connection was lost"))
                asked.exception()  # its reader may be gone with the connection
