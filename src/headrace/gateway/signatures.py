"""Requests that are signed with a shared secret: HTTP message signatures (RFC 9421) with hmac-sha256.

A signature must cover the method, the path, the query, and the digest of the body; it names its key, when it was made,
and a nonce. An old one, and one whose nonce was used before, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from headrace.errors import Busy, KeysUnusable, Unauthenticated

__all__ = ["MessageSignatures", "SignatureInput", "SignedParts", "content_digest", "sign_request", "signature_base"]

LABEL = "sig1"
COVERED = ("@method", "@path", "@query", "content-digest")
_LEAST_SECRET_BYTES = 32
_NONCES_AT_MOST = 1_000_000
_MOST_NONCE = 128
_INPUT = re.compile(r'^([a-z*][a-z0-9_.*-]*)=(\(((?:"[a-z0-9@_.*-]+" ?)*)\)((?:;[a-z]+=(?:"[^"\\]*"|-?[0-9]+))*))$')
_PARAMETER = re.compile(r';([a-z]+)=(?:"([^"\\]*)"|(-?[0-9]+))')
_SIGNATURE = re.compile(r"^([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):$")


@dataclass(frozen=True, slots=True)
class SignedParts:
    """What of a request can be signed. `path` and `query` are as they were sent, percent-encoded."""

    method: str
    path: str
    query: str
    authority: str
    headers: Mapping[str, str]

    def component(self, name: str) -> str:
        """Return the value of a component. Raises Unauthenticated if the request does not have it."""
        derived = {
            "@method": self.method.upper(),
            "@path": self.path or "/",
            "@query": f"?{self.query}",
            "@authority": self.authority.lower(),
        }
        if name in derived:
            return derived[name]
        if name.startswith("@") or name not in self.headers:
            raise Unauthenticated(f"the signature covers {name!r}, which the request does not have")
        return self.headers[name].strip()


@dataclass(frozen=True, slots=True)
class SignatureInput:
    """The header Signature-Input: what is covered, and with which key, when and for which request it was made."""

    label: str
    components: tuple[str, ...]
    raw: str
    key_id: str
    created_s: int
    nonce: str
    expires_s: int | None = None

    @classmethod
    def parse(cls, text: str) -> SignatureInput:
        """Return what the header says. Raises Unauthenticated if it is malformed or lacks a parameter."""
        found = _INPUT.match(text.strip())
        if found is None:
            raise Unauthenticated("Signature-Input is malformed; it has one signature, as RFC 9421 describes")
        label, raw, components, parameters = found.groups()
        given = {name: quoted or number for name, quoted, number in _PARAMETER.findall(parameters)}
        if given.get("alg", "hmac-sha256") != "hmac-sha256":
            raise Unauthenticated("the signature's algorithm must be hmac-sha256")
        names = tuple(re.findall(r'"([^"]+)"', components))
        if len(set(names)) != len(names):
            raise Unauthenticated("the signature covers a component twice")
        created_s = _seconds_of(given, "created")
        if created_s is None:
            raise Unauthenticated("the signature does not say when it was created")
        key_id, nonce = given.get("keyid") or "", given.get("nonce") or ""
        return cls(label, names, raw, key_id, created_s, nonce, _seconds_of(given, "expires"))


def _seconds_of(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,15}", text):
        raise Unauthenticated(f"the signature's {name} is no time in seconds")
    return int(text)


def content_digest(body: bytes) -> str:
    """Return the value of the header Content-Digest (RFC 9530) for a body."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def signature_base(parts: SignedParts, components: Sequence[str], raw_parameters: str) -> bytes:
    """Return the bytes that are signed."""
    lines = [f'"{name}": {parts.component(name)}' for name in components]
    return "\n".join([*lines, f'"@signature-params": {raw_parameters}']).encode()


def sign_request(
    secret: bytes, key_id: str, parts: SignedParts, body: bytes, *, nonce: str, created_s: int | None = None
) -> dict[str, str]:
    """Return the headers that sign a request: Content-Digest, Signature-Input and Signature. For clients."""
    created = int(time.time()) if created_s is None else created_s
    digest = content_digest(body)
    signed = SignedParts(
        parts.method, parts.path, parts.query, parts.authority, {**parts.headers, "content-digest": digest}
    )
    names = " ".join(f'"{name}"' for name in COVERED)
    raw = f'({names});created={created};keyid="{key_id}";nonce="{nonce}"'
    mac = hmac.digest(secret, signature_base(signed, COVERED, raw), "sha256")
    return {
        "content-digest": digest,
        "signature-input": f"{LABEL}={raw}",
        "signature": f"{LABEL}=:{base64.b64encode(mac).decode()}:",
    }


