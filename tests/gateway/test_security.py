"""Who may do what: tokens, signatures, grants, origins and hosts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from tests.gateway.conftest import NewClient, settings_with

from headrace.access import GrantBook, JsonWebKeys, Tokens, parse_grant
from headrace.app import Headrace
from headrace.config import GatewayJwtSettings
from headrace.errors import BadArgument, GatewayUnprotected, KeysUnusable, Unauthenticated, Unreachable
from headrace.gateway import SignedParts, check_protected, sign_request
from headrace.gateway.origins import host_and_port
from headrace.gateway.signatures import COVERED, MessageSignatures, SignatureInput, content_digest, signature_base
from headrace.journal import JOURNAL_TOPIC
from headrace.model import Event

PATH = "/journals/accounts/a"
SECRET = bytes(range(32))
SECRETS = {"secrets": {"svc": base64.b64encode(SECRET).decode()}}


class Issuer(NamedTuple):
    """An issuer of tokens, and the file with its public key."""

    key: Any
    file: Path

    def token(self, *, kid: str | None = "k1", alg: str = "EdDSA", key: Any = None, **claims: Any) -> str:
        given = {"sub": "alice", "exp": time.time() + 60, "iss": "issuer", "aud": "headrace", **claims}
        kept = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(kept, key or self.key, algorithm=alg, headers={"kid": kid} if kid else None)

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"jwks": str(self.file), "issuer": "issuer", "audience": "headrace", "leeway_s": 0, **more}


def jwks_of(**keys: Any) -> str:
    listed = [{**json.loads(_jwk(key)), "kid": kid, "use": "sig"} for kid, key in keys.items()]
    return json.dumps({"keys": listed})


def _jwk(key: Any) -> str:
    public = key.public_key()
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return jwt.algorithms.OKPAlgorithm.to_jwk(public)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return jwt.algorithms.ECAlgorithm.to_jwk(public)
    return jwt.algorithms.RSAAlgorithm.to_jwk(public)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    key, file = ed25519.Ed25519PrivateKey.generate(), tmp_path / "keys.json"
    file.write_text(jwks_of(k1=key))
    return Issuer(key, file)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_token_opens_what_its_subject_and_roles_are_granted(
    new_client: NewClient, issuer: Issuer, hr: Headrace
) -> None:
    """G10: grants by subject, by role and for everybody; nothing without one, and nothing without a token."""
    await hr.journal("accounts").append("a", [Event(1, 1, ("vip",))])
    grants = {"alice": ["read topic/acc*"], "role:writer": ["append topic/accounts"], "*": ["read schema/*"]}
    client = new_client(jwt=issuer.settings(), grants=grants)
    alice, writer = bearer(issuer.token()), bearer(issuer.token(sub="bob", roles=["writer"]))
    assert (await client.get(PATH)).status_code == 401
    assert (await client.get(PATH, headers=alice)).status_code == 200
    assert (await client.get(PATH, headers=writer)).status_code == 403
    assert (await client.post(PATH, headers=alice, json={"events": [{}]})).status_code == 403
    assert (await client.post(PATH, headers=writer, json={"events": [{}]})).status_code == 201
    assert (await client.post(f"{PATH}/purge", headers=writer)).status_code == 403
    assert (await client.get("/events?tag=vip", headers=alice)).status_code == 403
    assert (await client.get("/metrics", headers=alice)).status_code == 403
    assert (await client.get("/subjects", headers=writer)).status_code == 200
    assert (await client.get("/health/ready")).status_code == 200


async def test_a_subject_can_not_pass_for_a_role_or_for_everybody(new_client: NewClient, issuer: Issuer) -> None:
    """G10: whoever chooses a subject's name at the issuer gains nothing by it."""
    grants = {"role:admin": ["*"], "*": ["read schema/*"], "anonymous": ["append topic/*"]}
    client = new_client(jwt=issuer.settings(), grants=grants)
    for subject in ("role:admin", "*", "subject:role:admin"):
        assert (await client.get(PATH, headers=bearer(issuer.token(sub=subject)))).status_code == 403
    as_nobody = bearer(issuer.token(sub="anonymous"))
    assert (await client.post(PATH, headers=as_nobody, json={"events": [{}]})).status_code == 403


