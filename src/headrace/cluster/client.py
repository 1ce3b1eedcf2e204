"""The side of a node that asks: one stream to each other node, shared by all callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, NamedTuple

from headrace.cluster.frames import GATHER_BYTES, LARGEST_TIME_LEFT_MS, FrameKind, decode_error, encode_frame, frames_in
from headrace.cluster.transport import (
    CLUSTER,
    EXPECTED,
    METHOD,
    NODE,
    channel_options,
    client_credentials,
    grpc_library,
)
from headrace.config import ClusterSettings
from headrace.errors import BadArgument, Busy, TimedOut, Unreachable

__all__ = ["Peer"]

_CONNECT_S = 3.0
_LOOK_EVERY_S = 0.05
# A little longer than a node that leaves gives the requests which it still runs.
_FINISH_S = 6.0


class Peer:
    """Another node, to be asked. It connects when it is first asked, and again after a connection was lost.

    Promises: `outcome_known` of what is raised is True only if the peer never got the request, or said so itself. When
    the connection is lost, all that is in flight fails at once. A caller that is cancelled cancels its handler there.
    """

    def __init__(self, address: str, *, node: str, settings: ClusterSettings, expected: str | None = None) -> None:
        self.address = address
        self._node = node
        self._expected = expected
        self._settings = settings
        self._connection: _Connection | None = None
        self._opened: set[_Connection] = set()
        self._connecting: asyncio.Task[_Connection] | None = None
        self._is_closed = False

    async def call(self, method: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Return the peer's reply. Raises what its handler raised, Busy, Unreachable, TimedOut."""
        connection, left_s = await self._connected(timeout_s)
        return await connection.call(method.encode(), payload, left_s)

    async def finish(self) -> None:
        """Take no further requests, and close the connection when those in flight have ended, or had the time to."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _FINISH_S
        while loop.time() < until_s and any(each.is_busy for each in self._opened):  # noqa: ASYNC110 - it is counted
            await asyncio.sleep(_LOOK_EVERY_S)
        await self.close()

    async def close(self) -> None:
        """Close the connection; what is in flight fails."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._opened):
            await connection.close("this node closed the connection")

    async def _connected(self, timeout_s: float) -> tuple[_Connection, float]:
        if self._is_closed:
            raise Unreachable(self.address, "the connection was closed")
        connection = self._connection
        if connection is not None and connection.takes_requests:
            return connection, timeout_s
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if self._connecting is None or self._connecting.done():
            self._connecting = loop.create_task(self._connect())
            self._connecting.add_done_callback(_retrieve)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await asyncio.shield(self._connecting)
        except TimeoutError as error:
            raise TimedOut(f"connecting to {self.address}", timeout_s) from error
        except asyncio.CancelledError:
            # Closed by others, because the node has left; to this caller nobody listens.
            if self._connecting.cancelled():
                raise Unreachable(self.address, "the connection was closed") from None
            raise
        return connection, max(0.001, timeout_s - (loop.time() - began_s))

    async def _connect(self) -> _Connection:
        for lost in [each for each in self._opened if each.is_lost]:
            self._opened.discard(lost)
            await lost.close("the connection was lost")
        connection = _Connection(self.address, self._node, self._settings)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await connection.open(self._expected)
        except TimeoutError as error:
            await connection.close("no answer")
            raise Unreachable(self.address, f"no answer within {_CONNECT_S:g} s") from error
        except BaseException:
            await connection.close("it could not be opened")
            raise
        self._connection = connection
        self._opened.add(connection)
        return connection


class _Request(NamedTuple):
    """A request that waits for its reply."""

    answered: asyncio.Future[bytes]
    timer: asyncio.TimerHandle


