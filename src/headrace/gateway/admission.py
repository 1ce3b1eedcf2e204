"""Admission: who sent a request, by its token or its signature, what this caller may do, and how much it may use."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from functools import lru_cache

from starlette.datastructures import Headers

from headrace.access import Caller, GrantBook, Tokens, bearer_token
from headrace.config import GatewaySettings
from headrace.errors import BodyTooLarge, Forbidden, TimedOut, Unauthenticated, WrongMediaType
from headrace.gateway.exchange import Exchange
from headrace.gateway.limits import BodyBytes, Rates, Slots
from headrace.gateway.metrics import IN_FLIGHT, REFUSED
from headrace.gateway.requests import GatewayRequest
from headrace.gateway.routes import Match
from headrace.gateway.signatures import MessageSignatures, SignedParts

__all__ = ["Admission"]


class _Authentication:
    """Finds the caller of a request.

    Promises: credentials that are wrong are refused, never ignored; a request without any is the anonymous caller's.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        secrets = {key_id: secret.get_secret_value() for key_id, secret in settings.signatures.secrets.items()}
        self._grants = book = GrantBook(settings.grants, has_authentication=settings.has_authentication)
        self.anonymous = lru_cache(maxsize=1024)(book.anonymous)  # by address
        self._tokens = Tokens(settings.jwt) if settings.jwt.jwks is not None else None
        self._signatures = MessageSignatures(secrets, window_s=settings.signatures.window_s) if secrets else None

    @staticmethod
    def is_signed(headers: Headers) -> bool:
        """Return True if the body is part of the credentials, so that `check_body` must be called."""
        return "signature-input" in headers

    @staticmethod
    def check_body(headers: Headers, body: bytes) -> None:
        """Raise Unauthenticated if a signed request has another body than its signature covers."""
        if "signature-input" in headers:
            MessageSignatures.check_body(headers, body)

    async def caller(self, headers: Headers, parts: SignedParts | None, *, address: str = "") -> Caller:
        """Return the caller, before the body is read: nobody fills the memory without credentials.

        `parts` are needed for a signed request. Raises Unauthenticated.
        """
        sent = headers.getlist("authorization")
        if sent and "signature-input" in headers:
            raise Unauthenticated("send a token or a signature, not both")
        if "signature-input" in headers:
            if self._signatures is None or parts is None:
                raise Unauthenticated("this gateway takes no signatures")
            return self._grants.caller(self._signatures.key_id(headers, parts))
        if sent:
            return await self._bearer(sent)
        return self.anonymous(address)

    async def _bearer(self, sent: list[str]) -> Caller:
        token = bearer_token(sent)
        if self._tokens is None:
            raise Unauthenticated("this gateway takes no tokens")
        facts = await self._tokens.facts(token)
        return self._grants.caller(facts.subject, facts.roles, expires_s=facts.expires_s)


def _signed_parts(method: str, raw_path: bytes, query: bytes, headers: Headers) -> SignedParts:
    """Return what of a request its signature may cover."""
    fields = {name: ", ".join(headers.getlist(name)) for name in headers}
    return SignedParts(method, raw_path.decode("latin-1"), query.decode("latin-1"), headers.get("host", ""), fields)


