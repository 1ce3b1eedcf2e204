"""Serving the gateway: uvicorn, with guards on each connection.

uvicorn waits for a request's headers without limits on time and size, and for a client that reads nothing. The guards
here end such connections, count connections by address, and answer what is malformed with a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.config import GatewaySettings
from headrace.errors import GatewayUnprotected, KeysUnusable, ListenFailed
from headrace.gateway.app import GatewayApp
from headrace.gateway.guards import ConnectionGuards, GuardedSocket
from headrace.gateway.metrics import REFUSED
from headrace.gateway.origins import host_and_port, is_loopback
from headrace.gateway.plain_commands import PlainCommands, WholeAnswer
from headrace.gateway.plain_reads import PlainReads
from headrace.gateway.problems import PROBLEM_JSON
from headrace.gateway.streams import BREAK_OFF
from headrace.observe import get_logger

__all__ = ["RunningGateway", "check_protected", "serving"]

_logger = get_logger(__name__)
_KEEP_ALIVE_S = 5
_BACKLOG = 2048
_MOST_WHOLE = sys.maxsize >> 1  # bytes of a body whose length is known
_FRAMING_PER_BYTE = 16  # of a body in chunks: more around each of its bytes than clients have reason to send


class RunningGateway:
    """A gateway that serves. `url` is where; `ended` is done when the server has stopped, for whatever reason."""

    def __init__(self, url: str, ended: asyncio.Future[None]) -> None:
        self.url = url
        self.ended = ended


@contextlib.asynccontextmanager
async def serving(app: GatewayApp, settings: GatewaySettings) -> AsyncIterator[RunningGateway]:
    """Serve the application while the block runs; then end its streams, and let requests finish.

    Raises ListenFailed, GatewayUnprotected, KeysUnusable.
    """
    check_protected(settings)
    config = _config_of(app, settings)
    listener = _bound(settings)
    server = _Server(config, handshake_s=settings.header_timeout_s)
    ended = asyncio.ensure_future(server.serve(sockets=[listener]))
    started = asyncio.ensure_future(server.has_started.wait())
    try:
        await asyncio.wait({ended, started}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        async with app.recording():  # an application beside the gateway may have no lifespan
            yield RunningGateway(_url_of(listener, settings), ended)
    finally:
        started.cancel()
        app.close_streams()
        server.should_exit = True
        await ended
        listener.close()


def check_protected(settings: GatewaySettings) -> None:
    """Raise GatewayUnprotected if other machines could use the gateway without authentication; warn if they may."""
    host, _ = host_and_port(settings.listen)
    if is_loopback(host):
        return
    if not settings.has_authentication:
        if not settings.allow_unauthenticated:
            raise GatewayUnprotected(host)
        _logger.warning("the gateway serves other machines without authentication", listen=settings.listen)
    elif settings.tls.certificate_location is None:
        _logger.warning(
            "the gateway serves other machines without TLS: tokens can be read on the way", listen=settings.listen
        )


class _Server(uvicorn.Server):
    """A server that leaves signals to the program, and tells when it has started."""

    def __init__(self, config: uvicorn.Config, *, handshake_s: float) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()
        self._handshake_s = handshake_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen: a client of TLS has no longer for its handshake than for its headers."""
        await super().startup(sockets=[])
        for each in sockets or ():
            server = await asyncio.get_running_loop().create_server(
                self._new_protocol,
                sock=each,
                ssl=self.config.ssl,
                backlog=self.config.backlog,
                ssl_handshake_timeout=self._handshake_s if self.config.ssl is not None else None,
            )
            self.servers.append(server)
        self.has_started.set()

    def _new_protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the program has its own handlers."""
        yield


def _config_of(app: GatewayApp, settings: GatewaySettings) -> uvicorn.Config:
    """Return uvicorn's settings. Raises KeysUnusable."""
    tls, guards = settings.tls, ConnectionGuards(settings)
    http = partial(GuardedProtocol, guards=guards, plain_reads=app.plain_reads, plain_commands=app.plain_commands)
    config = uvicorn.Config(
        app,
        http=http,  # type: ignore[arg-type] # it makes one
        ws=partial(GuardedSocket, guards=guards),  # type: ignore[arg-type] # this, too
        ws_max_size=settings.max_frame_bytes,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # anybody could send them, and pass for another address
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
        ssl_certfile=tls.certificate_location,
        ssl_keyfile=tls.key_location,
        ssl_keyfile_password=tls.key_password.get_secret_value() if tls.key_password else None,
        ssl_ca_certs=tls.ca_location,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls.ca_location else ssl.CERT_NONE,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        files = ", ".join(str(each) for each in (tls.certificate_location, tls.key_location, tls.ca_location) if each)
        raise KeysUnusable("gateway.tls", f"{error} ({files})") from error  # the error itself names no file
    return config


def _bound(settings: GatewaySettings) -> socket.socket:
    """Return a socket that is bound to the address of the settings. Raises ListenFailed."""
    host, port = host_and_port(settings.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is: answers in two parts would
    # wait 40 ms for each other.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenFailed(host, port, error.strerror or str(error)) from error
    return listener


def _url_of(listener: socket.socket, settings: GatewaySettings) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls.certificate_location else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class GuardedProtocol(HttpToolsProtocol):
    """One connection. A head is the request line and the headers of a request."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - uvicorn's own
        guards: ConnectionGuards,
        plain_reads: PlainReads | None,
        plain_commands: PlainCommands | None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self._guards = guards
        self._plain_reads = plain_reads
        self._plain_commands = plain_commands
        self._answered_s = 0.0
        self._begun = 0
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._address: str | None = None
        self._head_bytes = 0
        self._is_in_head = True
        self._is_in_body = False
        self._body_bytes = 0
        self._framing_bytes = 0
        self._is_refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Begin to wait for a head, unless there are too many connections."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self._guards.admit(address):
            self._is_refused = True
            transport.abort()
            return
        self._address = address
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and free the place; tell the request that is being answered that its client has left.

        uvicorn tells the last one that has come, which may be another one that waits behind it.
        """
        self._end()
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def _has_begun(self, cycle: RequestResponseCycle) -> None:
        """Remember a request until it is answered; requests are answered in their order."""
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(cycle)

    def _break_off(self, cycle: RequestResponseCycle) -> None:
        """End the connection in the middle of an answer, so that the client does not take it for a whole one."""
        cycle.disconnected = True  # uvicorn would log that the application has forgotten the end
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head that is not complete yet, and those around a body; feed the parser.

        Empty lines before a head belong to it: their sender must not keep the connection by them.
        """
        if self._is_refused:
            return
        is_between = self._is_between_requests()
        if is_between and self._is_known(data):
            return
        begun = self._begun
        if not self._is_in_head and not self._is_in_body:
            self._begin_head()
        if self._is_in_head:
            self._head_bytes += len(data)
        was_in_body, body_bytes = self._is_in_body, self._body_bytes
        super().data_received(data)
        if was_in_body and self._is_in_body:
            self._framing_bytes += len(data) - (self._body_bytes - body_bytes)
        self._check_sizes()
        is_whole = self._begun == begun + 1 and not (self._is_in_head or self._is_in_body or self._is_refused)
        if is_between and is_whole:
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Remember the headers of a request that came alone and in one piece."""
        if self._plain_reads is not None and data.endswith(b"\r\n\r\n"):
            self._plain_reads.learn(data, self.headers)
        if self._plain_commands is not None:
            self._plain_commands.learn(data, self.headers)

    def _is_between_requests(self) -> bool:
        """Return True if nothing of a request has come that is not answered, and the client takes its answers."""
        return (
            not self._is_in_body
            and (not self._is_in_head or self._head_bytes == 0)
            and (self.cycle is None or self.cycle.response_complete)
            and not (self.pipeline or self.flow.write_paused or self.transport.is_closing())
        )

    def _is_known(self, data: bytes) -> bool:
        """Answer a request that is known, or begin to; return False if it is to be parsed."""
        if self._plain_reads is not None and self._answered(self._plain_reads, data):
            return True
        return self._plain_commands is not None and self._begun_command(self._plain_commands, data)

    def _begun_command(self, commands: PlainCommands, data: bytes) -> bool:
        """Begin to answer a command that is known; return False if it is to be parsed."""
        dates, most_bytes = self.server_state.default_headers, self._guards.max_header_bytes
        answer = commands.begin(data, self._address or "", dates, most_bytes)
        if answer is None:
            return False
        self._unset_keepalive_if_required()
        self._stop_head_timer()
        self._is_in_head = False
        # uvicorn finds in it that a request is being answered, and leaves word there when the connection is to end.
        cycle = self.cycle = RequestResponseCycle(
            scope={},  # type: ignore[typeddict-item] # nobody looks at it
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=dates,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        self._has_begun(cycle)
        task = self.loop.create_task(self._finish(cycle, answer))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return True

    async def _finish(self, cycle: RequestResponseCycle, answer: Coroutine[Any, Any, WholeAnswer]) -> None:
        """Send an answer when it is there, as uvicorn's cycle does with those of ASGI."""
        head, body = await answer
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        self.transport.write(b"%b%b\r\n%b" % (head, b"" if cycle.keep_alive else b"connection: close\r\n", body))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _answered(self, reads: PlainReads, data: bytes) -> bool:
        """Answer a request that need not wait for anything; return False if it has to, or is not known."""
        if len(data) > self._guards.max_header_bytes:
            return False
        answer = reads.answer(data, self._address or "", self.server_state.default_headers)
        if answer is None:
            return False
        self.transport.write(answer)
        self.server_state.total_requests += 1
        self._is_in_head = False
        self._stop_head_timer()
        self._answered_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_for(self.timeout_keep_alive)
        return True

    def timeout_keep_alive_handler(self) -> None:
        """End a connection without requests, unless one was answered since the time began."""
        left_s = self._answered_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._keep_for(left_s)
        else:
            super().timeout_keep_alive_handler()

    def _keep_for(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _check_sizes(self) -> None:
        """Refuse a request whose head is too large, or what stands around its body."""
        if self._is_refused:
            return
        most_framing = self._guards.max_header_bytes + _FRAMING_PER_BYTE * self._body_bytes
        if self._is_in_head and self._head_bytes > self._guards.max_header_bytes:
            self._refuse(431, "headers", "the request's headers are too large")
        elif self._is_in_body and self._framing_bytes > most_framing:
            self._refuse(431, "headers", "the request has too much beside its body")

    def on_message_begin(self) -> None:
        """Begin a head: the time for it runs from its first byte."""
        super().on_message_begin()
        self._begun += 1
        if not self._is_in_head:
            self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind a body are left out: they come too late to say anything about the request."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End a head; one that is too large, or names no host or two, gets no further."""
        self._is_in_head, self._is_in_body = False, True
        self._body_bytes = self._framing_bytes = 0
        self._stop_head_timer()
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value)
            hosts += name == b"host"
        if size > self._guards.max_header_bytes:
            self._refuse(431, "headers", "the request's headers are too large")
        elif hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            self._refuse(400, "malformed", "a request of HTTP/1.1 has one header Host")
        if self._is_refused:
            return
        before = self.cycle
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is None or cycle is before:
            return  # a WebSocket
        self._has_begun(cycle)
        cycle.scope["extensions"] = {BREAK_OFF: partial(self._break_off, cycle)}  # type: ignore[dict-item]
        if cycle.scope["http_version"] == "1.0":
            cycle.send = partial(_send_unchunked, cycle, cycle.send)  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, unless the request was refused."""
        self._body_bytes += len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, unless it was refused."""
        self._is_in_body = False
        if not self._is_refused:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection, with its place, to the WebSocket's protocol; that one has limits on headers of its own.

        It would leave a request beyond those without an answer. One that comes before all others are answered ends the
        connection: answers and frames would be mixed, and whoever answers would not be told when the client leaves.
        """
        self._stop_head_timer()
        if any(not cycle.response_complete for cycle in self._unanswered):
            self._is_refused = True
            REFUSED.labels("malformed").inc()
            self.transport.close()
            return
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        if not isinstance(upgraded, GuardedSocket):
            return
        upgraded.address, self._address = self._address, None
        if not upgraded.handshake_initiated:
            self._refuse(431, "headers", "the headers of a WebSocket are at most 128, of 8 KiB each")

    def pause_writing(self) -> None:
        """Give a client that does not read some time."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._guards.slow_client_s, self._cut)

    def resume_writing(self) -> None:
        """Stop the time: the client reads."""
        super().resume_writing()
        self._stop_write_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, "malformed", "this is no valid HTTP request")

    def _begin_head(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self._guards.header_timeout_s, self._give_up_head)

    def _give_up_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._head_bytes == 0:
            self.transport.close()
            return
        self._refuse(408, "slow_headers", f"the headers took longer than {self._guards.header_timeout_s:g} s")

    def _cut(self) -> None:
        self._write_timer = None
        REFUSED.labels("slow_client").inc()
        self.transport.abort()

    def _refuse(self, status: int, reason: str, detail: str) -> None:
        """Answer with a problem, and close the connection."""
        self._is_refused = True
        REFUSED.labels(reason).inc()
        if self.transport.is_closing():
            return
        title = HTTPStatus(status).phrase
        problem = {"type": f"urn:headrace:problem:{reason.replace('_', '-')}", "title": title}
        body = json.dumps({**problem, "status": status, "detail": detail}).encode()
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _end(self) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        if self._address is not None:
            self._guards.release(self._address)
            self._address = None

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


async def _send_unchunked(
    cycle: RequestResponseCycle,
    send: Callable[[Any], Awaitable[None]],
    message: Any,  # noqa: ANN401
) -> None:
    """Send a part of an answer to a client of HTTP/1.0, which knows no chunks: where the body ends the connection does.

    uvicorn would send chunks, and the client would take their lengths for lines of the body.
    """
    if message["type"] == "http.response.start":
        if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
            cycle.chunked_encoding, cycle.expected_content_length = False, sys.maxsize
    elif not message.get("more_body", False) and cycle.expected_content_length > _MOST_WHOLE:
        cycle.expected_content_length = len(message.get("body", b""))
    await send(message)
