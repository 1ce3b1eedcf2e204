"""Authentication: who sent a request, from its token or its signature."""

from __future__ import annotations

from functools import lru_cache

from starlette.datastructures import Headers

from headrace.access import Caller, GrantBook, Tokens, bearer_token
from headrace.config import GatewaySettings
from headrace.errors import Unauthenticated
from headrace.gateway.signatures import MessageSignatures, SignedParts

__all__ = ["Authentication", "signed_parts"]


class Authentication:
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


def signed_parts(method: str, raw_path: bytes, query: bytes, headers: Headers) -> SignedParts:
    """Return what of a request its signature may cover."""
    fields = {name: ", ".join(headers.getlist(name)) for name in headers}
    return SignedParts(method, raw_path.decode("latin-1"), query.decode("latin-1"), headers.get("host", ""), fields)
