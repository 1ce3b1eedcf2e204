"""Keyspaces and engines over HTTP and WebSocket, on one node of the embedded tier that all tests here share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio
import websockets
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.gateway.market import Account, Accounts, Deposit, purses

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.errors import Busy
from headrace.gateway import GatewayApp, serving
from headrace.gateway.socket_wire import PushQueue, schema_frame
from headrace.keyspace import App, KeyspaceClient
from headrace.model import ConsistencyToken, combine_tokens
from headrace.serde import GenericCodec, Schema, frame_header, schema_id_of, schema_of
from headrace.state import StateChange

pytestmark = pytest.mark.asyncio(loop_scope="module")  # all tests here are async, and share the node's loop

STATE = "/keyspaces/accounts/states/balances"
TOKEN = "Headrace-Token"
SECRETS = {"secrets": {"k": "A" * 44}}


class Market(NamedTuple):
    """The node, a client of its gateway without a network, and the address of one that serves."""

    hr: Headrace
    client: httpx.AsyncClient
    url: str
    app: GatewayApp

    @property
    def accounts(self) -> KeyspaceClient:
        return self.hr.keyspace(Accounts)

    def socket(self, key: str, **options: Any) -> Any:
        return websockets.connect(f"{self.url.replace('http', 'ws')}{STATE}/{key}", **options)

    def many(self, **options: Any) -> Any:
        return websockets.connect(f"{self.url.replace('http', 'ws')}/socket", subprotocols=["headrace.v1"], **options)

    def with_settings(self, **gateway: Any) -> httpx.AsyncClient:
        self.hr.settings = settings_in(self.hr.settings.log.address, **gateway)
        app = self.hr.gateway(Accounts)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def settings_in(address: str, **gateway: Any) -> HeadraceSettings:
    return HeadraceSettings.model_validate(
        {
            "log": {"address": address},
            "store": {"address": address},
            "registry": {"address": "memory:"},
            "cluster": {"node_id": "n1"},
            "gateway": {"listen": "127.0.0.1:0", **gateway},
        }
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    folder: Path = tmp_path_factory.mktemp("market")
    settings = settings_in(f"embedded:{folder}")

    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = App(Accounts, routes=[Route("/hello", hello)])
    async with connect(settings=settings) as hr, hr.node(app, purses):
        gateway = hr.gateway(app, purses)
        transport = httpx.ASGITransport(gateway)
        async with (
            serving(gateway, settings.gateway) as running,
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            yield Market(hr, client, running.url, gateway)


async def received(socket: Any) -> Any:
    async with asyncio.timeout(20):
        return await socket.recv()


async def test_keys_messages_and_commands_answer_with_tokens_that_reads_take(market: Market) -> None:
    """Each write is shown by the read that is sent its token; a subscription begins no earlier than its token."""
    client, path = market.client, f"{STATE}/token"
    put = await client.put(path, json={"owner": "ann", "balance": 1})
    sent = await client.post("/keyspaces/accounts/messages/Deposit", json={"id": "token", "amount": 2})
    read = await client.get(path, headers={TOKEN: f"{put.headers[TOKEN]}, {sent.headers[TOKEN]}"})
    assert read.json()["data"]["balance"] == 3
    token = combine_tokens(read.headers[TOKEN], sent.headers[TOKEN])
    assert (await client.get(path, params={"max_staleness_s": 60}, headers={TOKEN: token})).status_code == 200
    subscribe = {"op": "subscribe", "keyspace": "accounts", "state": "balances", "key": "token"}
    async with market.many() as socket:
        await socket.send(json.dumps({**subscribe, "id": 1, "token": token}))
        assert json.loads(await received(socket))["value"]["data"]["balance"] == 3
        await socket.send(json.dumps({**subscribe, "id": 2, "token": "garbage"}))
        assert json.loads(await received(socket))["problem"]["status"] == 400
    gone = await client.delete(path)
    assert (await client.get(path, headers={TOKEN: gone.headers[TOKEN]})).status_code == 404
    done = await client.post("/engines/purses/token/commands/Pay", json={"coins": 3})
    found = await client.get("/engines/purses/token", headers={TOKEN: done.headers[TOKEN]})
    assert (found.json()["state"], bool(found.headers[TOKEN])) == ({"coins": 3}, True)
    (place, *_) = [each for each in ConsistencyToken.parse(done.headers[TOKEN]).places if "state" in each.topic]
    ahead = str(ConsistencyToken.of([place._replace(offset=10**6)]))
    assert (await client.get("/engines/purses/token", headers={TOKEN: ahead})).status_code == 409


async def test_the_health_of_the_node_is_part_of_the_gateways(market: Market) -> None:
    """N26, G4: a partition of an engine that is down makes engine, node and gateway down; the tree says why."""
    assert market.hr._node is not None
    host: Any = market.hr._node._hosting.host("purses", 0)
    host.health.down("the disk is full")
    try:
        tree = await market.client.get("/health")
        ready = await market.client.get("/health/ready")
    finally:
        host.health.up()
    assert (tree.status_code, ready.status_code) == (503, 503)
    (node,) = [each for each in tree.json()["children"] if each["name"] == "node n1"]
    parts = {each["name"]: each["state"] for each in node["children"]}
    assert parts == {"accounts": "up", "purses": "down", "background": "up"}
    assert "the disk is full" in tree.text
    assert (await market.client.get("/health/ready")).json() == {"state": "up"}


async def test_values_are_read_and_written_by_key(market: Market) -> None:
    """G4: a state is served by key: JSON with its type, 404 without a value, keys of any text."""
    for key in ("a", "a%2Fb", "%E4%BD%A0"):
        path = f"{STATE}/{key}"
        assert (await market.client.get(path)).status_code == 404
        assert (await market.client.put(path, json={"owner": "ann", "balance": 7})).status_code == 204
        assert (await market.client.get(path)).json() == {"type": "Account", "data": {"owner": "ann", "balance": 7}}
        assert (await market.client.delete(path)).status_code == 204
        assert (await market.client.get(path)).status_code == 404


async def test_a_value_of_this_process_is_read_without_a_turn_of_the_loop(market: Market) -> None:
    """A plain GET of a key that this node owns waits for nothing, and is answered as one that goes all the way."""
    path = f"{STATE}/at-once"
    await market.client.put(path, json={"owner": "ann", "balance": 5})
    waited = await market.client.get(path, headers={"Request-Timeout": "9"})
    steps, status, headers, body = at_once(market.app, path)
    kept = ("etag", "cache-control", "vary", "headrace-token", "content-type", "content-length", "referrer-policy")
    assert (steps, status, body) == (0, 200, waited.content)
    assert {name: headers[name] for name in kept} == {name: waited.headers[name] for name in kept}
    assert at_once(market.app, path, ("if-none-match", waited.headers["etag"]))[:2] == (0, 304)
    for more in (("accept", "avro/binary"), ("headrace-token", headers["headrace-token"]), ("request-timeout", "1")):
        assert at_once(market.app, path, more)[0] == 1, more
    assert at_once(market.app, f"{STATE}/never")[0] == 1
    assert at_once(market.app, path, ("authorization", "Bearer x"))[:2] == (0, 401)
    assert at_once(market.app, path, ("host", "evil.example"))[:2] == (0, 403)


def at_once(app: GatewayApp, path: str, *more: tuple[str, str]) -> tuple[int, int, dict[str, str], bytes]:
    """Run a GET to its first wait: returns 1 if there is one, else 0 with the status, the headers and the body."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("there is no body")

    headers = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **dict(more)}.items()]
    scope = {"type": "http", "method": "GET", "scheme": "http", "path": path, "query_string": b"", "headers": headers}
    running = app(scope, receive, send)
    try:
        running.send(None)
    except StopIteration:
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return 0, sent[0]["status"], answered, sent[1]["body"]
    running.close()
    return 1, 0, {}, b""


