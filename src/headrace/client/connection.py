"""One socket over many keys, collections and keyspaces, opened again whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.client.frames import SocketFrame, ask_schema, close_meaning, parse_frame
from headrace.client.subscriptions import ClientSubscription
from headrace.errors import (
    BadArgument,
    Closed,
    GatewayRefused,
    GatewayUnavailable,
    HeadraceError,
    MissingExtra,
    SocketRefused,
)
from headrace.observe import get_logger
from headrace.runtime import Backoff
from headrace.serde import HEADER_BYTES, GenericCodec, Schema

__all__ = ["ClientConnection", "ConnectionOptions", "Retries", "SocketEnd", "ended_of", "json_text", "open_socket"]

_PROTOCOL = "headrace.v1"
_LOST = 1006
# A connection can end without a word: it is asked for a sign of life this often, and has as long to give one.
_SILENCE_S = 20.0
_CLOSE_S = 1.0  # for the other end's answer to the end: there may be nobody left to answer
# How often a token function may give tokens that are refused, before that is an error.
_MOST_REFUSED_TOKENS = 3
_logger = get_logger(__name__)


class ConnectionOptions(NamedTuple):
    """What a connection is made with. `probe` returns what the gateway refuses the client with, if it does."""

    url: str
    token: Callable[[], Awaitable[str | None]]
    has_fresh_tokens: bool
    probe: Callable[[], Awaitable[GatewayRefused | None]]
    problem: Callable[[dict[str, Any]], HeadraceError]
    backoff: Backoff
    on_status: Callable[[str, int | None], None] | None

    async def refusal(self, ended: SocketEnd, retries: Retries) -> HeadraceError | None:
        """Return the error that ends everything, if the gateway would refuse another connection, too."""
        if not ended.has_token:
            return None
        if not ended.was_open:
            error = await self.probe()
            may_improve = error is not None and error.status == 401 and self.has_fresh_tokens
            return None if may_improve and retries.may_renew_token() else error
        action = close_meaning(ended.code).action
        if action == "refused" or (action == "token" and not self.has_fresh_tokens):
            return SocketRefused(ended.code, ended.reason)
        return None


@dataclass(slots=True)
class _Message:
    frame: str
    reply: asyncio.Future[Any]
    failures: int = 0


class SocketEnd(NamedTuple):
    """How a socket ended; `has_token` is False if there was none to open it with."""

    was_open: bool
    code: int
    reason: str
    has_token: bool = True
    open_s: float = 0.0


class Retries:
    """How often in a row a socket failed. One that is lost again sooner than it was waited for has failed, too."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures = 0
        self._refused_tokens = 0
        self._delay_s = 0.0

    @property
    def is_first(self) -> bool:
        """True if nothing has failed before in this row."""
        return self._failures == 0

    def may_renew_token(self) -> bool:
        """Count a token that was refused; return False if the program's function has given too many of them."""
        self._refused_tokens += 1
        return self._refused_tokens <= _MOST_REFUSED_TOKENS

    async def wait(self, open_s: float) -> None:
        """Wait before the next attempt, the longer the more have failed; `open_s` is how long the last one was open."""
        if open_s > self._delay_s:
            self._failures = self._refused_tokens = 0
        self._failures += 1
        self._delay_s = self._backoff.delay_s(self._failures)
        await asyncio.sleep(self._delay_s)


def json_text(value: Any, name: str) -> str:  # noqa: ANN401
    """Return a value as JSON. Raises BadArgument for what JSON lacks: such a frame would end the socket of all."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(name, "…", f"JSON can't carry it: {error}") from error
    return text


@contextlib.asynccontextmanager
async def open_socket(options: ConnectionOptions, protocols: Sequence[str]) -> AsyncIterator[Any]:
    """Open a socket with the client's token. Raises MissingExtra and the errors of websockets."""
    try:
        import websockets
    except ImportError as error:
        raise MissingExtra("websockets", "client") from error
    try:
        token = await options.token()
    except Exception as error:  # of the program's own function
        raise _NoToken(repr(error)) from error
    given = [*protocols, *([f"headrace.bearer.{token}"] if token else [])]
    named = [websockets.Subprotocol(each) for each in given]
    # Frames of a snapshot may be large; the gateway bounds them.
    async with websockets.connect(
        options.url,
        subprotocols=named or None,
        max_size=None,
        ping_interval=_SILENCE_S,
        ping_timeout=_SILENCE_S,
        close_timeout=_CLOSE_S,
    ) as socket:
        yield socket


async def ended_of(
    opening: contextlib.AbstractAsyncContextManager[Any], serve: Callable[[Any], Awaitable[None]]
) -> SocketEnd:
    """Serve a socket to its end, and return how it ended. Raises Headrace's own errors."""
    import websockets

    opened_s: float | None = None
    try:
        async with opening as socket:
            opened_s = time.monotonic()
            await serve(socket)
    except _NoToken as error:
        _logger.warning("no token for the socket", error=str(error))
        return _end_of(opened_s, _LOST, f"no token: {error}")._replace(has_token=False)
    except websockets.ConnectionClosed as closed:
        code = _LOST if closed.rcvd is None else closed.rcvd.code
        return _end_of(opened_s, code, "" if closed.rcvd is None else closed.rcvd.reason)
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        return _end_of(opened_s, _LOST, str(error))
    return _end_of(opened_s, _LOST, "")