class _Connection:
    """One stream, until it is lost."""

    def __init__(self, address: str, node: str, settings: ClusterSettings) -> None:
        grpc = grpc_library()
        self._grpc = grpc
        self._address = address
        self._cluster = settings.name
        self._node = node
        self._limit = settings.max_requests_in_flight
        self._max_bytes = settings.max_message_bytes
        self._gather_bytes = min(GATHER_BYTES, self._max_bytes)
        options = channel_options(max_message_bytes=self._max_bytes, server_name=settings.tls.server_name)
        credentials = client_credentials(settings.tls)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._loop = asyncio.get_running_loop()
        self._stream: Any = None
        self._requests: dict[int, _Request] = {}
        self._last_id = 0
        self._sent_id = 0  # requests go out in the order of their ids
        self._outbox: deque[tuple[int, bytes]] = deque()
        self._ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.is_lost = False
        self._is_leaving = False

    @property
    def is_busy(self) -> bool:
        """Return True while requests wait for their replies."""
        return bool(self._requests) and not self.is_lost

    @property
    def takes_requests(self) -> bool:
        """Return True unless the connection was lost, or the peer said goodbye."""
        return not self.is_lost and not self._is_leaving

    async def open(self, expected: str | None) -> None:
        """Begin the stream, and look at who answers. Raises Unreachable."""
        metadata = [(NODE, self._node), (CLUSTER, self._cluster)]
        if expected is not None:
            metadata.append((EXPECTED, expected))
        self._stream = self._channel.stream_stream(METHOD)(metadata=metadata)
        try:
            answered = dict(await self._stream.initial_metadata() or await self._stream.trailing_metadata())
        except self._grpc.aio.AioRpcError as error:
            raise Unreachable(self._address, error.details() or str(error.code())) from error
        if answered.get(CLUSTER) != self._cluster or answered.get(NODE) != (expected or answered.get(NODE)):
            found = f"node {answered.get(NODE)!r} of cluster {answered.get(CLUSTER)!r} is there"
            raise Unreachable(self._address, f"{found}, not node {expected!r} of cluster {self._cluster!r}")
        self._tasks = [self._loop.create_task(self._write_on()), self._loop.create_task(self._read_on())]

    async def call(self, method: bytes, payload: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its reply."""
        self._check(payload)
        self._last_id = number = self._last_id + 1
        answered: asyncio.Future[bytes] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._expire, number, timeout_s)
        self._requests[number] = _Request(answered, timer)
        left_ms = _milliseconds(timeout_s)
        self._send(
            number, encode_frame(FrameKind.REQUEST, number, time_left_ms=left_ms, method=method, payload=payload)
        )
        try:
            return await answered
        except asyncio.CancelledError:
            self._give_up(number)
            raise

    async def close(self, reason: str) -> None:
        """End the stream; what is in flight fails."""
        self._lose(reason)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()

    def _check(self, payload: bytes) -> None:
        if len(payload) > self._max_bytes:
            raise BadArgument("payload", f"{len(payload)} bytes", f"cluster.max_message_bytes is {self._max_bytes}")
        if len(self._requests) >= self._limit or len(self._outbox) >= self._limit:
            raise Busy(f"the connection to {self._address}", self._limit)
        if not self.takes_requests:
            raise Unreachable(self._address, "the connection was lost")

    def _send(self, number: int, frame: bytes) -> None:
        self._outbox.append((number, frame))
        self._ready.set()

    async def _write_on(self) -> None:
        """Write what has gathered while the last message was being written."""
        try:
            while True:
                await self._ready.wait()
                message = self._gather()
                if not self._outbox:
                    self._ready.clear()
                if message:
                    await self._stream.write(message)
        except Exception as error:  # whatever it is, nobody sends requests any more
            self._lose(_reason(error))

    def _gather(self) -> bytes:
        """Take the next message out of the outbox. A request that its caller has given up is never sent."""
        taken: list[bytes] = []
        size = 0
        while self._outbox and (not taken or size + len(self._outbox[0][1]) <= self._gather_bytes):
            number, frame = self._outbox.popleft()
            if number and number not in self._requests:
                continue
            self._sent_id = max(self._sent_id, number)
            taken.append(frame)
            size += len(frame)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def _read_on(self) -> None:
        reason = "the peer closed the connection"
        try:
            while (message := await self._stream.read()) is not self._grpc.aio.EOF:
                for frame in frames_in(message):
                    if frame.kind == FrameKind.GOODBYE:
                        self._hear_goodbye(frame.id)
                    else:
                        self._settle(frame.id, frame.kind, frame.payload)
        except Exception as error:  # whatever it is, nobody reads replies any more
            reason = _reason(error)
        finally:
            self._lose(reason)

    def _settle(self, number: int, kind: int, payload: bytes) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return  # given up meanwhile
        request.timer.cancel()
        if request.answered.done():
            return
        if kind == FrameKind.REPLY:
            request.answered.set_result(payload)
        else:
            request.answered.set_exception(decode_error(payload, peer=self._address))

    def _hear_goodbye(self, last_id: int) -> None:
        """Fail what the peer never saw, at once and with a known outcome; wait for the rest."""
        self._is_leaving = True
        self._outbox.clear()
        for number in [each for each in self._requests if each > last_id]:
            request = self._requests.pop(number)
            request.timer.cancel()
            if not request.answered.done():
                request.answered.set_exception(Unreachable(self._address, "the node is stopping"))

    def _expire(self, number: int, timeout_s: float) -> None:
        request = self._requests.get(number)
        if request is not None and not request.answered.done():
            is_sent = number <= self._sent_id
            error = TimedOut(f"a request to {self._address}", timeout_s, outcome_known=not is_sent)
            request.answered.set_exception(error)
        self._give_up(number)

    def _give_up(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return
        request.timer.cancel()
        if number <= self._sent_id and not self.is_lost:
            self._send(0, encode_frame(FrameKind.CANCEL, number))

    def _lose(self, reason: str) -> None:
        """Fail all that is in flight; of what was never sent the outcome is known."""
        if self.is_lost:
            return
        self.is_lost = True
        requests, self._requests = self._requests, {}
        self._outbox.clear()
        for number, request in requests.items():
            request.timer.cancel()
            if not request.answered.done():
                is_sent = number <= self._sent_id
                request.answered.set_exception(Unreachable(self._address, reason, outcome_known=not is_sent))
        if self._stream is not None:
            with contextlib.suppress(Exception):  # it is gone anyway
                self._stream.cancel()


def _retrieve(connecting: asyncio.Task[_Connection]) -> None:
    """Look at an error that all callers were too impatient to wait for; the next call connects again."""
    if not connecting.cancelled():
        connecting.exception()


def _reason(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else None) or str(error) or type(error).__name__


def _milliseconds(timeout_s: float) -> int:
    return min(LARGEST_TIME_LEFT_MS, max(1, int(timeout_s * 1000)))
