"""The gateway as an ASGI application: guards, then its own routes, then the application's.

Every request passes the same way: limits, host and origin, the route, the caller, the permission, the body, and the
handler, all of it under a deadline. Whatever raises on this way is answered as a problem, and harms no other request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from opentelemetry.context import Context
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.access import Caller
from headrace.config import GatewaySettings
from headrace.engine import EngineClient
from headrace.errors import BadArgument, Forbidden, HeadraceError, NoSuchRoute, NotFound, TimedOut
from headrace.gateway.admission import Admission
from headrace.gateway.console import ConsoleParts, ConsoleRecorder, ConsoleRoutes
from headrace.gateway.engines import EngineRoutes
from headrace.gateway.exchange import ClientLeft, Exchange, path_of
from headrace.gateway.journals import JournalRoutes
from headrace.gateway.keyspaces import KEY_PATH, KeyspaceRoutes, ServedKeyspace
from headrace.gateway.limits import Slots
from headrace.gateway.metrics import REFUSED, SOCKETS, STREAMS, RequestClocks
from headrace.gateway.operations import OperationRoutes
from headrace.gateway.origins import Origins
from headrace.gateway.plain_commands import PlainCommands
from headrace.gateway.plain_reads import PlainReads
from headrace.gateway.ports import GatewayParts
from headrace.gateway.problems import problem_of, problem_response
from headrace.gateway.requests import JSON_HEADERS, GatewayRequest, ReadyResponse
from headrace.gateway.routes import GatewayRoute, Match, RouteTable
from headrace.gateway.schemas import SchemaRoutes
from headrace.gateway.sockets import Sockets, SocketTerms
from headrace.gateway.streams import StreamResponse, StreamTerms
from headrace.gateway.suspension import FindMissing, Suspension
from headrace.gateway.tag_events import TagRoutes
from headrace.observe import extract_text, get_logger, span

__all__ = ["CALLER", "GatewayApp"]

CALLER = "headrace.caller"

_logger = get_logger(__name__)
SOCKET_PATH = b"/socket"
TOKEN_PROTOCOL = "headrace.bearer."  # noqa: S105 - a prefix, no token
_READS = ("GET", "HEAD")
_MOST_TRACE_STATE = 512
_is_logged = logging.getLogger(__name__).isEnabledFor


class GatewayApp:
    """The ASGI application.

    `keyspaces` are served over HTTP and WebSocket, `engines` over HTTP. With `console` there is a page for operators.
    `routes` are further routes in the gateway's own manner. `beside` is any ASGI application; it gets what no route
    takes, with the Caller in `scope["headrace.caller"]`. `find_missing` tells which partitions of them have no owner.
    A server may ask `plain_reads` and `plain_commands` before it makes a request of ASGI.
    """

    def __init__(
        self,
        parts: GatewayParts,
        settings: GatewaySettings,
        *,
        version: str,
        keyspaces: Sequence[ServedKeyspace] = (),
        engines: Sequence[EngineClient[Any]] = (),
        console: ConsoleParts | None = None,
        routes: Sequence[GatewayRoute] = (),
        beside: ASGIApp | None = None,
        find_missing: FindMissing | None = None,
    ) -> None:
        self._settings = settings
        self._beside = beside
        self._closing = asyncio.Event()
        self._clocks = RequestClocks()
        self._origins = Origins(settings)
        self._admission = Admission(settings)
        self._suspension = Suspension(find_missing, mode=settings.missing_partitions, limit=settings.max_held_requests)
        terms = _stream_terms(settings, self._closing)
        served = KeyspaceRoutes(keyspaces, parts.registry, terms, page_limit=settings.page_limit)
        by_all = (self._origins, self._admission, self._suspension, self._clocks)
        self.plain_reads = None if _is_below(routes, "/keyspaces/") else PlainReads(served, *by_all)
        self._sockets = Sockets(served, parts.registry, _socket_terms(settings, self._closing))
        self._operations = OperationRoutes(
            parts.health,
            lambda: self._table.routes,
            self._closing,
            version=version,
            has_authentication=settings.has_authentication,
        )
        self._recorder = None if console is None else ConsoleRecorder(console, every_s=settings.console_sample_s)
        commands = EngineRoutes(engines)
        self.plain_commands = (
            None
            if _is_below(routes, "/engines/")
            else PlainCommands(commands, *by_all, timeout_s=settings.request_timeout_s)
        )
        own = [*_log_routes(parts, settings, terms), *served.routes(), *commands.routes()]
        pages = self._console_routes(console, parts, engines, version)
        self._table = RouteTable([*own, *self._operations.routes(), *pages, *routes])

    def _console_routes(
        self, console: ConsoleParts | None, parts: GatewayParts, engines: Sequence[EngineClient[Any]], version: str
    ) -> list[GatewayRoute]:
        if console is None or self._recorder is None:
            return []
        refresh = self._operations.refresh
        return ConsoleRoutes(
            console, self._recorder, parts.registry, parts.health, engines, version=version, refresh_health=refresh
        ).routes()

    def close_streams(self) -> None:
        """End all live streams in order, and answer that the gateway is not ready: it is about to stop."""
        self._closing.set()
        self._suspension.close()

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Record the console's charts while the block runs. `serving` does so; other servers do by their lifespan."""
        async with contextlib.nullcontext() if self._recorder is None else self._recorder.recording():
            yield

    def description(self) -> dict[str, Any]:
        """Return the OpenAPI document of all routes."""
        return self._operations.document()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand the application's part of the protocol to it."""
        if scope["type"] == "http":
            await self._http(Exchange(scope, receive, send))
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            async with self.recording():
                await self._lifespan(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._beside is not None:
            await self._beside(scope, receive, send)
        else:
            await _empty_lifespan(receive, send)

    async def _http(self, exchange: Exchange) -> None:
        """Answer a request, whatever happens on the way."""
        started_s = perf_counter()
        try:
            with exchange.places:
                await self._send_answer(exchange)
        except ClientLeft:
            REFUSED.labels("incomplete").inc()
        except Exception as error:  # every failure has an answer, and none harms the next request
            await exchange.fail(error)
        finally:
            elapsed_s = perf_counter() - started_s
            self._clocks.of(exchange.method_label, exchange.route, exchange.status or 0).observe(elapsed_s)
            if _is_logged(logging.DEBUG):
                _logger.debug(
                    "request", request_id=exchange.request_id, route=exchange.route, status=exchange.status, s=elapsed_s
                )

    async def _send_answer(self, exchange: Exchange) -> None:
        response = self._answer_at_once(exchange)
        if response is None:
            response = await self._answer(exchange)
        if isinstance(response, ReadyResponse):
            await exchange.send_ready(response)
            return
        if isinstance(response, StreamResponse):
            exchange.places.close()  # streams have places of their own
        await response(exchange.scope, exchange.receive, exchange.send)

    def _answer_at_once(self, exchange: Exchange) -> ASGIApp | None:
        """Go as far as nothing has to be waited for; return the answer if that was the whole way.

        Raises what is answered as a problem.
        """
        scope, headers = exchange.scope, exchange.headers
        method = scope["method"]
        self._origins.check(method, scope["scheme"], headers)
        exchange.more_headers = self._origins.headers(headers)
        if method == "OPTIONS" and (allowed := self._origins.preflight(headers)) is not None:
            return Response(status_code=204, headers=allowed)
        match = exchange.match = self._table.find(method, exchange.path)
        if match is None:
            return None
        exchange.route = match.route.path
        if not exchange.is_plain:
            return None
        request = exchange.request = self._admission.admit_plain(exchange, match)
        if match.route.at_once is None or self._must_wait(request):
            return None
        return self._guarded_at_once(exchange, match.route.at_once, request)

    def _guarded_at_once(
        self, exchange: Exchange, answer: Callable[[GatewayRequest], Response | None], request: GatewayRequest
    ) -> Response | None:
        try:
            with span("gateway.request", route=exchange.route):
                return answer(request)
        except Forbidden as error:
            raise self._admission.refusal(request.caller, error) from error

    async def _answer(self, exchange: Exchange) -> ASGIApp:
        """Return the answer to a request that has to wait for something."""
        scope = exchange.scope
        if exchange.match is not None:
            return await self._under_deadline(exchange, exchange.match)
        if self._beside is None:
            raise NoSuchRoute(scope["method"], scope["path"][:200])
        exchange.route = "application"
        exchange.check_length(self._settings.max_body_bytes)
        caller = scope[CALLER] = await self._admission.caller(exchange)
        self._admission.take_place(exchange, caller)
        body = await self._admission.signed_body(exchange)
        limited = exchange.limited_receive(self._settings.max_body_bytes)
        return _Handed(self._beside, limited if body is None else exchange.replayed(body))

    async def _under_deadline(self, exchange: Exchange, match: Match) -> ASGIApp:
        timeout_s = exchange.timeout_s(self._settings.request_timeout_s)
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await self._handled(exchange, match)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            is_known = exchange.scope["method"] in _READS or not exchange.is_handling
            raise TimedOut(f"{match.route.method} {match.route.path}", timeout_s, outcome_known=is_known) from error

    async def _handled(self, exchange: Exchange, match: Match) -> ASGIApp:
        request = exchange.request or await self._admission.admit(exchange, match)
        if self._must_wait(request):
            with self._admission.lent_place(request.caller):  # who only waits is not in flight
                await self._suspension.wait()
        exchange.is_handling = True
        try:
            with span("gateway.request", parent=_trace_of(exchange), route=match.route.path):
                found = await match.route.handler(request)
        except Forbidden as error:
            raise self._admission.refusal(request.caller, error) from error
        return _response_of(found, match)

    def _must_wait(self, request: GatewayRequest) -> bool:
        """Return True if the request needs the owners of partitions, and some are missing."""
        needs_owners = request.route.needs_owners
        return needs_owners is not None and self._suspension.is_suspended and needs_owners(request)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check where a WebSocket comes from and who opens it, and serve it; others are the application's."""
        headers = Headers(raw=_with_token(scope))
        exchange = Exchange({**scope, "headers": headers.raw, "method": "GET"}, receive, send)
        try:
            self._origins.check_socket(scope["scheme"], headers)
            caller = scope[CALLER] = await self._admission.caller(exchange)
            await self._open_socket(scope, receive, send, caller, exchange)
        except HeadraceError as error:
            # Only what is refused before the socket is accepted comes here; afterwards it is closed with a code.
            _logger.info("WebSocket refused", request_id=exchange.request_id, reason=str(error))
            await _deny(exchange, send, error)

    async def _open_socket(
        self, scope: Scope, receive: Receive, send: Send, caller: Caller, exchange: Exchange
    ) -> None:
        path = path_of(scope)
        charge = partial(self._admission.charge, caller.share)
        if path.rstrip(b"/") == SOCKET_PATH:
            await self._sockets.serve_many(scope, receive, send, caller, charge=charge)
            return
        match = self._table.find("GET", path)
        if match is not None and match.route.path == KEY_PATH:
            after = _after_in(exchange.query)
            await self._sockets.serve_key(scope, receive, send, caller, match.path, after, charge=charge)
        elif self._beside is not None:
            await self._beside(scope, receive, send)
        else:
            raise NoSuchRoute("WebSocket", scope["path"][:200])


class _Handed:
    """A response of the application beside: it gets the request with another `receive`."""

    def __init__(self, app: ASGIApp, receive: Receive) -> None:
        self._app = app
        self._receive = receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, self._receive, send)