async def test_a_token_that_is_not_right_is_refused(new_client: NewClient, issuer: Issuer) -> None:
    """G10: expired, unsigned, of another issuer, audience, key or algorithm: 401, never anonymous."""
    client = new_client(jwt=issuer.settings(), grants={"anonymous": ["*"], "alice": ["*"]})
    public = issuer.key.public_key().public_bytes_raw()
    other = ed25519.Ed25519PrivateKey.generate()
    unsigned = jwt.encode({"sub": "alice", "exp": time.time() + 60}, None, algorithm="none", headers={"kid": "k1"})
    confused = issuer.token(alg="HS256", key=public)
    wrong = [
        issuer.token(exp=time.time() - 1),
        issuer.token(exp=None),
        issuer.token(sub=None),
        issuer.token(sub=""),
        issuer.token(iss="other"),
        issuer.token(aud="other"),
        issuer.token(aud=None),
        issuer.token(nbf=time.time() + 60),
        issuer.token(key=other),
        issuer.token(kid="k2", key=other),
        issuer.token() + "x",
        unsigned,
        confused,
        "x",
        "",
    ]
    assert (await client.get(PATH, headers=bearer(issuer.token()))).status_code == 200
    assert (await client.get(PATH)).status_code == 200
    for token in wrong:
        answer = await client.get(PATH, headers=bearer(token))
        assert answer.status_code == 401, token
        assert answer.headers["www-authenticate"]
        assert not token or token not in answer.text
    for header in ("Basic YTpi", "Bearer", "bearer  "):
        assert (await client.get(PATH, headers={"authorization": header})).status_code == 401


async def test_keys_of_all_kinds_check_tokens(new_client: NewClient, issuer: Issuer) -> None:
    """G10: RSA, elliptic curves and Ed25519; a token without a key id is fine if there is only one key."""
    curve, prime = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)
    issuer.file.write_text(jwks_of(k1=issuer.key, k2=curve, k3=prime))
    client = new_client(jwt=issuer.settings(), grants={"alice": ["*"]})
    for kid, key, algorithm in (("k1", issuer.key, "EdDSA"), ("k2", curve, "ES256"), ("k3", prime, "RS256")):
        token = issuer.token(kid=kid, key=key, alg=algorithm)
        assert (await client.get(PATH, headers=bearer(token))).status_code == 200
    assert (await client.get(PATH, headers=bearer(issuer.token(kid=None)))).status_code == 401
    assert (await client.get(PATH, headers=bearer(issuer.token(kid="k1", key=curve, alg="ES256")))).status_code == 401


async def test_keys_are_read_again_when_they_change_and_not_more_often(issuer: Issuer) -> None:
    """G10: a new key works after 10 s at the latest; random key ids cause no more reads; lost keys stay in use."""
    now_s = [0.0]
    keys = JsonWebKeys(GatewayJwtSettings(jwks=str(issuer.file)), now_s=lambda: now_s[0])
    assert await keys.key("k1")
    issuer.file.write_text(jwks_of(k1=issuer.key, k2=ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(Unauthenticated):
        await keys.key("k2")
    now_s[0] = 11.0
    assert await keys.key("k2")
    issuer.file.unlink()
    now_s[0] = 1000.0
    assert await keys.key("k1")


async def test_keys_are_fetched_from_an_address(issuer: Issuer) -> None:
    """G10: keys may be at an address; one that fails is asked again after a second, not by each request."""
    answers = [b"no keys", issuer.file.read_bytes()]

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.pop(0))

        def log_message(self, *args: Any) -> None: ...

    now_s = [0.0]
    with HTTPServer(("127.0.0.1", 0), Keys) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{server.server_port}/keys"
        keys = JsonWebKeys(GatewayJwtSettings(jwks=where), now_s=lambda: now_s[0])
        for now_s[0] in (0.0, 0.5):
            with pytest.raises(Unreachable):
                await keys.key("k1")
        assert len(answers) == 1
        for now_s[0] in (1.5, 2.0):
            assert await keys.key("k1")
        server.shutdown()


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\ncut off",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n[1]",
        None,
    ],
)
async def test_the_last_keys_stay_whatever_is_answered_instead(issuer: Issuer, answer: bytes | None) -> None:
    """G10: an answer that is no HTTP, no keys, cut off, or comes in drops harms no caller whose key is known."""
    good = b"HTTP/1.1 200 OK\r\n\r\n" + issuer.file.read_bytes()
    answers, now_s, is_over = [good, answer], [0.0], asyncio.Event()
    handled: list[asyncio.Task[Any]] = []

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handled.extend(each for each in (asyncio.current_task(),) if each is not None)
        await reader.readuntil(b"\r\n\r\n")
        found = answers.pop(0)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if found is None else found)
        with contextlib.suppress(ConnectionError):
            while found is None and not is_over.is_set():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    where = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    keys = JsonWebKeys(GatewayJwtSettings(jwks=where, timeout_s=0.5), now_s=lambda: now_s[0])
    async with asyncio.timeout(3):
        assert await keys.key("k1")
        now_s[0] = 1000.0
        assert await keys.key("k1")
    assert answers == []
    is_over.set()
    server.close()
    await asyncio.gather(*handled)