async def test_what_is_read_often_is_encoded_once(market: Market) -> None:
    """The JSON of stored bytes is kept for the next read of the same bytes; a changed value is another one."""
    _, form = market.app._sockets._routes.form("accounts", "balances")
    decoded = 0

    def decode(data: bytes) -> Account:
        nonlocal decoded
        decoded += 1
        return Account(data.decode())

    assert form.json_stored(b"bob", decode) == form.json_stored(b"bob", decode)
    assert (decoded, b'"eve"' in form.json_stored(b"eve", decode)) == (1, True)
    for number in range(2_000):
        form.json_stored(b"%d" % number, decode)
    assert len(form._stored_json) == 1_024
    form.json_stored(b"x" * 5_000, decode)
    assert b"x" * 5_000 not in form._stored_json


async def test_a_version_guards_a_write(market: Market) -> None:
    """G1: ETag is a value's version; a write whose If-Match or If-None-Match does not fit is 412."""
    path, value = f"{STATE}/versions", {"owner": "ann", "balance": 1}
    put = market.client.put
    assert (await put(path, json=value, headers={"if-match": "*"})).status_code == 412
    assert (await put(path, json=value, headers={"if-none-match": "*"})).status_code == 204
    assert (await put(path, json=value, headers={"if-none-match": "*"})).status_code == 412
    etag = (await market.client.get(path)).headers["etag"]
    assert (await market.client.get(path, headers={"if-none-match": etag})).status_code == 304
    assert (await put(path, json={"owner": "bob"}, headers={"if-match": etag})).status_code == 204
    assert (await put(path, json=value, headers={"if-match": etag})).status_code == 412
    assert (await market.client.delete(path, headers={"if-match": etag})).status_code == 412
    assert (await market.client.get(path)).json()["data"]["owner"] == "bob"
    for wrong in ("7", '"x', '"1" "2"', ""):
        assert (await put(path, json=value, headers={"if-match": wrong})).status_code == 400