def _response_of(found: Any, match: Match) -> ASGIApp:  # noqa: ANN401 - whatever a handler returns
    if found is None:
        last = match.route.segments[-1]
        things = " of ".join(f"{name} {value!r}" for name, value in reversed(match.path.items()))
        raise NotFound(things if last.startswith("{") else f"{last} of {things}")
    if isinstance(found, Response | StreamResponse):
        return found
    return ReadyResponse(msgspec.json.encode(found), JSON_HEADERS, match.route.answer.status)


def _trace_of(exchange: Exchange) -> Context | None:
    """Return the caller's trace, which records that the request writes carry on; None if there is none.

    A long tracestate is left out, as the standard allows: callers must not decide how large those records are.
    """
    headers = exchange.headers
    if "traceparent" not in headers:
        return None
    given = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    if len(given.get("tracestate", "")) > _MOST_TRACE_STATE:
        del given["tracestate"]
    return extract_text(given) or None


def _is_below(routes: Sequence[GatewayRoute], start: str) -> bool:
    """Return True if the application has a route there: it may be more special than ours, and comes first then."""
    return any(route.path.startswith(start) for route in routes)


def _log_routes(parts: GatewayParts, settings: GatewaySettings, terms: StreamTerms) -> list[GatewayRoute]:
    """Return the routes of journals, tags and schemas."""
    limit = settings.page_limit
    journals = JournalRoutes(parts, terms, page_limit=limit, create_topics=settings.create_topics)
    tags = TagRoutes(parts, terms, page_limit=limit)
    return [*journals.routes(), *tags.routes(), *SchemaRoutes(parts.registry).routes()]