async def test_the_leeway_holds_for_streams_as_for_requests(issuer: Issuer) -> None:
    """G10: a token that is accepted within the leeway ends with it; one without an end has one that can be shown."""
    tokens = Tokens(GatewayJwtSettings.model_validate(issuer.settings(leeway_s=30)))
    end_s = int(time.time()) - 10
    assert (await tokens.facts(issuer.token(exp=end_s))).expires_s == end_s + 30
    assert (await tokens.facts(issuer.token(exp=10**400))).expires_s < 1e12


async def test_a_body_is_read_only_for_callers_that_may_send_it(new_client: NewClient) -> None:
    """G11: without credentials or permission, not a byte of the body is read into memory."""
    client = new_client(signatures=SECRETS, grants={"svc": ["read topic/*"]})

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    refused = await client.post(PATH, content=body())
    assert (refused.status_code, refused.headers["connection"]) == (401, "close")
    assert (await client.post(PATH, content=body(), headers=signed("POST", PATH, b"x"))).status_code == 403


def test_keys_are_not_read_where_others_could_answer() -> None:
    """G10: keys come over https, from a file, or from this machine."""
    with pytest.raises(KeysUnusable, match="https"):
        JsonWebKeys(GatewayJwtSettings(jwks="http://issuer.example/keys"))
    JsonWebKeys(GatewayJwtSettings(jwks="http://127.0.0.1:1/keys"))


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("{}", "keys"), ('{"keys": []}', "keys")])
def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path, content: str | None, reason: str) -> None:
    """G10: a gateway with a misspelt file would start, and refuse all callers one by one."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(KeysUnusable, match=reason):
        JsonWebKeys(GatewayJwtSettings(jwks=str(file)))


def signed(method: str, url: str, body: bytes = b"", *, secret: bytes = SECRET, **options: Any) -> dict[str, str]:
    parsed = httpx.URL(url)
    parts = SignedParts(method, parsed.raw_path.partition(b"?")[0].decode(), parsed.query.decode(), "localhost", {})
    return sign_request(secret, "svc", parts, body, **{"nonce": uuid.uuid4().hex, **options})


async def test_a_signed_request_is_accepted_once(new_client: NewClient) -> None:
    """G10: a signature over method, path, query and body; the same one again is refused."""
    client = new_client(signatures=SECRETS, grants={"svc": ["*"]})
    body = b'{"events":[{"payload":1}]}'
    headers = signed("POST", PATH, body)
    assert (await client.post(PATH, content=body, headers=headers)).status_code == 201
    assert (await client.post(PATH, content=body, headers=headers)).status_code == 401
    read = await client.get(f"{PATH}?limit=1&from=1", headers=signed("GET", f"{PATH}?limit=1&from=1"))
    assert [each["payload"] for each in read.json()["events"]] == [1]


async def test_a_signature_covers_the_whole_request(new_client: NewClient) -> None:
    """G10: with another body, path, query, method, key, time or digest it is refused, and nothing is written."""
    client = new_client(signatures=SECRETS, grants={"svc": ["*"], "anonymous": ["*"]})
    body = b'{"events":[{}]}'

    async def send(headers: dict[str, str], path: str = PATH, content: bytes = body) -> int:
        return (await client.post(path, content=content, headers=headers)).status_code

    def without(name: str) -> dict[str, str]:
        return {key: value for key, value in signed("POST", PATH, body).items() if key != name}

    now = int(time.time())
    assert await send(signed("POST", PATH, body), content=b'{"events":[{"payload":1}]}') == 401
    assert await send(signed("POST", PATH, body), path="/journals/accounts/b") == 401
    assert await send(signed("POST", PATH, body), path=f"{PATH}?seq_nr=1") == 401
    assert await send(signed("PUT", PATH, body)) == 401
    assert await send(signed("POST", PATH, body, secret=bytes(32))) == 401
    assert await send(signed("POST", PATH, body, created_s=now - 400)) == 401
    assert await send(signed("POST", PATH, body, created_s=now + 400)) == 401
    assert await send(signed("POST", PATH, body, nonce="")) == 401
    assert await send(without("signature")) == 401
    assert await send(without("content-digest")) == 401
    assert await send({**signed("POST", PATH, body), "authorization": "Bearer x"}) == 401
    assert await send({**signed("POST", PATH, body), "content-digest": "sha-256=:AAAA:"}) == 401
    assert (await client.get(f"{PATH}/pointer")).status_code == 404


def test_the_signature_base_is_that_of_the_standard() -> None:
    """G10: the example of RFC 9421, section B.2.5, has the signature that the standard prints."""
    secret = base64.b64decode(
        "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="
    )
    headers = {"date": "Tue, 20 Apr 2021 02:07:55 GMT", "content-type": "application/json"}
    parts = SignedParts("POST", "/foo", "param=Value&Pet=dog", "example.com", headers)
    text = 'sig-b25=("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"'
    sent = SignatureInput.parse(text)
    base = signature_base(parts, sent.components, sent.raw)
    mac = base64.b64encode(hmac.digest(secret, base, "sha256")).decode()
    assert mac == "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8="


@given(text=st.text(alphabet='sig1=()";@methodpathcreatedkeyidnonce0123456789 \\:-', max_size=120))
def test_a_malformed_signature_is_refused_and_nothing_else(text: str) -> None:
    """G11: whatever stands in the headers, the answer is a refusal."""
    checked = MessageSignatures(SECRETS["secrets"], window_s=300)
    sent = Headers({"signature-input": text, "signature": text, "content-digest": text})
    with pytest.raises(Unauthenticated):
        checked.key_id(sent, SignedParts("GET", "/", "", "", {}))


def test_a_nonce_is_remembered_as_long_as_its_signature_is_valid() -> None:
    """G10: also a signature from the near future can't be used again, before or after its nonce is forgotten."""
    now_s = [1000.0]
    checked = MessageSignatures(SECRETS["secrets"], window_s=300, now_s=lambda: now_s[0])
    parts = SignedParts("GET", "/", "", "", {})
    headers = sign_request(SECRET, "svc", parts, b"", nonce="n", created_s=1299)
    sent, whole = Headers(headers), SignedParts("GET", "/", "", "", headers)
    assert checked.key_id(sent, whole) == "svc"
    for later_s in (1001.0, 1300.0, 1598.0, 1700.0):
        now_s[0] = later_s
        with pytest.raises(Unauthenticated):
            checked.key_id(sent, whole)