async def test_a_value_has_an_avro_form(market: Market) -> None:
    """V1, G4: with avro/binary a value goes in and out as framed Avro; states that are not Avro say so."""
    avro = {"accept": "avro/binary", "content-type": "avro/binary"}
    await market.client.put(f"{STATE}/avro", json={"owner": "ann", "balance": 3})
    read = await market.client.get(f"{STATE}/avro", headers=avro)
    assert read.headers["content-type"] == "avro/binary"
    assert await market.hr.registry.schema(schema_id_of(read.content)) == schema_of(Account)
    assert (await market.client.put(f"{STATE}/avro2", content=read.content, headers=avro)).status_code == 204
    assert (await market.client.get(f"{STATE}/avro2")).json()["data"]["balance"] == 3
    notes = "/keyspaces/accounts/states/notes/7"
    assert (await market.client.put(notes, json="hi")).status_code == 204
    assert (await market.client.get(notes)).json() == "hi"
    assert (await market.client.get(notes, headers={"accept": "avro/binary"})).status_code == 406
    assert (await market.client.put(notes, content=read.content, headers=avro)).status_code == 415


async def test_what_does_not_fit_a_state_is_refused(market: Market) -> None:
    """G1: a key or value of another type is 400; a keyspace, state or message that is not there is 404."""
    put, notes = market.client.put, "/keyspaces/accounts/states/notes"
    for path, value in (
        (f"{STATE}/x", {"owner": 1}),
        (f"{STATE}/x", {"balance": 1}),
        (f"{STATE}/x", None),
        (f"{STATE}/x", []),
        (f"{STATE}/%00hr", {"owner": "a"}),
        (f"{notes}/seven", "x"),
        (f"{notes}/7", 7),
        ("/keyspaces/accounts/states/lines/x", 7),
        ('/keyspaces/accounts/states/lines/["a"]', 7),
    ):
        assert (await put(path, json=value)).status_code == 400, (path, value)
    for path in (
        "/keyspaces/x/states/a/b",
        "/keyspaces/accounts/states/x/b",
        "/keyspaces/accounts/states/__replies__/b",
    ):
        assert (await market.client.get(path)).status_code == 404
    assert (await market.client.post("/keyspaces/accounts/messages/Fly", json={})).status_code == 404
    missing = (await market.client.get('/keyspaces/accounts/states/lines/["a",1]')).json()
    assert missing["detail"] == """there is no key '["a",1]' of state 'lines' of keyspace 'accounts'"""
    partial = (await market.client.post("/keyspaces/accounts/messages/Deposit", json={"amount": 1})).json()
    assert partial["detail"] == "can't read JSON: at 'id': it is missing and has no default"
    assert (await market.client.get(f"{STATE}/x?max_staleness_s=soon")).status_code == 400


