"""Who sent a call, and whether it may send more: tokens in the call's metadata, and the rate of each caller."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.access import Caller, CallerRates, GrantBook, Tokens, bearer_token
from headrace.config import GrpcSettings
from headrace.errors import RateExceeded, Unauthenticated
from headrace.rpc.metrics import REFUSED

__all__ = ["GrpcCallers"]


class GrpcCallers:
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