def test_a_signature_from_before_a_restart_is_refused() -> None:
    """G10: a process that has forgotten the nonces takes nothing that was signed while it did not run."""
    parts = SignedParts("GET", "/", "", "", {})
    for created_s, is_accepted in ((990, False), (1000, True), (1010, True)):
        restarted = MessageSignatures(SECRETS["secrets"], window_s=300, now_s=lambda: 1000.9)
        headers = sign_request(SECRET, "svc", parts, b"", nonce="n", created_s=created_s)
        whole = SignedParts("GET", "/", "", "", headers)
        with contextlib.nullcontext() if is_accepted else pytest.raises(Unauthenticated, match="sign"):
            restarted.key_id(Headers(headers), whole)


@pytest.mark.parametrize(
    ("times", "is_accepted"),
    [
        ("created=1000;expires=1010", True),
        ("created=1000;expires=1004", False),
        (f"created={'9' * 400}", False),
        (f"created=1000;expires={'9' * 400}", False),
    ],
)
def test_a_signature_ends_when_it_says_so(times: str, is_accepted: bool) -> None:
    """G10: `expires` is honoured, and a time that is none is a refusal, not a failure."""
    now_s = [1000.0]
    checked = MessageSignatures(SECRETS["secrets"], window_s=300, now_s=lambda: now_s[0])
    now_s[0] = 1005.0
    raw = f'("@method" "@path" "@query" "content-digest");{times};keyid="svc";nonce="n"'
    parts = SignedParts("GET", "/", "", "", {"content-digest": content_digest(b"")})
    mac = base64.b64encode(hmac.digest(SECRET, signature_base(parts, COVERED, raw), "sha256")).decode()
    sent = Headers({"signature-input": f"sig1={raw}", "signature": f"sig1=:{mac}:", **parts.headers})
    with contextlib.nullcontext() if is_accepted else pytest.raises(Unauthenticated):
        checked.key_id(sent, parts)


