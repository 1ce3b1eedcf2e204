"""The side of a node that is asked: takes streams of other nodes and runs a handler for each request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from headrace.access import host_and_port
from headrace.cluster.frames import GATHER_BYTES, Frame, FrameKind, encode_error, encode_frame, frames_in
from headrace.cluster.transport import (
    CLUSTER,
    EXPECTED,
    NODE,
    SERVICE,
    STREAM,
    grpc_library,
    server_credentials,
    server_options,
)
from headrace.config import ClusterSettings
from headrace.errors import Busy, Forbidden, HeadraceError, NodeListenFailed, OperationFailed, TimedOut
from headrace.observe import counter, get_logger

__all__ = ["Handler", "IncomingRequest", "NodeServer"]

HANDLED = counter("cluster", "requests_handled", "Requests of other nodes, by how they ended.", ["outcome"])

_log = get_logger(__name__)
_LAST_WRITE_S = 1.0


class IncomingRequest(NamedTuple):
    """What another node asks; `deadline_s` is on the loop's clock."""

    method: str
    payload: bytes
    deadline_s: float
    peer: str


Handler: TypeAlias = Callable[[IncomingRequest], Awaitable[bytes]]


class NodeServer:
    """Listens for other nodes.

    Promises: a handler is cancelled when its caller gave up, or its deadline passed, or the caller is gone; what it
    raises is carried to the caller. Beyond `max_requests_in_flight` of one caller requests get Busy.
    """

    def __init__(self, node: str, handlers: Mapping[str, Handler], settings: ClusterSettings) -> None:
        self.node = node
        self._handlers = handlers
        self._settings = settings
        self._server: Any = None
        self._streams: set[_ServedStream] = set()
        self.address = ""

    async def start(self) -> None:
        """Listen. Raises BadArgument for what is no address, and NodeListenFailed if it can't be used."""
        grpc = grpc_library()
        settings = self._settings
        host_and_port(settings.listen, "cluster.listen")  # gRPC takes port 99999 for 34463, and none for 443
        if settings.advertise is not None:
            host_and_port(settings.advertise, "cluster.advertise")
        self._server = grpc.aio.server(options=server_options(max_message_bytes=settings.max_message_bytes))
        serve = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {STREAM: serve}),))
        credentials = server_credentials(settings.tls)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(settings.listen)
            else:
                port = self._server.add_secure_port(settings.listen, credentials)
        except RuntimeError as error:
            raise NodeListenFailed(settings.listen, str(error).partition(";")[0]) from error
        await self._server.start()
        host = settings.listen.rpartition(":")[0]
        self.address = settings.advertise or f"{host}:{port}"

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """Give running requests some time, take no further ones, then end all streams and stop listening."""
        await asyncio.gather(*(stream.finish(grace_s) for stream in self._streams))
        if self._server is not None:
            await self._server.stop(_LAST_WRITE_S)

    async def _serve(self, requests: object, context: Any) -> None:  # noqa: ANN401 - grpc's
        metadata = dict(context.invocation_metadata())
        peer = str(metadata.get(NODE, context.peer()))
        own = ((NODE, self.node), (CLUSTER, self._settings.name))
        context.set_trailing_metadata(own)  # a stream that ends at once may lose its initial metadata at the caller's
        await context.send_initial_metadata(own)
        if metadata.get(CLUSTER) != self._settings.name or metadata.get(EXPECTED, self.node) != self.node:
            return  # the caller sees in our metadata whom it has reached, and leaves
        stream = _ServedStream(peer, self.node, self._handlers, context, self._settings)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)


