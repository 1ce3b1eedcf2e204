"""Tokens made to deceive or to break the check: each is refused with 401, by a real server, on every door."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import websockets
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.gateway.conftest import Serve
from tests.gateway.test_security import PATH, Issuer, jwks_of

FOREVER = 4_000_000_000


def encoded(part: object) -> str:
    text = part if isinstance(part, str) else json.dumps(part)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def signed(key: ed25519.Ed25519PrivateKey, header: object, claims: object) -> str:
    """Return a token of any header and claims, also ones that no library would make."""
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(key.sign(text.encode())).rstrip(b'=').decode()}"


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    key, file = ed25519.Ed25519PrivateKey.generate(), tmp_path / "keys.json"
    file.write_text(jwks_of(k1=key, r1=rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    return Issuer(key, file)


def hostile(issuer: Issuer) -> dict[str, str]:
    """Return tokens that must be refused, by what is wrong with them."""
    key, other = issuer.key, ed25519.Ed25519PrivateKey.generate()
    right = {"alg": "EdDSA", "kid": "k1", "typ": "JWT"}
    claims = {"sub": "alice", "exp": FOREVER, "iss": "issuer", "aud": "headrace"}
    own = json.loads(jwks_of(mine=other))["keys"][0]
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    nested = "[" * 1500 + "]" * 1500  # deeper than the interpreter goes, and yet a short token
    bad_headers: dict[str, Any] = {
        "alg in another case": {**right, "alg": "none"},
        "alg None": {**right, "alg": "None"},
        "alg a list": {**right, "alg": ["EdDSA"]},
        "alg an object": {**right, "alg": {"EdDSA": 1}},
        "alg null": {**right, "alg": None},
        "alg of another kind of key": {**right, "alg": "RS256"},
        "key of another kind": {**right, "kid": "r1"},
        "kid a list": {**right, "kid": ["k1"]},
        "kid an object": {**right, "kid": {"k1": 1}},
        "kid a number": {**right, "kid": 1},
        "kid a path": {**right, "kid": "../../../../dev/null"},
        "kid sql": {**right, "kid": "k1' OR '1'='1"},
        "kid missing with two keys": {"alg": "EdDSA"},
        "kid null": {**right, "kid": None},
        "b64 false": {**right, "b64": False, "crit": ["b64"]},
        "crit unknown": {**right, "crit": ["surprise"]},
        "header a list": [right],
        "header a text": "EdDSA",
        "header nested": '{"alg": "EdDSA", "kid": "k1", "x": ' + nested + "}",
        "header with half a surrogate": '{"alg": "EdDSA", "kid": "\\ud800"}',
    }
    bad_claims: dict[str, Any] = {
        "exp infinite": '{"sub": "alice", "iss": "issuer", "aud": "headrace", "exp": 1e999}',
        "exp nan": '{"sub": "alice", "iss": "issuer", "aud": "headrace", "exp": NaN}',
        "exp a list": {**claims, "exp": [FOREVER]},
        "exp a word": {**claims, "exp": "tomorrow"},
        "exp in the past": {**claims, "exp": 1},
        "exp negative": {**claims, "exp": -FOREVER},
        "nbf infinite": '{"sub": "alice", "iss": "issuer", "aud": "headrace", "exp": 4e9, "nbf": 1e999}',
        "nbf in the future": {**claims, "nbf": FOREVER - 1},
        "nbf a word": {**claims, "nbf": "now"},
        "iat in the future": {**claims, "iat": FOREVER - 1},
        "sub a list": {**claims, "sub": ["alice"]},
        "sub a number": {**claims, "sub": 1},
        "sub null": {**claims, "sub": None},
        "aud an empty list": {**claims, "aud": []},
        "aud other names": {**claims, "aud": ["a", "b"]},
        "aud a number": {**claims, "aud": 5},
        "aud an object": {**claims, "aud": {"headrace": 1}},
        "aud a prefix": {**claims, "aud": "headrac"},
        "iss a list": {**claims, "iss": ["issuer", "other"]},
        "iss missing": {name: value for name, value in claims.items() if name != "iss"},
        "claims a list": [claims],
        "claims nested": '{"sub": "alice", "x": ' + nested + "}",
    }
    good = signed(key, right, claims)
    head, body, signature = good.split(".")
    return {
        **{name: signed(key, header, claims) for name, header in bad_headers.items()},
        **{name: signed(key, right, given) for name, given in bad_claims.items()},
        "key in the header": signed(other, {**right, "jwk": own}, claims),
        "key at an address": signed(other, {**right, "jku": "http://127.0.0.1:9/keys", "kid": "mine"}, claims),
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.{signature}",
        "another body": f"{head}.{encoded({**claims, 'sub': 'root'})}.{signature}",
        "hs256 with the public key": _hs256(pem, right, claims),
        "dots": "." * 500,
        "blanks inside": f"{head} .{body}.{signature}",
    }


def _hs256(secret: bytes, header: dict[str, Any], claims: dict[str, Any]) -> str:
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    text = f"{encoded({**header, 'alg': 'HS256'})}.{encoded(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(algorithm.sign(text.encode(), secret)).rstrip(b'=').decode()}"


async def test_no_hostile_token_passes_over_http_or_websocket(serve: Serve, issuer: Issuer) -> None:
    """G10: 401 with a reason, never 200, never 500; and the server answers the next caller."""
    grants = {"alice": ["*"], "root": ["*"], "anonymous": ["*"], "*": ["*"]}
    seen: dict[str, Any] = {}
    async with (
        serve(jwt=issuer.settings(), grants=grants) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        for name, token in hostile(issuer).items():
            headers = {"authorization": f"Bearer {token}"}
            statuses = [(await client.get(PATH, headers=headers)).status_code]
            with pytest.raises(websockets.InvalidStatus) as refusal:
                await websockets.connect(running.url.replace("http", "ws") + "/socket", additional_headers=headers)
            statuses.append(refusal.value.response.status_code)
            if statuses != [401, 401]:
                seen[name] = statuses
        assert (await client.get(PATH, headers={"authorization": f"Bearer {issuer.token()}"})).status_code == 200
    assert seen == {}


async def test_a_long_token_is_taken_over_http_only(serve: Serve, issuer: Issuer) -> None:
    """G10: a header of a WebSocket is at most 8 KiB; one of a request may be as long as all headers together."""
    headers = {"authorization": f"Bearer {issuer.token(groups=['x' * 7000])}"}
    async with serve(jwt=issuer.settings(), grants={"alice": ["*"]}) as running:
        async with httpx.AsyncClient(base_url=running.url) as client:
            assert (await client.get(PATH, headers=headers)).status_code == 200
            longer = {"authorization": f"Bearer {issuer.token(groups=['x' * 1_000_000])}"}
            assert (await client.get(PATH, headers=longer)).status_code == 431
        with pytest.raises(websockets.InvalidStatus) as refusal:
            await websockets.connect(running.url.replace("http", "ws") + "/socket", additional_headers=headers)
        assert refusal.value.response.status_code == 431