@pytest.mark.parametrize("secret", ["short", base64.b64encode(b"x" * 31).decode(), "%%%"])
def test_a_weak_secret_is_refused_when_the_gateway_starts(secret: str) -> None:
    """G10: 32 bytes as base64, or nothing is served; the message does not show the secret."""
    with pytest.raises(KeysUnusable) as refused:
        MessageSignatures({"svc": secret}, window_s=300)
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "read", "read topic", "read topic/", "fly topic/a", "read planet/a", "read topic/a*b", "read,, topic/a"],
)
def test_a_grant_that_can_not_be_understood_is_refused(text: str) -> None:
    """G10: a misspelt grant stops the start; it must not grant nothing, nor everything."""
    with pytest.raises(BadArgument):
        GrantBook({"a": [text]}, has_authentication=True)


def test_a_grant_covers_what_it_names() -> None:
    """G10: names are whole, or prefixes that end with a star; kinds and operations are exact."""
    grant = parse_grant("read,append topic/orders-*")
    assert grant.allows("append", "topic", "orders-eu")
    assert not grant.allows("append", "topic", "orders")
    assert not grant.allows("delete", "topic", "orders-eu")
    assert not grant.allows("read", "tag", "orders-eu")
    assert not parse_grant("read topic/a").allows("read", "topic", "ab")
    assert parse_grant("*").allows("purge", "system", "x")


async def test_events_of_topics_that_a_caller_may_not_read_are_left_out(
    new_client: NewClient, issuer: Issuer, hr: Headrace
) -> None:
    """G15: a tag opens no topic: its events come from the topics that the caller may read, in pages and in lines."""
    for topic in ("accounts", "secrets"):
        await hr.journal(topic, partitions=1).append("a", [Event(1, topic, ("vip",))])
    grants = {"alice": ["read tag/vip", "read topic/accounts"]}
    client = new_client(jwt=issuer.settings(), grants=grants, headers=bearer(issuer.token()))
    page = (await client.get("/events?tag=vip")).json()
    assert [each["payload"] for each in page["events"]] == ["accounts"]
    lines = await client.get("/events?tag=vip", headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["payload"] for line in lines.text.splitlines()] == ["accounts"]
    assert (await client.get("/events?tag=other")).status_code == 403


async def test_pages_of_other_origins_are_refused(new_client: NewClient) -> None:
    """G10: a web page of an origin that the settings do not name can write nothing, and read nothing."""
    client = new_client(origins=["https://shop.example"])
    evil, shop = {"origin": "https://evil.example"}, {"origin": "https://shop.example"}
    body = {"events": [{}]}
    told = await client.post(PATH, json=body, headers=evil)
    assert told.status_code == 403
    assert "'https://evil.example', which is not one of gateway.origins" in told.json()["detail"]
    assert "credentials" not in told.text  # others would not help
    assert (await client.post(PATH, json=body, headers={"origin": "null"})).status_code == 403
    allowed = await client.post(PATH, json=body, headers=shop)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (201, "https://shop.example")
    read = await client.get(PATH, headers=evil)
    assert "access-control-allow-origin" not in read.headers
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    asked = await client.options(PATH, headers={**shop, **asking})
    assert asked.headers["access-control-allow-methods"]
    assert asked.headers.get_list("access-control-allow-origin") == ["https://shop.example"]  # twice is refused
    assert len(asked.headers) == len(asked.headers.multi_items())
    refused = await client.options(PATH, headers={**evil, **asking})
    assert "access-control-allow-origin" not in refused.headers
    assert (await client.post(PATH, json=body, headers={"origin": "http://localhost"})).status_code == 201