class MessageSignatures:
    """Checks signatures. Promises: a signed request is accepted once, by this process, within the window.

    Nonces are not kept over a restart, so nothing is accepted that was signed before this process began.
    """

    def __init__(self, secrets: Mapping[str, str], *, window_s: float, now_s: Callable[[], float] = time.time) -> None:
        self._secrets = {key_id: _secret_of(key_id, text) for key_id, text in secrets.items()}
        self._window_s = window_s
        self._now_s = now_s
        self._nonces: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._began_s = int(now_s())

    def key_id(self, headers: Headers, parts: SignedParts) -> str:
        """Return the id of the key that signed the request; its body is checked later. Raises Unauthenticated, Busy."""
        given = SignatureInput.parse(_only(headers, "signature-input"))
        if missing := set(COVERED) - set(given.components):
            raise Unauthenticated(f"the signature must cover {', '.join(sorted(missing))}")
        secret = self._secrets.get(given.key_id)
        mac = _mac_of(_only(headers, "signature"), given.label)
        # An unknown key is compared too, so that its answer does not come faster than that of a wrong signature.
        expected = hmac.digest(secret or b"\0", signature_base(parts, given.components, given.raw), "sha256")
        if not hmac.compare_digest(expected, mac) or secret is None:
            raise Unauthenticated("the signature is wrong, or its key is not known here")
        self._check_fresh(given)
        return given.key_id

    @staticmethod
    def check_body(headers: Headers, body: bytes) -> None:
        """Raise Unauthenticated unless the body is the one whose digest was signed."""
        if not hmac.compare_digest(_only(headers, "content-digest").encode(), content_digest(body).encode()):
            raise Unauthenticated("Content-Digest is not the SHA-256 digest of the body")

    def _check_fresh(self, given: SignatureInput) -> None:
        """Raise Unauthenticated for a signature that is old, from the future, or used before."""
        now_s = self._now_s()
        if abs(now_s - given.created_s) > self._window_s:
            raise Unauthenticated(f"the signature was made more than {self._window_s:g} s ago, or in the future")
        if given.created_s < self._began_s:
            raise Unauthenticated("the signature was made before this gateway was started; sign the request again")
        if given.expires_s is not None and now_s > given.expires_s:
            raise Unauthenticated("the signature has expired; sign the request again")
        if not 1 <= len(given.nonce) <= _MOST_NONCE:
            raise Unauthenticated(f"the signature needs a nonce of 1 to {_MOST_NONCE} characters")
        self._forget(now_s)
        used = (given.key_id, given.nonce)
        if used in self._nonces:
            raise Unauthenticated("the signature's nonce was used before; sign each request with a new one")
        if len(self._nonces) >= _NONCES_AT_MOST:
            raise Busy("the memory of signatures", _NONCES_AT_MOST)
        # A signature from the future stays valid for up to two windows from now.
        self._nonces[used] = now_s + 2 * self._window_s

    def _forget(self, now_s: float) -> None:
        while self._nonces and next(iter(self._nonces.values())) < now_s:
            self._nonces.popitem(last=False)


def _only(headers: Headers, name: str) -> str:
    found = headers.getlist(name)
    if len(found) != 1:
        raise Unauthenticated(f"a signed request has one header {name}")
    return found[0]


def _mac_of(text: str, label: str) -> bytes:
    found = _SIGNATURE.match(text.strip())
    if found is None or found[1] != label:
        raise Unauthenticated(f"the header Signature has no signature {label!r}")
    try:
        return base64.b64decode(found[2], validate=True)
    except binascii.Error as error:
        raise Unauthenticated("the header Signature is not base64") from error


def _secret_of(key_id: str, text: str) -> bytes:
    where = f"gateway.signatures.secrets ({key_id})"
    try:
        secret = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise KeysUnusable(where, "it is not base64") from error
    if len(secret) < _LEAST_SECRET_BYTES:
        raise KeysUnusable(where, f"it has {len(secret)} bytes, and needs {_LEAST_SECRET_BYTES}")
    return secret
