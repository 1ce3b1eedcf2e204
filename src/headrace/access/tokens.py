"""Bearer tokens: JSON Web Tokens, checked with the public keys of a file or of an address (JWKS)."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt

from headrace.config import GatewayJwtSettings
from headrace.errors import KeysUnusable, Unauthenticated, Unreachable
from headrace.observe import get_logger

__all__ = ["JsonWebKeys", "TokenFacts", "Tokens", "bearer_token"]

_RETRY_S = 10.0  # between two reads of the keys for tokens with unknown key ids
_RETRY_FAILED_S = 1.0  # after a read that failed, if no keys are known yet
_MOST_BYTES = 1_000_000
_LATEST_S = 253_402_300_800  # the end of the year 9999, which everything that shows or waits for a time can take
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_logger = get_logger(__name__)


class TokenFacts(NamedTuple):
    """What a token says about its bearer; `expires_s` is when it is refused, by this machine's clock."""

    subject: str
    roles: tuple[str, ...]
    expires_s: float


class JsonWebKeys:
    """The keys at a place. They are read again when they are old, and for a key id that is not among them.

    If they can't be read again, the last ones stay in use. Random key ids can't cause more than a read in 10 s.
    """

    def __init__(self, settings: GatewayJwtSettings, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._where = settings.jwks or ""
        self._refresh_s = settings.refresh_s
        self._timeout_s = settings.timeout_s
        self._now_s = now_s
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read_at_s: float | None = None
        self._failure: tuple[float, Unreachable] | None = None
        self._reading = asyncio.Lock()
        _check_place(self._where)
        if not _is_address(self._where):
            _check_file(self._where)

    async def key(self, key_id: str | None) -> jwt.PyJWK:
        """Return the key of an id; without an id, the only key there is. Raises Unauthenticated, Unreachable."""
        if key_id not in self._keys or self._is_older_than(self._refresh_s):
            async with self._reading:
                if self._is_older_than(_RETRY_S if key_id not in self._keys else self._refresh_s):
                    await self._read()
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key_id not in self._keys:
            raise Unauthenticated("the token is signed with a key that is not known here")
        return self._keys[key_id]

    def _is_older_than(self, age_s: float) -> bool:
        return self._read_at_s is None or self._now_s() - self._read_at_s > age_s

    async def _read(self) -> None:
        if self._failure is not None and self._now_s() - self._failure[0] < _RETRY_FAILED_S:
            raise self._failure[1]  # requests that wait for an issuer that is away must not queue up
        try:
            async with asyncio.timeout(self._timeout_s):
                self._keys = await asyncio.to_thread(_keys_at, self._where, self._timeout_s)
        except Exception as error:  # whatever is answered there instead of keys: the last ones stay
            if not self._keys:
                failure = Unreachable(self._where, f"the keys of tokens can't be read: {_reason(error)}")
                self._failure = (self._now_s(), failure)
                raise failure from error
            _logger.warning("the keys of tokens can't be read again; the last ones stay", error=_reason(error))
        self._read_at_s = self._now_s()


class Tokens:
    """Checks tokens. Promises: one that is accepted was signed by a known key, is in date, and is for this service."""

    def __init__(self, settings: GatewayJwtSettings, keys: JsonWebKeys | None = None) -> None:
        self._settings = settings
        self._keys = keys or JsonWebKeys(settings)

    async def facts(self, token: str) -> TokenFacts:
        """Return what a token says. Raises Unauthenticated; Unreachable if the keys can't be read."""
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise Unauthenticated("the token is malformed") from error
        if header.get("alg") not in settings.algorithms:
            raise Unauthenticated(f"tokens must be signed with {', '.join(settings.algorithms)}")
        key = await self._keys.key(header.get("kid"))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "sub"], "verify_aud": settings.audience is not None},
            )
        except jwt.ExpiredSignatureError as error:
            raise Unauthenticated("the token has expired; get a new one") from error
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the token is refused: {error}") from error
        # The leeway is for the issuer's clock, so it holds for streams as for requests.
        ends_s = float(min(int(claims["exp"]), _LATEST_S)) + settings.leeway_s
        return TokenFacts(_subject_of(claims), _roles_of(claims.get(settings.roles_claim)), ends_s)


def bearer_token(sent: Sequence[str]) -> str:
    """Return the token in what was sent as Authorization. Raises Unauthenticated unless it is `Bearer TOKEN`, once."""
    scheme, _, token = sent[0].partition(" ")
    if len(sent) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("Authorization must be given once, as Bearer TOKEN")
    return token.strip()


def _subject_of(claims: dict[str, Any]) -> str:
    subject = claims["sub"]
    if not isinstance(subject, str) or not subject:
        raise Unauthenticated("the token names no subject")
    return subject


def _roles_of(claim: object) -> tuple[str, ...]:
    """Return the roles of a claim: a list of texts, or one text with words."""
    if isinstance(claim, str):
        return tuple(claim.split())
    return tuple(each for each in claim if isinstance(each, str)) if isinstance(claim, list) else ()


def _check_place(where: str) -> None:
    """Raise KeysUnusable for an address that others could answer in place of the issuer."""
    address = urlsplit(where)
    if address.scheme == "http" and address.hostname not in _LOOPBACK:
        raise KeysUnusable(where, "keys are read over https, or from a file")


def _is_address(where: str) -> bool:
    return where.startswith(("http://", "https://"))


def _check_file(where: str) -> None:
    """Raise KeysUnusable for a file without keys: all callers would be refused, each by itself."""
    try:
        _keys_at(where, timeout_s=0.0)
    except Exception as error:  # whatever stands there instead of keys
        raise KeysUnusable(where, _reason(error)) from error


def _keys_at(where: str, timeout_s: float) -> dict[str | None, jwt.PyJWK]:
    text = _fetched(where, timeout_s) if _is_address(where) else Path(where).read_bytes()
    found = jwt.PyJWKSet.from_dict(json.loads(text)).keys
    # A key for encryption, or a shared secret, must not check signatures.
    usable = [key for key in found if key.public_key_use in (None, "sig") and key.key_type != "oct"]
    if not usable:
        raise ValueError("there is no public key for signatures among them")
    return {key.key_id: key for key in usable}


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _fetched(where: str, timeout_s: float) -> bytes:
    with urllib.request.urlopen(where, timeout=timeout_s) as answer:  # noqa: S310 - the scheme was checked
        _check_place(answer.geturl())  # a redirect must not lead where others could answer
        deadline_s, text = time.monotonic() + timeout_s, b""
        while chunk := answer.read1(_MOST_BYTES):
            text += chunk
            if len(text) > _MOST_BYTES:
                raise ValueError(f"they are larger than {_MOST_BYTES} bytes")
            if time.monotonic() > deadline_s:  # it comes, but in drops
                raise TimeoutError(f"they did not come within {timeout_s:g} s")
    return text