async def test_keys_are_listed_counted_and_found(market: Market) -> None:
    """G4: pages of a prefix, all pairs as lines, counts, and what an index has."""
    lines = "/keyspaces/accounts/states/lines"
    for number in range(5):
        assert (await market.client.put(f'{lines}/["p",{number}]', json=number)).status_code == 204
    seen: list[Any] = []
    after = None
    while True:
        query = {"prefix": '["p"]', "limit": "2", **({"after": json.dumps(after)} if after else {})}
        page = (await market.client.get(lines, params=query)).json()
        seen += [(tuple(pair["key"]), pair["value"]) for pair in page["pairs"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [(("p", n), n) for n in range(5)]
    listed = await market.client.get(lines, headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["value"] for line in listed.text.splitlines()] == [0, 1, 2, 3, 4]
    for prefix, values in (('["p"]', [0, 1, 2, 3, 4]), ('["p", 3]', [3]), ('["q"]', [])):
        some = await market.client.get(lines, params={"prefix": prefix}, headers={"accept": "application/x-ndjson"})
        assert [json.loads(line)["value"] for line in some.text.splitlines()] == values, prefix
    for name, value in (("limit", "2"), ("after", '["p",1]'), ("prefix", "p")):
        refused = await market.client.get(lines, params={name: value}, headers={"accept": "application/x-ndjson"})
        assert (refused.status_code, refused.json()["name"]) == (400, name), "it was ignored, and all pairs were sent"
    assert (await market.client.get("/keyspaces/accounts/counts/lines")).json() == {"count": 5}
    await market.client.put(f"{STATE}/found", json={"owner": "zoe"})
    found = await market.client.get("/keyspaces/accounts/indexes/balances/owner", params={"value": '"zoe"'})
    deep = await market.client.get("/keyspaces/accounts/indexes/balances/owner", params={"value": "[" * 5_000})
    assert deep.status_code == 400
    assert [pair["key"] for pair in found.json()["pairs"]] == ["found"]
    assert (await market.client.get(lines)).status_code == 400
    assert (await market.client.get(lines, params={"prefix": "p"})).status_code == 400


async def test_messages_reach_their_handlers(market: Market) -> None:
    """G1: a reply is JSON; what the handler raises has the status of its kind, and shows no internals."""
    path = "/keyspaces/accounts/messages/Deposit"
    reply = await market.client.post(path, json={"id": "msg", "amount": 5})
    assert reply.json() == {"type": "Account", "data": {"owner": "ann", "balance": 5}}
    refused = await market.client.post(path, json={"id": "msg", "amount": -1})
    assert (refused.status_code, refused.json()["detail"]) == (400, "an amount is not negative")
    failed = await market.client.post(path, json={"id": "msg", "amount": 0})
    assert failed.status_code == 500
    assert "db-7" not in failed.text
    assert (await market.client.post(path, json={"id": "msg"})).status_code == 400
    assert (await market.client.post(path, json=[])).status_code == 400
    counted = (await market.client.post("/keyspaces/accounts/messages/CountAccounts", json={})).json()
    assert sum(counted["replies"].values()) >= 1
    assert counted["failed"] == []


async def test_a_repeated_message_is_handled_once(market: Market) -> None:
    """G14: an Idempotency-Key makes a message safe to repeat; the same key with another body is 422."""
    path, key = "/keyspaces/accounts/messages/Deposit", {"idempotency-key": "m-1"}
    body = {"id": "once", "amount": 5}
    answers = [await market.client.post(path, json=body, headers=key) for _ in range(3)]
    assert [each.json()["data"]["balance"] for each in answers] == [5, 5, 5]
    assert (await market.client.post(path, json={**body, "amount": 6}, headers=key)).status_code == 422
    assert (await market.client.get(f"{STATE}/once")).json()["data"]["balance"] == 5


async def test_commands_reach_their_aggregate(market: Market) -> None:
    """G1, G4: a command's events, state and version; a rejection is 409 with its code; a bug shows no internals."""
    path, pay = "/engines/purses/p1", "/engines/purses/p1/commands/Pay"
    assert (await market.client.get(path)).status_code == 404
    done = (await market.client.post(pay, json={"coins": 3})).json()
    assert (done["version"], done["state"], done["events"]) == (
        1,
        {"coins": 3},
        [{"type": "Paid", "data": {"coins": 3}}],
    )
    read = await market.client.get(path)
    assert (read.json()["state"], read.headers["etag"]) == ({"coins": 3}, '"1"')
    rejected = await market.client.post(pay, json={"coins": -1})
    assert (rejected.status_code, rejected.json()["code"], rejected.json()["details"]) == (
        409,
        "negative",
        {"coins": -1},
    )
    failed = await market.client.post(pay, json={"coins": 0})
    assert failed.status_code == 500
    assert "db-7" not in failed.text
    assert (await market.client.post(pay, json={"coins": 1}, headers={"if-match": '"7"'})).status_code == 412
    assert (await market.client.post(pay, json={"coins": 1}, headers={"if-match": '"1"'})).status_code == 200
    for body in ({}, {"coins": "x"}, [], 1):
        assert (await market.client.post(pay, json=body)).status_code == 400
    assert (await market.client.post("/engines/purses/p1/commands/Fly", json={})).status_code == 404
    assert (await market.client.get("/engines/none/p1")).status_code == 404
    assert (await market.client.get("/engines")).json() == {"engines": [{"name": "purses", "commands": ["Pay"]}]}


async def test_a_repeated_command_is_done_once(market: Market) -> None:
    """G14: Idempotency-Key is the command's id; the same key with another body is 422."""
    pay, key = "/engines/purses/p2/commands/Pay", {"idempotency-key": "c-1"}
    first, again = [(await market.client.post(pay, json={"coins": 2}, headers=key)).json() for _ in range(2)]
    assert (first["version"], first["is_repeated"], again["version"], again["is_repeated"]) == (1, False, 1, True)
    assert (await market.client.post(pay, json={"coins": 5}, headers=key)).status_code == 422
    assert (await market.client.get("/engines/purses/p2")).json()["state"] == {"coins": 2}


async def test_keyspaces_need_grants_of_their_own(market: Market) -> None:
    """G10: reading, writing and sending messages are three permissions; the list shows what may be read."""
    async with market.with_settings(signatures=SECRETS, grants={"anonymous": ["read keyspace/acc*"]}) as reader:
        assert (await reader.get(f"{STATE}/grants")).status_code == 404
        assert (await reader.put(f"{STATE}/grants", json={"owner": "a"})).status_code == 401
        message = await reader.post("/keyspaces/accounts/messages/Deposit", json={"id": "grants", "amount": 1})
        assert message.status_code == 401
        assert [each["name"] for each in (await reader.get("/keyspaces")).json()["keyspaces"]] == ["accounts"]
    async with market.with_settings(signatures=SECRETS) as nobody:
        assert (await nobody.get("/keyspaces")).json() == {"keyspaces": []}
    assert (await market.client.get("/hello")).text == "hello"


async def test_a_socket_shows_the_value_and_each_change(market: Market) -> None:
    """G5: an empty frame without a value, then each change as framed Avro; an empty frame again when it is deleted."""
    async with market.socket("s1") as socket:
        assert await received(socket) == b""
        await market.accounts.put("balances", "s1", Account("ann", 1))
        frame = await received(socket)
        assert frame[0] == 0
        schema = await market.hr.registry.schema(schema_id_of(frame))
        assert GenericCodec(schema).to_json(GenericCodec(schema).decode(frame, start=5))["data"]["balance"] == 1
        await market.accounts.delete("balances", "s1")
        assert await received(socket) == b""
    async with market.socket("s1", subprotocols=["headrace.json"]) as socket:
        assert await received(socket) == "{}"
        await market.accounts.put("balances", "s1", Account("ann", 2))
        assert json.loads(await received(socket)) == {"type": "Account", "data": {"owner": "ann", "balance": 2}}


async def test_a_socket_tells_schemas_by_id_and_by_name(market: Market) -> None:
    """G5: byte 123 and an id, or a type's name as text: 123, the id, the schema; also of messages."""
    async with market.socket("s2") as socket:
        await received(socket)
        for name, kind in (("Account", Account), ("Deposit", Deposit)):
            await socket.send(name)
            frame = await received(socket)
            schema_id = int.from_bytes(frame[1:5], "big")
            assert (frame[0], Schema(frame[5:].decode())) == (123, schema_of(kind))
            await socket.send(frame[:5])
            assert await received(socket) == frame
            assert frame == schema_frame(schema_id, schema_of(kind).text)


async def test_a_message_on_a_socket_is_for_its_key(market: Market) -> None:
    """G5: framed Avro, or JSON, is a message to the key; its effect comes back as a change."""
    subject = "accounts.Deposit-value"
    version = (await market.hr.registry.versions(subject))[-1]
    sent = GenericCodec(version.schema).encode({"id": "s3", "amount": 4}, prefix=frame_header(version.schema_id))
    async with market.socket("s3", subprotocols=["headrace.json"]) as socket:
        await received(socket)
        await socket.send(sent)
        assert json.loads(await received(socket))["data"]["balance"] == 4
        await socket.send(json.dumps({"type": "Deposit", "data": {"id": "s3", "amount": 3}}))
        assert json.loads(await received(socket))["data"]["balance"] == 7
        await socket.send(json.dumps({"type": "Deposit", "data": {"id": "other", "amount": 3}}))
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await received(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4400


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x05abc", 4400),
        (b"", 4400),
        (b"\x7b\0\0\x99\0", 4404),
        (b"\0\0\0\x99\0x", 4404),
        ("NoSuchType", 4404),
        ("{", 4400),
        (b"\0" * (1 << 21), 1009),
    ],
)
async def test_a_malformed_frame_closes_its_socket_only(market: Market, frame: Any, code: int) -> None:
    """G11: what is not understood, or too large, closes the socket with a code; others go on."""
    async with market.socket("s4") as bystander, market.socket("s4") as socket:
        await received(bystander)
        await received(socket)
        await socket.send(frame)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await received(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code
        await bystander.send("Account")
        assert (await received(bystander))[0] == 123


async def test_several_versions_may_be_named(market: Market) -> None:
    """G1: If-None-Match and If-Match take lists, weak ETags and *, as caches and proxies send them."""
    path, account = f"{STATE}/etags", {"owner": "ann", "balance": 1}
    await market.client.put(path, json=account)
    tag = (await market.client.get(path)).headers["etag"]
    for sent, status in (
        (tag, 304),
        (f'"0", {tag}', 304),
        (f"W/{tag}", 304),
        ("*", 304),
        ('"0", W/"x"', 200),
        ("0", 200),
    ):
        answer = await market.client.get(path, headers={"if-none-match": sent})
        assert (answer.status_code, answer.headers["vary"]) == (status, "accept"), sent
    for sent, status in (('"0", "1000000"', 412), (f"W/{tag}", 412), ('"x"', 412), ("x", 400), (f'"0", {tag}', 204)):
        answer = await market.client.put(path, json=account, headers={"if-match": sent})
        assert answer.status_code == status, sent
    both = [("if-match", '"0"'), ("if-match", (await market.client.get(path)).headers["etag"])]
    assert (await market.client.put(path, json=account, headers=both)).status_code == 204


async def test_any_version_fits_whoever_writes_beside(market: Market) -> None:
    """G1: If-Match: * needs a value, not its version, so a writer beside is no reason for 412."""
    path, account = f"{STATE}/busy", {"owner": "ann", "balance": 1}
    await market.client.put(path, json=account)
    puts = [market.client.put(path, json=account, headers={"if-match": "*"}) for _ in range(5)]
    assert {each.status_code for each in await asyncio.gather(*puts)} == {204}


async def test_an_aggregate_is_not_sent_twice(market: Market) -> None:
    """G4: the version that the caller has is answered with 304."""
    await market.client.post("/engines/purses/etags/commands/Pay", json={"coins": 1})
    tag = (await market.client.get("/engines/purses/etags")).headers["etag"]
    assert (await market.client.get("/engines/purses/etags", headers={"if-none-match": tag})).status_code == 304


async def test_a_message_to_all_partitions_has_no_key(market: Market) -> None:
    """G14: what can't be made safe to repeat is refused, not ignored."""
    path, headers = "/keyspaces/accounts/messages/CountAccounts", {"idempotency-key": "k"}
    assert (await market.client.post(path, json={})).status_code == 200
    assert (await market.client.post(path, json={}, headers=headers)).status_code == 400


async def test_many_keys_on_one_socket(market: Market) -> None:
    """G6: subscribe and unsubscribe; each push carries the offset, from which a new socket gets what it missed."""

    def subscribe(number: int, key: str, **more: Any) -> str:
        return json.dumps(
            {"op": "subscribe", "id": number, "keyspace": "accounts", "state": "balances", "key": key, **more}
        )

    async with market.many() as socket:
        await socket.send(subscribe(1, "m1"))
        first = json.loads(await received(socket))
        assert (first["op"], first["id"], first["value"], first["is_present"]) == ("value", 1, None, True)
        await market.accounts.put("balances", "m1", Account("ann", 1))
        change = json.loads(await received(socket))
        assert change["value"]["data"]["balance"] == 1
        await socket.send(subscribe(2, "m2", format="avro"))
        pushed = await received(socket)
        assert pushed[:6] == b"\x01\0\0\0\x02\x06"
        await socket.send(json.dumps({"op": "unsubscribe", "id": 1}))
        assert json.loads(await received(socket)) == {"op": "unsubscribed", "id": 1}
        await market.accounts.put("balances", "m1", Account("ann", 2))
        await market.accounts.put("balances", "m1", Account("ann", 3))
        for wrong in (subscribe(2, "m1"), subscribe(-1, "m1"), subscribe(3, "m1", state="x")):
            await socket.send(wrong)
            assert json.loads(await received(socket))["op"] == "problem"
    async with market.many() as socket:
        await socket.send(subscribe(1, "m1", after=change["offset"]))
        missed = [json.loads(await received(socket)) for _ in range(2)]
        assert [each["value"]["data"]["balance"] for each in missed] == [2, 3]
        await socket.send(subscribe(2, "m1", after="another-topic:7"))
        lagged = json.loads(await received(socket))
        assert (lagged["op"], lagged["value"]["data"]["balance"]) == ("lagged", 3)


async def test_sockets_are_refused_before_they_open(market: Market) -> None:
    """G10: a wrong origin, a keyspace that is not there, a sub-protocol that is not spoken."""
    for opening in (
        market.socket("a", origin="https://evil.example"),
        websockets.connect(f"{market.url.replace('http', 'ws')}/keyspaces/x/states/y/z"),
        websockets.connect(f"{market.url.replace('http', 'ws')}/socket"),
    ):
        with pytest.raises(websockets.InvalidStatus):
            await opening
    for query in ("afetr=1", "after=1&after=2", "after=%ff"):  # a misspelt name was ignored: it seemed to have resumed
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(f"{market.url.replace('http', 'ws')}{STATE}/a?{query}")
        assert refused.value.response.status_code == 400, query


def change_of(number: int) -> StateChange[str, int]:
    return StateChange("k", number, number, f"t:{number}")


async def next_of(queue: PushQueue) -> tuple[int, StateChange[Any, Any]]:
    await queue.wait()
    taken = queue.take()
    assert taken is not None
    return taken


async def test_a_slow_client_gets_the_newest_value_and_is_told() -> None:
    """G7: too many waiting changes of a key become the newest one, marked as lagged; other keys wait for nothing."""
    queue = PushQueue(3)
    for number in range(10):
        queue.put(1, change_of(number))
    queue.put(2, change_of(0))
    got = [await next_of(queue) for _ in range(2)]
    assert [(number, change.value, change.is_lagged) for number, change in got] == [(1, 9, True), (2, 0, False)]
    for number in range(3):
        queue.put(1, change_of(number))
    queue.drop(1)
    queue.put(3, change_of(5))
    assert (await next_of(queue))[0] == 3


async def test_a_slow_client_is_closed_if_the_settings_say_so() -> None:
    """G7: with `close` a client that is too slow is closed, and connects again."""
    queue = PushQueue(1, is_closing=True)
    queue.put(1, change_of(1))
    queue.put(1, change_of(2))
    with pytest.raises(Busy):
        await next_of(queue)