def _stream_terms(settings: GatewaySettings, closing: asyncio.Event) -> StreamTerms:
    slots = Slots("streams", settings.max_streams, STREAMS, per_caller=settings.max_streams_per_caller)
    return StreamTerms(slots, closing, settings.heartbeat_s)


def _socket_terms(settings: GatewaySettings, closing: asyncio.Event) -> SocketTerms:
    return SocketTerms(
        slots=Slots("sockets", settings.max_sockets, SOCKETS),
        closing=closing,
        max_subscriptions=settings.max_subscriptions_per_socket,
        max_waiting=settings.max_waiting_changes,
        is_closing_slow=settings.slow_socket == "close",
    )


async def _deny(exchange: Exchange, send: Send, error: HeadraceError) -> None:
    """Refuse a WebSocket with the status of the problem, where the server can send one; else it is always 403."""
    if "websocket.http.response" not in (exchange.scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem_of(error).detail[:100]})
        return
    response = problem_response(error, exchange.request_id)
    head = {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(head)
    await send({"type": "websocket.http.response.body", "body": response.body})


def _after_in(query: QueryParams) -> str | None:
    """Return where a WebSocket on a key resumes. Raises BadArgument for another parameter: it must not be ignored."""
    unknown = [name for name in query if name != "after"]
    if unknown:
        raise BadArgument("parameter", unknown[0][:60], "a WebSocket on a key has after")
    given = query.getlist("after")
    if len(given) > 1:
        raise BadArgument("after", len(given), "it may be given once only")
    return given[0] if given else None


def _with_token(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers of a WebSocket; a token in a sub-protocol counts, because browsers can't send headers."""
    tokens = [each.removeprefix(TOKEN_PROTOCOL) for each in scope["subprotocols"] if each.startswith(TOKEN_PROTOCOL)]
    return [*scope["headers"], *((b"authorization", f"Bearer {token}".encode()) for token in tokens)]


async def _empty_lifespan(receive: Receive, send: Send) -> None:
    """Take part in the start and the end of the server, at which nothing happens."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
