"""Serving commands over gRPC: the listener, who sends a call, and what happens around each call."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias

from headrace.access import Caller, CallerRates, GrantBook, Tokens, bearer_token, host_and_port, is_loopback
from headrace.cluster import grpc_library, server_credentials, server_options
from headrace.config import GrpcSettings
from headrace.engine import EngineClient
from headrace.errors import Busy, GrpcListenFailed, GrpcUnprotected, NotFound, RateExceeded, Unauthenticated
from headrace.observe import HealthState, extract, get_logger, span
from headrace.rpc.messages import ENGINES, HEALTH, HealthReply, HealthRequest, ReadMessage, SendMessage, decoded
from headrace.rpc.metrics import CALLS, IN_FLIGHT, REFUSED
from headrace.rpc.service import EngineCalls
from headrace.rpc.statuses import status_of

__all__ = ["RunningGrpc", "check_grpc_protected", "serving_commands"]

_logger = get_logger(__name__)

Call: TypeAlias = Callable[[Caller, Any, float], Awaitable[Any]]

_SERVING, _NOT_SERVING = 1, 2
# Calls that are refused, and checks of health, have their place beside as many as are answered.
_BESIDE = 100


class RunningGrpc:
    """A service that takes commands. `address` is where."""

    def __init__(self, address: str) -> None:
        self.address = address


@contextlib.asynccontextmanager
async def serving_commands(
    engines: Sequence[EngineClient[Any]], settings: GrpcSettings, health: Callable[[], HealthState]
) -> AsyncIterator[RunningGrpc]:
    """Serve engines at `settings.listen` while the block runs; then let calls finish.

    `health` tells whether the node can answer. Raises GrpcListenFailed, GrpcUnprotected, InvalidSettings, KeysUnusable.
    """
    check_grpc_protected(settings)
    service = _Service(EngineCalls(engines), settings, health)
    server = _new_server(service, settings)
    port = _listen(server, settings)
    await server.start()
    host = (settings.listen or "").rpartition(":")[0]
    try:
        yield RunningGrpc(f"{host}:{port}")
    finally:
        service.is_closing = True
        await server.stop(settings.shutdown_s)


def check_grpc_protected(settings: GrpcSettings) -> None:
    """Raise GrpcUnprotected if other machines could send commands without authentication; warn if they may."""
    host, _ = host_and_port(settings.listen or "", "grpc.listen")
    if is_loopback(host):
        return
    if not settings.has_authentication:
        if not settings.allow_unauthenticated:
            raise GrpcUnprotected(host)
        _logger.warning("commands of other machines are taken without authentication", listen=settings.listen)
    elif settings.tls.certificate_location is None:
        _logger.warning("commands are taken without TLS: tokens can be read on the way", listen=settings.listen)


class _Service:
    """What happens around each call: the caller, the limits, the deadline, errors as statuses."""

    def __init__(self, calls: EngineCalls, settings: GrpcSettings, health: Callable[[], HealthState]) -> None:
        self._grpc = grpc_library()
        self._calls = calls
        self._settings = settings
        self._health = health
        self._callers = _Callers(settings)
        self._in_flight = 0
        self.is_closing = False

    async def send(self, data: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
        """Answer Send."""
        return await self._answer("Send", self._engine_reply(SendMessage, self._calls.send, data, context), context)

    async def read(self, data: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
        """Answer Read."""
        return await self._answer("Read", self._engine_reply(ReadMessage, self._calls.read, data, context), context)

    async def check(self, data: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
        """Answer a check of health, which everybody may ask for: whether this node can answer, and no more."""
        return await self._answer("Check", self._health_reply(data), context)

    async def _answer(self, method: str, reply: Awaitable[Any], context: Any) -> bytes:  # noqa: ANN401 - grpc's
        """Return the reply's bytes; an error ends the call with a status."""
        started_s, status = time.perf_counter(), "CANCELLED"
        try:
            encoded: bytes = (await reply).SerializeToString()
            status = "OK"
            return encoded
        except Exception as error:
            failure, status = error, status_of(error).code
        finally:
            CALLS.labels(method, status).observe(time.perf_counter() - started_s)
        await self._end(method, failure, context)
        raise AssertionError("a call that has ended goes on")

    async def _engine_reply(self, kind: Any, call: Call, data: bytes, context: Any) -> Any:  # noqa: ANN401
        sent = tuple((name, value) for name, value in context.invocation_metadata() or () if isinstance(value, str))
        parent = extract(tuple((name, value.encode()) for name, value in sent))
        with self._place(), span("grpc.call", parent=parent):
            authorization = [value for name, value in sent if name == "authorization"]
            caller = await self._callers.admit(authorization, context.peer())
            return await call(caller, decoded(kind, data), self._time_left_s(context))

    async def _health_reply(self, data: bytes) -> Any:  # noqa: ANN401 - a message
        service = decoded(HealthRequest, data).service
        if service not in ("", ENGINES):
            raise NotFound(f"service {service!r}")
        is_up = self._health() is HealthState.UP and not self.is_closing
        return HealthReply(status=_SERVING if is_up else _NOT_SERVING)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Hold a place among the calls that are answered while the block runs. Raises Busy."""
        limit = self._settings.max_requests_in_flight
        if self._in_flight >= limit:
            REFUSED.labels("calls").inc()
            raise Busy("the node", limit)
        self._in_flight += 1
        IN_FLIGHT.inc()
        try:
            yield
        finally:
            self._in_flight -= 1
            IN_FLIGHT.dec()

    def _time_left_s(self, context: Any) -> float:  # noqa: ANN401 - grpc's
        left_s = context.time_remaining()
        return min(self._settings.request_timeout_s, math.inf if left_s is None else left_s)

    async def _end(self, method: str, error: Exception, context: Any) -> None:  # noqa: ANN401 - grpc's
        """End the call with the status of an error; what the status leaves out is logged."""
        status, request_id = status_of(error), uuid.uuid4().hex
        if status.is_hidden:
            is_bug = status.code == "INTERNAL"
            log = _logger.error if is_bug else _logger.warning
            log("a call failed", request_id=request_id, method=method, error=repr(error), exc_info=is_bug and error)
        metadata = (*status.metadata, ("headrace-request-id", request_id))
        await context.abort(self._grpc.StatusCode[status.code], status.message, metadata)


def _new_server(service: _Service, settings: GrpcSettings) -> Any:  # noqa: ANN401 - grpc's
    grpc = grpc_library()
    options = {
        **dict(server_options(max_message_bytes=settings.max_message_bytes)),
        # A reply that is not sent would look as if nothing had been done; engines bound the size of their replies.
        "grpc.max_send_message_length": -1,
    }
    server = grpc.aio.server(
        options=list(options.items()), maximum_concurrent_rpcs=settings.max_requests_in_flight + _BESIDE
    )
    # Without a deserializer of gRPC's: what is not understood is a mistake of the caller's, and no internal error.
    unary = grpc.unary_unary_rpc_method_handler
    engines = {"Send": unary(service.send), "Read": unary(service.read)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(ENGINES, engines),
            grpc.method_handlers_generic_handler(HEALTH, {"Check": unary(service.check)}),
        )
    )
    return server


def _listen(server: Any, settings: GrpcSettings) -> int:  # noqa: ANN401 - grpc's
    """Bind the server to its address, and return the port. Raises GrpcListenFailed, InvalidSettings."""
    listen = settings.listen or ""
    credentials = server_credentials(settings.tls, "grpc.tls")
    try:
        if credentials is None:
            port: int = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise GrpcListenFailed(listen, str(error).partition(";")[0]) from error
    return port


class _Callers:
    """Finds the caller of each call.

    Promises: credentials that are wrong are refused, never ignored; a call without any is the anonymous caller's.
    """

    def __init__(self, settings: GrpcSettings) -> None:
        self._grants = GrantBook(settings.grants, has_authentication=settings.has_authentication)
        self._tokens = Tokens(settings.jwt) if settings.has_authentication else None
        self._rates = CallerRates(settings.requests_per_s, settings.burst)

    async def admit(self, authorization: Sequence[str], peer: str) -> Caller:
        """Return the caller, and count the call. `peer` is gRPC's name of the other end.

        Raises Unauthenticated, RateExceeded; Unreachable if the keys of tokens can't be read.
        """
        address = peer.rpartition(":")[0] or peer
        try:
            caller = await self._caller(authorization)
        except Unauthenticated:
            REFUSED.labels("credentials").inc()
            self._count(address)
            raise
        self._count(address if caller.is_anonymous else f"subject {caller.subject}")
        return caller

    async def _caller(self, authorization: Sequence[str]) -> Caller:
        if not authorization:
            return self._grants.anonymous()
        token = bearer_token(authorization)
        if self._tokens is None:
            raise Unauthenticated("this node takes no tokens")
        facts = await self._tokens.facts(token)
        return self._grants.caller(facts.subject, facts.roles, expires_s=facts.expires_s)

    def _count(self, who: str) -> None:
        try:
            self._rates.take(who)
        except RateExceeded:
            REFUSED.labels("rate").inc()
            raise
