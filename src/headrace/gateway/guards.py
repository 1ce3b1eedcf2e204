"""Guards on connections: how many there are of each address, and what the client of a WebSocket may do to one.

uvicorn answers every ping at once, whether the client takes the answers or not, keeps fragments of a message without a
limit on their number, and waits forever for a client that does not read. The guards here end such connections.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import State

from headrace.config import GatewaySettings
from headrace.errors import RateExceeded
from headrace.gateway.limits import Rates
from headrace.gateway.metrics import CONNECTIONS, REFUSED
from headrace.gateway.socket_wire import MORE_FRAMES, PUSHES

__all__ = ["ConnectionGuards", "GuardedSocket", "frame_head"]

_MOST_FRAGMENTS = 4_096  # of one message
_MOST_KEPT_BYTES = 1 << 16  # of a frame that is kept because others may get it, too
_CONTROL_FRAMES_PER_S = 10.0
_CONTROL_FRAMES_AT_ONCE = 100
_WHOLE_TEXT, _WHOLE_BINARY = 0x81, 0x82
_LENGTH_OF_2_BYTES, _LENGTH_OF_8_BYTES = 126, 127
_HEAD_2, _HEAD_8 = struct.Struct("!BBH"), struct.Struct("!BBQ")


class ConnectionGuards:
    """The limits of connections, and how many there are of each address."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.header_timeout_s = settings.header_timeout_s
        self.max_header_bytes = settings.max_header_bytes
        self.slow_client_s = settings.slow_client_s
        self._most = settings.max_connections
        self._most_per_address = settings.max_connections_per_address
        self._open: Counter[str] = Counter()
        self._total = 0
        self._last_frame: str | bytes = b""
        self._last_framed = _framed(b"")

    def admit(self, address: str) -> bool:
        """Count a connection; return False, and count nothing, if there are too many."""
        if self._total >= self._most or self._open[address] >= self._most_per_address:
            REFUSED.labels("connections").inc()
            return False
        self._open[address] += 1
        self._total += 1
        CONNECTIONS.inc()
        return True

    def release(self, address: str) -> None:
        """Count a connection no more."""
        self._open[address] -= 1
        self._total -= 1
        if not self._open[address]:
            del self._open[address]
        CONNECTIONS.dec()

    def framed(self, frame: str | bytes) -> bytes:
        """Return a whole message as it stands on the wire. What many sockets get, one after the other, is made once."""
        if frame is self._last_frame:
            return self._last_framed
        framed = _framed(frame)
        if len(framed) <= _MOST_KEPT_BYTES:
            self._last_frame, self._last_framed = frame, framed
        return framed