class _ServedStream:
    """One caller's stream: its running requests, and the replies that wait to be written."""

    def __init__(
        self,
        peer: str,
        node: str,
        handlers: Mapping[str, Handler],
        context: Any,  # noqa: ANN401 - grpc's
        settings: ClusterSettings,
    ) -> None:
        self._peer = peer
        self._node = node
        self._handlers = handlers
        self._context = context
        self._limit = settings.max_requests_in_flight
        self._max_bytes = settings.max_message_bytes
        self._gather_bytes = min(GATHER_BYTES, self._max_bytes)
        self._default_s = settings.request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._outbox: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._last_id = 0
        self._is_finishing = False
        self._is_finished = False

    async def run(self) -> None:
        """Serve until the caller is gone, or this node stops."""
        self._reader = asyncio.create_task(self._read_on(), name=f"headrace-requests-{self._peer}")
        self._writer = asyncio.create_task(self._write_on(), name=f"headrace-replies-{self._peer}")
        try:
            await asyncio.wait({self._reader})
        finally:
            for task in (self._reader, self._writer):
                task.cancel()
            self.end()
            await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def finish(self, grace_s: float) -> None:
        """Say goodbye, let what runs end, write the last replies, and end the stream."""
        self._is_finishing = True
        self._send(encode_frame(FrameKind.GOODBYE, self._last_id))
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=grace_s)
        self._is_finished = True
        self._ready.set()
        if self._writer is not None and self._reader is not None:
            await asyncio.wait({self._writer}, timeout=_LAST_WRITE_S)
            self._reader.cancel()

    def end(self) -> None:
        """Cancel what runs for this caller; nobody is left to reply to."""
        for task in list(self._running.values()):
            task.cancel()

    async def _read_on(self) -> None:
        eof = grpc_library().aio.EOF
        try:
            while (message := await self._context.read()) is not eof:
                for frame in frames_in(message):
                    self._take(frame)
                # A caller that does not read its replies gets no further ones to wait for.
                await self._room.wait()
        except (HeadraceError, UnicodeDecodeError) as error:
            _log.warning("a stream is not understood", peer=self._peer, reason=str(error))

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameKind.CANCEL:
            task = self._running.get(frame.id)
            if task is not None:
                task.cancel()
            return
        if self._is_finishing:
            return  # the caller knows by the goodbye that this one was not seen
        self._last_id = frame.id
        if len(self._running) >= self._limit:
            HANDLED.labels("busy").inc()
            self._reply_error(frame.id, Busy(f"node {self._node!r}", self._limit))
            return
        left_s = frame.time_left_ms / 1000 or self._default_s
        request = IncomingRequest(frame.method.decode(), frame.payload, self._loop.time() + left_s, self._peer)
        self._running[frame.id] = self._loop.create_task(self._handle(frame.id, request))

    async def _handle(self, number: int, request: IncomingRequest) -> None:
        timer = self._loop.call_at(request.deadline_s, self._expire, number)
        try:
            reply = await self._reply_of(request)
        except asyncio.CancelledError:
            HANDLED.labels("cancelled").inc()
            raise
        except Exception as error:
            HANDLED.labels("failed").inc()
            self._fail(number, request, error)
        else:
            HANDLED.labels("replied").inc()
            self._send(encode_frame(FrameKind.REPLY, number, payload=reply))
        finally:
            timer.cancel()
            self._running.pop(number, None)

    async def _reply_of(self, request: IncomingRequest) -> bytes:
        handler = self._handlers.get(request.method)
        if handler is None:
            raise Forbidden(f"call {request.method!r}", f"node {self._node!r} has no such method")
        reply = await handler(request)
        if len(reply) > self._max_bytes:
            reason = f"{len(reply)} bytes are more than cluster.max_message_bytes, {self._max_bytes}"
            raise OperationFailed("replying", reason, outcome_known=False)
        return reply

    def _fail(self, number: int, request: IncomingRequest, error: Exception) -> None:
        if not isinstance(error, HeadraceError):
            _log.error("a handler failed", method=request.method, peer=self._peer, exc_info=error)
        self._reply_error(number, error)

    def _expire(self, number: int) -> None:
        task = self._running.get(number)
        if task is not None:
            task.cancel()
            self._reply_error(number, TimedOut("the request", 0.0, outcome_known=False))

    def _reply_error(self, number: int, error: Exception) -> None:
        self._send(encode_frame(FrameKind.ERROR, number, payload=encode_error(error)))

    def _send(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._ready.set()
        if len(self._outbox) >= self._limit:
            self._room.clear()

    async def _write_on(self) -> None:
        """Write what has gathered while the last message was being written."""
        while True:
            await self._ready.wait()
            if not self._outbox and self._is_finished:
                return
            message = self._gather()
            if len(self._outbox) < self._limit:
                self._room.set()
            if not self._outbox and not self._is_finished:
                self._ready.clear()
            await self._context.write(message)

    def _gather(self) -> bytes:
        taken = [self._outbox.popleft()]
        size = len(taken[0])
        while self._outbox and size + len(self._outbox[0]) <= self._gather_bytes:
            taken.append(self._outbox.popleft())
            size += len(taken[-1])
        return taken[0] if len(taken) == 1 else b"".join(taken)
