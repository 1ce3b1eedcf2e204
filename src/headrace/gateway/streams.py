"""Streams of events: lines of JSON, and server-sent events, live or with an end.

A live stream has signs of life while nothing happens, and ends when the client leaves, when the caller's token ends,
or when the gateway stops; the client resumes after the last event that it got. A stream with an end that fails is
broken off behind a line with the problem, so that no client takes what it got for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.access import Caller
from headrace.errors import HeadraceError, Unauthenticated
from headrace.gateway.limits import Slots
from headrace.gateway.problems import problem_of
from headrace.observe import get_logger

__all__ = ["BREAK_OFF", "EVENT_STREAM", "NDJSON", "StreamItem", "StreamResponse", "StreamTerms"]

NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
BREAK_OFF = "headrace.break_off"  # an extension of ASGI: a function that ends the connection without the answer's end

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """What all streams of a gateway share: their places, their signs of life, and the signal to end."""

    slots: Slots
    closing: asyncio.Event
    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One event of a stream; `offset` is where a client resumes, None for what it can't resume after."""

    value: Any
    offset: str | None = None


class _Pause(Enum):
    """Why there is no next item."""

    END = auto()
    IDLE = auto()
    STOP = auto()


class StreamResponse:
    """An ASGI response that sends the items of a source as they come. The source is closed in the end."""

    def __init__(
        self,
        source: AsyncGenerator[StreamItem, None],
        media_type: str,
        terms: StreamTerms,
        *,
        request_id: str,
        is_live: bool,
        caller: Caller | None = None,
        expires_s: float | None = None,
    ) -> None:
        self._source = source
        self._media_type = media_type
        self._terms = terms
        self._request_id = request_id
        self._is_live = is_live
        self._share = caller.share if caller is not None else ""
        self._expires_s = expires_s if is_live else None
        self._next: asyncio.Task[StreamItem] | None = None

    async def fetch_first(self) -> StreamResponse:
        """Wait for the first item, or the end, so that what fails at once is answered with a status of its own."""
        self._next = asyncio.ensure_future(_next_item(self._source))
        try:
            await asyncio.wait({self._next})
        except asyncio.CancelledError:
            await self._close()
            raise
        if self._next.exception() is not None and not isinstance(self._next.exception(), StopAsyncIteration):
            error = self._next.exception()
            await self._close()
            raise error  # type: ignore[misc]
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; of a request for its headers alone, only these."""
        try:
            if scope.get("method") == "HEAD":
                await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
                await send({"type": "http.response.body", "body": b""})
                return
            with self._terms.slots.take(self._share):
                is_whole = await self._send(receive, send)
            break_off = (scope.get("extensions") or {}).get(BREAK_OFF)
            if not is_whole and break_off is not None:
                break_off()
        finally:
            await self._close()

    async def _send(self, receive: Receive, send: Send) -> bool:
        """Send the stream; return True if its end was sent."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        stops: set[asyncio.Future[Any]] = {asyncio.ensure_future(_disconnected(receive))}
        if self._is_live:
            stops.add(asyncio.ensure_future(self._terms.closing.wait()))
            await _send_chunk(send, self._sign_of_life())
        try:
            is_whole = await self._pump(send, stops)
        finally:
            for stop in stops:
                stop.cancel()
        if is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return is_whole

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", self._media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"vary", b"accept"),
            (b"x-accel-buffering", b"no"),  # proxies that gather answers would hold events back
        ]

    async def _pump(self, send: Send, stops: set[asyncio.Future[Any]]) -> bool:
        """Send items until there are no more. Return True if the answer may be ended in order."""
        while True:
            try:
                found = await self._wait(stops)
            except Exception as error:  # the status was sent, so the error goes into the stream
                await _send_chunk(send, self._problem(error))
                return self._media_type == EVENT_STREAM
            if isinstance(found, StreamItem):
                await _send_chunk(send, self._written(found))
            elif found is _Pause.IDLE:
                await _send_chunk(send, self._sign_of_life())
            else:
                return found is _Pause.END or self._is_live

    async def _wait(self, stops: set[asyncio.Future[Any]]) -> StreamItem | _Pause:
        """Return the next item, or why there is none yet. Raises what the source raises."""
        self._check_token()
        if self._next is None:
            self._next = asyncio.ensure_future(_next_item(self._source))
        await asyncio.wait({self._next, *stops}, timeout=self._patience_s(), return_when=asyncio.FIRST_COMPLETED)
        if any(stop.done() for stop in stops):
            return _Pause.STOP
        if not self._next.done():
            self._check_token()
            return _Pause.IDLE
        done, self._next = self._next, None
        try:
            return done.result()
        except StopAsyncIteration:
            return _Pause.END

    def _patience_s(self) -> float | None:
        if not self._is_live:
            return None
        left_s = self._expires_s - time.time() if self._expires_s is not None else self._terms.heartbeat_s
        return max(0.0, min(self._terms.heartbeat_s, left_s))

    def _check_token(self) -> None:
        if self._expires_s is not None and time.time() >= self._expires_s:
            raise Unauthenticated("the token has expired; get a new one and resume after the last event")

    def _written(self, item: StreamItem) -> bytes:
        data = msgspec.json.encode(item.value)
        if self._media_type == NDJSON:
            return data + b"\n"
        place = f"id: {item.offset}\n".encode() if item.offset is not None else b""
        return place + b"data: " + data + b"\n\n"

    def _problem(self, error: Exception) -> bytes:
        problem = problem_of(error)
        if not isinstance(error, HeadraceError) or problem.status >= 500:
            _logger.warning("stream failed", request_id=self._request_id, error=repr(error))
        data = msgspec.json.encode(problem.to_json(self._request_id))
        if self._media_type == NDJSON:
            return b'{"problem":' + data + b"}\n"
        return b"event: problem\ndata: " + data + b"\n\n"

    def _sign_of_life(self) -> bytes:
        return b"\n" if self._media_type == NDJSON else b": alive\n\n"

    async def _close(self) -> None:
        """Close the source; a step of it that is on its way is cancelled first."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})
            if not self._next.cancelled():
                self._next.exception()  # it was reported, or nobody is left to report it to
            self._next = None
        with contextlib.suppress(RuntimeError):  # a source that was never started, or that ended in this very moment
            await self._source.aclose()


async def _next_item(source: AsyncGenerator[StreamItem, None]) -> StreamItem:
    return await anext(source)


async def _send_chunk(send: Callable[[Any], Awaitable[None]], chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