def _end_of(opened_s: float | None, code: int, reason: str) -> SocketEnd:
    open_s = 0.0 if opened_s is None else time.monotonic() - opened_s
    return SocketEnd(opened_s is not None, code, reason, open_s=open_s)


class _NoToken(Exception):
    """The program's function for tokens has raised."""


class ClientConnection:
    """Keeps a socket open for as long as the client is, and hands frames to their subscriptions, in order."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._numbers = itertools.count(1)
        self._subscriptions: dict[int, ClientSubscription[Any]] = {}
        self._messages: dict[int, _Message] = {}
        self._codecs: dict[int, GenericCodec] = {}
        self._schemas: dict[int, asyncio.Future[str]] = {}
        self._socket: Any = None
        self._running: asyncio.Task[None] | None = None
        self._later: set[asyncio.Task[None]] = set()
        self._outgoing: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._is_closed = False

    def new_number(self) -> int:
        """Return the number of a new subscription. Raises Closed."""
        if self._is_closed:
            raise Closed("the client")
        return next(self._numbers)

    def add(self, subscription: ClientSubscription[Any]) -> None:
        """Follow something. Raises BadArgument if it can't be asked for."""
        frame = json_text(subscription.request(), "subscription")
        self._subscriptions[subscription.number] = subscription
        self._send(frame)
        self._start()

    def remove(self, number: int) -> None:
        """End a subscription."""
        if self._subscriptions.pop(number, None) is not None:
            self._send(json_text({"op": "unsubscribe", "id": number}, "unsubscribe"))

    async def publish(self, request: dict[str, Any]) -> Any:  # noqa: ANN401
        """Send a message, over as many connections as it takes, and return the reply. Raises BadArgument."""
        number = self.new_number()
        frame = json_text({**request, "op": "publish", "id": number}, "publish")
        message = _Message(frame, asyncio.get_running_loop().create_future())
        self._messages[number] = message
        self._send(frame)
        self._start()
        try:
            return await message.reply
        finally:
            self._messages.pop(number, None)

    async def close(self) -> None:
        """End the socket and all that is on it."""
        self._is_closed = True
        tasks = [*self._later, *([] if self._running is None else [self._running])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end_all(None)

    def _send(self, frame: str | bytes) -> None:
        if self._socket is not None:
            self._outgoing.put_nowait(frame)

    def _start(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="headrace-client-socket")

    async def _run(self) -> None:
        try:
            await self._keep_open()
        except Exception as error:  # whoever waits must hear of it: nothing else would end the wait
            self._end_all(error)
            if not isinstance(error, HeadraceError):
                raise

    async def _keep_open(self) -> None:
        """Keep a socket open until the gateway refuses for good. Raises NotReadable, MissingExtra."""
        retries = Retries(self._options.backoff)
        while True:
            ended = await self._connect_once()
            refusal = await self._options.refusal(ended, retries)
            if refusal is not None:
                self._end_all(refusal)
                return
            if retries.is_first and not ended.was_open:
                _logger.warning(
                    "no socket to the gateway yet; it is tried again", at=self._options.url, why=ended.reason
                )
            self._tell("waiting", ended.code)
            await retries.wait(ended.open_s)

    async def _connect_once(self) -> SocketEnd:
        """Open a socket and serve it to its end."""
        try:
            return await ended_of(open_socket(self._options, [_PROTOCOL]), self._serve)
        finally:
            self._disconnected()

    async def _serve(self, socket: Any) -> None:  # noqa: ANN401
        self._socket = socket
        self._outgoing = asyncio.Queue()
        for each in self._subscriptions.values():
            self._send(json_text(each.request(), "subscription"))
        for message in self._messages.values():
            self._send(message.frame)
        self._tell("open", None)
        frames: asyncio.Queue[dict[str, Any] | SocketFrame] = asyncio.Queue()
        work = [asyncio.ensure_future(each) for each in (self._read(socket, frames), self._write(socket))]
        work.append(asyncio.ensure_future(self._take_all(frames)))
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _read(self, socket: Any, frames: asyncio.Queue[dict[str, Any] | SocketFrame]) -> None:  # noqa: ANN401
        while True:
            self._receive(await socket.recv(), frames)

    async def _write(self, socket: Any) -> None:  # noqa: ANN401
        while True:
            await socket.send(await self._outgoing.get())

    def _receive(self, data: str | bytes, frames: asyncio.Queue[dict[str, Any] | SocketFrame]) -> None:
        """Put a frame in line; schemas are taken at once, because frames in line wait for them."""
        frame = json.loads(data) if isinstance(data, str) else parse_frame(data)
        if isinstance(frame, SocketFrame) and frame.kind == "schema":
            waiting = self._schemas.pop(frame.schema_id or 0, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame.framed.decode())
            return
        frames.put_nowait(frame)

    async def _take_all(self, frames: asyncio.Queue[dict[str, Any] | SocketFrame]) -> None:
        while True:
            frame = await frames.get()
            try:
                self._dispatch(await self._decoded(frame) if isinstance(frame, SocketFrame) else frame)
            except Exception as error:  # a value that can't be decoded, or a delta that the program can't apply
                self._broken(frame.id if isinstance(frame, SocketFrame) else frame.get("id"), error)

    def _broken(self, number: int | None, error: Exception) -> None:
        """End the one subscription or message whose frame can't be taken in; one that has ended already is over.

        Raises the error if it is not known which.
        """
        if number is None:
            raise error
        self._answer(number, lambda reply: reply.set_exception(error))
        subscription = self._subscriptions.get(number)
        if subscription is not None:
            self.remove(number)
            subscription.end(error)

    def _dispatch(self, frame: dict[str, Any]) -> None:
        number = frame["id"]
        match frame["op"]:
            case "published":
                self._answer(number, lambda reply: reply.set_result(frame["reply"]))
            case "refused":
                self._refused(number, self._options.problem(frame["problem"]))
            case "problem":
                self._failed(number, self._options.problem(frame["problem"]))
            case "unsubscribed":
                return
            case _ if number in self._subscriptions:
                self._subscriptions[number].take(frame)

    async def _decoded(self, frame: SocketFrame) -> dict[str, Any]:
        """Return a binary frame as the one of JSON that says the same."""
        value = None if frame.schema_id is None else await self._value(frame.schema_id, frame.framed)
        content: dict[str, Any] = {"id": frame.id, "delta" if frame.is_delta else "value": value}
        content |= {"offset": frame.offset, "is_present": frame.is_present, "is_expiry": frame.is_expiry}
        if frame.kind == "push":
            return {**content, "op": "lagged" if frame.is_lagged else "value"}
        content |= {"partition": frame.partition, "key": frame.key}
        return {**content, "op": "pairs", "pairs": [content]} if frame.is_present else {**content, "op": "change"}

    async def _value(self, schema_id: int, framed: bytes) -> Any:  # noqa: ANN401
        codec = self._codecs.get(schema_id)
        if codec is None:
            waiting = self._schemas[schema_id] = asyncio.get_running_loop().create_future()
            self._send(ask_schema(schema_id))
            codec = self._codecs[schema_id] = GenericCodec(Schema(await waiting))
        return codec.to_json(codec.decode(framed, start=HEADER_BYTES))

    def _answer(self, number: int, act: Callable[[asyncio.Future[Any]], None]) -> None:
        message = self._messages.pop(number, None)
        if message is not None and not message.reply.done():
            act(message.reply)

    def _refused(self, number: int, problem: HeadraceError) -> None:
        """End a message, or send it again if it can't be handled now; its id makes that safe."""
        message = self._messages.get(number)
        if message is None:
            return
        if isinstance(problem, GatewayUnavailable):
            message.failures += 1
            self._send_later(message.failures, lambda: message.frame if number in self._messages else None)
            return
        self._answer(number, lambda reply: reply.set_exception(problem))

    def _failed(self, number: int, problem: HeadraceError) -> None:
        """End a subscription, or ask for it again if it can't be served now."""
        subscription = self._subscriptions.get(number)
        if subscription is None:
            return
        if isinstance(problem, GatewayUnavailable):
            subscription.disconnected()
            subscription.failures += 1
            again = subscription.request
            self._send_later(
                subscription.failures,
                lambda: json_text(again(), "subscription") if number in self._subscriptions else None,
            )
            return
        del self._subscriptions[number]
        subscription.end(problem)

    def _send_later(self, failures: int, frame: Callable[[], str | None]) -> None:
        """Send a frame after a pause, unless the socket is another one by then: that was sent it at its start."""
        socket = self._socket

        async def send() -> None:
            await asyncio.sleep(self._options.backoff.delay_s(failures))
            given = frame() if self._socket is socket else None
            if given is not None:
                self._send(given)

        task = asyncio.create_task(send(), name="headrace-client-retry")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _disconnected(self) -> None:
        self._socket = None
        for waiting in self._schemas.values():
            waiting.cancel()
        self._schemas.clear()
        for each in self._subscriptions.values():
            each.disconnected()

    def _end_all(self, error: Exception | None) -> None:
        for subscription in self._subscriptions.values():
            subscription.end(error)
        for message in self._messages.values():
            if not message.reply.done():
                message.reply.set_exception(error or Closed("the client"))
        self._subscriptions.clear()

    def _tell(self, status: str, code: int | None) -> None:
        _logger.debug("client socket", status=status, code=code)
        if self._options.on_status is not None:
            self._options.on_status(status, code)