class Admission:
    """Admits requests, in this order: the caller, its rate, its permission, the body, a place among those in flight.

    Promises: a body is read only for a caller that may send it, and takes a place only when all of it has come: clients
    that are slow to send one would take the places of all others.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._authentication = _Authentication(settings)
        self._rates = Rates(settings.requests_per_s, settings.burst)
        self._bodies = BodyBytes(settings.max_bodies_bytes)
        most, per_caller = settings.max_requests_in_flight, settings.max_requests_in_flight_per_caller
        self._in_flight = Slots("requests", most, IN_FLIGHT, per_caller=per_caller)

    def anonymous(self, address: str) -> Caller:
        """Return the caller without credentials."""
        return self._authentication.anonymous(address)

    def count_plain(self, share: str) -> bool:
        """Count a request that is answered at this moment; False, and nothing is counted, if it has to be refused."""
        return self._in_flight.has_room(share) and self._rates.take_if_free(share)

    def enter_plain(self, share: str, body_bytes: int) -> bool:
        """Count a request with a body that is handled from now on; False, and nothing is counted, if it is refused.

        It holds a place, and the bytes of its body, until `leave_plain`.
        """
        is_small = body_bytes <= self._settings.max_body_bytes and self._bodies.has_room(body_bytes)
        if not is_small or not self.count_plain(share):
            return False
        self._in_flight.enter(share)
        self._bodies.hold(body_bytes)
        return True

    def leave_plain(self, share: str, body_bytes: int) -> None:
        """Give back what `enter_plain` has taken."""
        self._bodies.release(body_bytes)
        self._in_flight.leave(share)

    def admit_plain(self, exchange: Exchange, match: Match) -> GatewayRequest:
        """Admit a request that `is_plain`: it has no credentials, so that nothing has to be waited for.

        Raises RateExceeded, Forbidden, Unauthenticated, Busy, BadArgument.
        """
        caller = self._authentication.anonymous(exchange.address)
        self._rates.take(caller.share)
        self._check_permission(caller, match)
        return self._request(exchange, match, caller, b"")

    async def admit(self, exchange: Exchange, match: Match) -> GatewayRequest:
        """Admit any request. Raises as `admit_plain`, and what `body` raises."""
        caller = await self.caller(exchange)
        self._check_permission(caller, match)
        return self._request(exchange, match, caller, await self._body(exchange))

    async def caller(self, exchange: Exchange) -> Caller:
        """Return who sent the request. Raises Unauthenticated; RateExceeded, also for one who guesses."""
        scope, address = exchange.scope, exchange.address
        parts = None
        if self._authentication.is_signed(exchange.headers):
            parts = _signed_parts(scope["method"], exchange.sent_path, scope["query_string"], exchange.headers)
        try:
            caller = await self._authentication.caller(exchange.headers, parts, address=address)
        except Unauthenticated:
            REFUSED.labels("credentials").inc()
            self._rates.take(Caller("", is_anonymous=True, address=address).share)
            raise
        self._rates.take(caller.share)
        return caller

    def charge(self, share: str) -> None:
        """Count what a socket's client sends as a request. Raises RateExceeded."""
        self._rates.take(share)

    def refusal(self, caller: Caller, error: Forbidden) -> Exception:
        """Return the error for a caller without permission: one without credentials needs some."""
        REFUSED.labels("permission").inc()
        if caller.is_anonymous and self._settings.has_authentication:
            return Unauthenticated(f"{error.operation} needs a token or a signature")
        return error

    def take_place(self, exchange: Exchange, caller: Caller) -> None:
        """Take a place among the requests in flight, until the exchange gives its places back. Raises Busy."""
        share = caller.share
        self._in_flight.occupy(share)
        exchange.places.hold(self._in_flight.leave, share)

    def lent_place(self, caller: Caller) -> AbstractContextManager[None]:
        """Give a request's place back while the block runs, in which it only waits."""
        return self._in_flight.lent(caller.share)

    async def signed_body(self, exchange: Exchange) -> bytes | None:
        """Return the body of a signed request that has no deadline of its own; None if it is not signed.

        Raises TimedOut, and what reading and checking a body raises.
        """
        if not self._authentication.is_signed(exchange.headers):
            return None
        deadline = asyncio.timeout(self._settings.request_timeout_s)
        try:
            async with deadline:
                return await self._body(exchange)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise TimedOut("reading the body of the request", self._settings.request_timeout_s) from error

    async def _body(self, exchange: Exchange) -> bytes:
        try:
            body = await exchange.body(self._settings.max_body_bytes, self._bodies)
        except BodyTooLarge:
            REFUSED.labels("body").inc()
            raise
        self._authentication.check_body(exchange.headers, body)
        if (coding := exchange.headers.get("content-encoding", "identity").strip().lower()) != "identity":
            raise WrongMediaType("Content-Encoding", coding[:60], ("identity",))
        return body

    def _check_permission(self, caller: Caller, match: Match) -> None:
        needs = match.route.needs
        if needs is None:
            return
        try:
            caller.check(needs.operation, needs.kind, needs.thing(match.path))
        except Forbidden as error:
            raise self.refusal(caller, error) from error

    def _request(self, exchange: Exchange, match: Match, caller: Caller, body: bytes) -> GatewayRequest:
        """Return the request for its handler, with a place among those in flight."""
        self.take_place(exchange, caller)
        return GatewayRequest(
            match.route,
            match.path,
            exchange.query,
            exchange.headers,
            body,
            caller,
            exchange.request_id,
            exchange.scope.get("root_path", ""),
        )