async def test_a_page_goes_on_behind_events_that_may_not_be_read(
    new_client: NewClient, hr: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G15: a page does not go through all that it leaves out: it ends, and says where the next one begins."""
    monkeypatch.setattr("headrace.gateway.tag_events._LEFT_OUT_AT_MOST", 3)
    await hr.log.admin.create("hidden", partitions=1, config=JOURNAL_TOPIC)
    await hr.journal("hidden").append("h", [Event(number, number, ("vip",)) for number in range(1, 9)])
    await hr.journal("accounts").append("a", [Event(1, "seen", ("vip",))])
    client = new_client(signatures=SECRETS, grants={"svc": ["read tag/*", "read topic/accounts"]})
    pages, url = [], "/events?tag=vip"
    while not pages or not pages[-1]["is_end"]:
        pages.append((await client.get(url, headers=signed("GET", url))).json())
        url = f"/events?tag=vip&after={quote(pages[-1]['next'])}"
    assert [each["payload"] for page in pages for each in page["events"]] == ["seen"]
    assert len(pages) == 3


async def test_a_gateway_without_authentication_answers_to_names_of_this_machine(new_client: NewClient) -> None:
    """G10: a page that has its own name lead to this machine is refused; a named host is accepted."""
    client = new_client()
    accepted = {"localhost:8080": 200, "127.0.0.1": 200, "[::1]:8080": 200, "evil.example": 403, "[": 403}
    for host, status in accepted.items():
        assert (await client.get("/health/live", headers={"host": host})).status_code == status, host
    twice = [("host", "localhost"), ("host", "evil.example")]
    assert (await client.get("/health/live", headers=twice)).status_code == 403
    named = new_client(hosts=["api.example"])
    assert (await named.get("/health/live", headers={"host": "API.example:443"})).status_code == 200
    refused = await named.get("/health/live", headers={"host": "localhost"})
    assert (refused.status_code, refused.json()["detail"]) == (
        403,
        "Host is 'localhost', which is not one of gateway.hosts; if it may use this gateway, add it there",
    )


def test_other_machines_are_not_served_without_authentication(caplog: pytest.LogCaptureFixture) -> None:
    """G10: listening beyond this machine without authentication needs a setting of its own, and is warned about."""
    for listen in ("0.0.0.0:80", "[::]:80", "10.0.0.1:80", "gateway.example:80"):
        with pytest.raises(GatewayUnprotected, match="allow_unauthenticated"):
            check_protected(settings_with(listen=listen).gateway)
    check_protected(settings_with(listen="127.0.0.1:80").gateway)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        check_protected(settings_with(listen="0.0.0.0:80", allow_unauthenticated=True).gateway)
        check_protected(settings_with(listen="0.0.0.0:80", signatures=SECRETS).gateway)
    assert "without authentication" in caplog.records[0].getMessage()
    assert "without TLS" in caplog.records[1].getMessage()
    for wrong in ("8080", "localhost:", ":80", "h:99999", "h:8o"):
        with pytest.raises(BadArgument):
            host_and_port(wrong)


async def test_secrets_are_in_no_log_and_no_answer(
    new_client: NewClient, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """G10: neither tokens, nor signatures, nor shared secrets are logged, whatever fails."""
    client = new_client(jwt=issuer.settings(), signatures=SECRETS, grants={"alice": ["*"]})
    token = issuer.token()
    with caplog.at_level(logging.DEBUG):
        answers = [
            await client.get(PATH, headers=bearer(token)),
            await client.get(PATH, headers=bearer(token + "x")),
            await client.get("/journals/bad%20topic/a", headers=bearer(token)),
            await client.get(PATH, headers=signed("POST", PATH)),
        ]
    seen = caplog.text + "".join(each.text for each in answers) + repr(settings_with(signatures=SECRETS))
    assert token not in seen
    assert SECRETS["secrets"]["svc"] not in seen
    shown = {each.key: each.value for each in settings_with(signatures=SECRETS).describe()}
    assert shown["gateway.signatures.secrets.svc"] == "***"


async def test_a_caller_that_is_too_fast_gets_429(new_client: NewClient, issuer: Issuer) -> None:
    """G10: each caller has its own share; who guesses credentials is slowed down by address."""
    client = new_client(jwt=issuer.settings(), requests_per_s=0.001, burst=2, grants={"*": ["*"]})
    alice, bob = bearer(issuer.token()), bearer(issuer.token(sub="bob"))
    assert [(await client.get(PATH, headers=alice)).status_code for _ in range(3)] == [200, 200, 429]
    assert (await client.get(PATH, headers=bob)).status_code == 200
    wrong = bearer("x")
    assert [(await client.get(PATH, headers=wrong)).status_code for _ in range(3)] == [401, 401, 429]
    answer = await client.get(PATH, headers=alice)
    assert int(answer.headers["retry-after"]) > 1