class GuardedSocket(WebSocketsSansIOProtocol):
    """The connection of one WebSocket. `address` is the place that it holds among the connections, if it has one."""

    def __init__(self, *args: Any, guards: ConnectionGuards, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        self.address: str | None = None
        self._guards = guards
        self._control = Rates(_CONTROL_FRAMES_PER_S, _CONTROL_FRAMES_AT_ONCE, reason="control_frames")
        self._cut_timer: asyncio.TimerHandle | None = None
        self._gathered: list[bytes] = []
        self._is_taken = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and free the place."""
        self._stop_cut_timer()
        if self.address is not None:
            self._guards.release(self.address)
            self.address = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Take nothing from a client that takes nothing: the answers to its pings would pile up."""
        super().pause_writing()
        self._is_taken = False
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()
        self._cut_later()

    def resume_writing(self) -> None:
        """Read again: the client does, too."""
        super().resume_writing()
        self._is_taken = True
        if not self.transport.is_closing():
            self._stop_cut_timer()
        self._read_on()

    async def receive(self) -> Any:  # noqa: ANN401 - a message of ASGI
        """Return the next message; the connection is read on behind the last one, if the client takes its answers."""
        message = await self.queue.get()
        self._read_on()
        return message

    def handle_connect(self, event: Request) -> None:
        """Begin a socket, whose application may write frames without a turn of the loop (`PUSHES`)."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["extensions"][PUSHES] = {"is_ready": self.is_ready, "write": self.write_frame}

    def is_ready(self) -> bool:
        """Return True if a frame can be written now: the socket is open, and the client takes what it gets."""
        return (
            self._is_taken
            and self.handshake_complete
            and not (self.close_sent or self.disconnected or self.transport.is_closing())
            and self.conn.state is State.OPEN
            and self.initial_response is None
        )

    def write_frame(self, frame: str | bytes) -> None:
        """Write a frame now, while the socket `is_ready`."""
        if self._gathered:
            self._write_gathered()
        self.transport.write(self._framed(frame))

    async def send(self, message: Any) -> None:  # noqa: ANN401 - a message of ASGI
        """Send a message. A frame that another one follows at once (`MORE_FRAMES`) is written together with it."""
        is_plain = message["type"] == "websocket.send" and self.handshake_complete and not self.close_sent
        if not is_plain or self.disconnected or not self.writable.is_set() or self.initial_response is not None:
            self._write_gathered()
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True  # refused, and answered: uvicorn would log that the answer is missing
            return
        data = message.get("bytes")
        try:
            self._gathered.append(self._framed(message["text"] if data is None else data))
        except InvalidState as error:
            raise ClientDisconnected from error
        if not message.get(MORE_FRAMES):
            self._write_gathered()

    def _framed(self, frame: str | bytes) -> bytes:
        """Return a message as it stands on the wire. Raises InvalidState unless the socket is open.

        A compressed message depends on those before it, so that the connection makes its frame.
        """
        if not self.conn.extensions and self.conn.state is State.OPEN:
            return self._guards.framed(frame)
        if isinstance(frame, str):
            self.conn.send_text(frame.encode())
        else:
            self.conn.send_binary(frame)
        return b"".join(self.conn.data_to_send())

    def _write_gathered(self) -> None:
        """Write the frames that have been gathered, before anything else is."""
        if self._gathered:
            data, self._gathered = b"".join(self._gathered), []
            if not self.transport.is_closing():
                self.transport.write(data)

    async def run_asgi(self) -> None:
        """Serve the socket; what the client has not taken some time after the end is thrown away."""
        try:
            await super().run_asgi()
        finally:
            self._cut_later()

    def keepalive_timeout(self) -> None:
        """End a connection that does not answer; one that is being waited for in writing has a time of its own."""
        if not self.writable.is_set() and self.ping_timeout is not None:
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._cut_later()

    def handle_ping(self) -> None:
        """Answer a ping, unless there are too many."""
        if self._may_control():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take the answer to a ping, unless there are too many."""
        if self._may_control():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment; empty ones count for nothing in the size of a message, so they are counted."""
        if self.close_sent:
            return
        if len(self.frames) >= _MOST_FRAGMENTS:
            REFUSED.labels("frame").inc()
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {_MOST_FRAGMENTS} fragments")
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a message to the application, unless it is text that is no UTF-8."""
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_utf8(self.frames):
            self.frames = []
            REFUSED.labels("frame").inc()
            self._fail(CloseCode.INVALID_DATA, "text must be UTF-8")
            return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """End a connection whose bytes are no frames, and count it."""
        REFUSED.labels("frame").inc()
        super().handle_parser_exception()

    def _may_control(self) -> bool:
        if self.close_sent:
            return False
        try:
            self._control.take("")
        except RateExceeded:
            self._fail(CloseCode.POLICY_VIOLATION, "too many control frames")
            return False
        return True

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection with a code, and tell the application."""
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.close_sent = True
        self.transport.close()

    def _read_on(self) -> None:
        if self.read_paused and self.queue.empty() and self.writable.is_set():
            self.read_paused = False
            self.transport.resume_reading()

    def _cut_later(self) -> None:
        if self._cut_timer is None and not self.disconnected:
            self._cut_timer = self.loop.call_later(self._guards.slow_client_s, self._cut)

    def _cut(self) -> None:
        self._cut_timer = None
        REFUSED.labels("slow_client").inc()
        self.transport.abort()

    def _stop_cut_timer(self) -> None:
        if self._cut_timer is not None:
            self._cut_timer.cancel()
            self._cut_timer = None


def _framed(frame: str | bytes) -> bytes:
    data = frame.encode() if isinstance(frame, str) else frame
    return frame_head(data, is_text=isinstance(frame, str)) + data


def frame_head(data: bytes, *, is_text: bool) -> bytes:
    """Return what stands before the bytes of a whole message: its kind and its length (RFC 6455); servers mask none."""
    kind, size = _WHOLE_TEXT if is_text else _WHOLE_BINARY, len(data)
    if size < _LENGTH_OF_2_BYTES:
        return bytes((kind, size))
    if size < 1 << 16:
        return _HEAD_2.pack(kind, _LENGTH_OF_2_BYTES, size)
    return _HEAD_8.pack(kind, _LENGTH_OF_8_BYTES, size)


def _is_utf8(pieces: list[bytes]) -> bool:
    try:
        b"".join(pieces).decode()
    except UnicodeDecodeError:
        return False
    return True
