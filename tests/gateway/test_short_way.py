"""GETs of keys are answered a short way where nothing has to be waited for: the same answer as the long way gives.

The long way is forced by a header `Request-Timeout`, which means nothing else here. All requests go over a connection,
byte by byte as written: what the server remembers of the requests before must change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import pytest_asyncio
from tests.gateway.market import Account, Accounts
from tests.gateway.test_keyspaces import settings_in
from tests.gateway.test_server import refused

from headrace.app import Headrace, connect
from headrace.cluster.owner import Owner
from headrace.gateway import GatewayRequest, GatewayRoute, RouteAnswer, RunningGateway, server, serving
from headrace.gateway.plain_reads import PlainReads
from headrace.gateway.suspension import Suspension
from headrace.testing.conformance.log_setting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATES = "/keyspaces/accounts/states"
KEYS = [
    "a",
    "a/b",
    "a b",
    "ü",
    "日本",
    "%",
    "a%2Fb",
    "%25",
    "a\x00b",
    "a?b",
    "a#b",
    "x" * 300,
    ".",
    "..",
    "~",
    "a:b;c,d=e&f+g",
]
PATHS = [
    *(f"{STATES}/balances/{quote(key, safe='')}" for key in KEYS),
    f"{STATES}/balances/%61",  # the same key in another way
    f"{STATES}/balances/a/",
    f"/{STATES}/balances/a",
    f"{STATES}/balances//a",
    f"{STATES}/balances/",
    f"{STATES}/balances/%FF",  # no UTF-8
    f"{STATES}/balances/%ff%00",
    f"{STATES}/balances/%zz",
    f"{STATES}/balances/%",
    f"{STATES}/balances/a%",
    f"{STATES}/balances/none",
    f"{STATES}/balances/" + quote("\0hr.owner"),
    f"{STATES}/balances/" + "k" * 5000,
    f"{STATES}/nothing/a",
    "/keyspaces/nothing/states/balances/a",
    "/Keyspaces/accounts/states/balances/a",
    f"{STATES}/balances/a?",
    f"{STATES}/balances/a?max_staleness_s=60",
    f"{STATES}/balances/a?max_staleness_s=never",
    f"{STATES}/balances/a?wrong=1",
    f"{STATES}/balances/a#part",
    f"{STATES}/notes/7",
    f"{STATES}/notes/07",
    f"{STATES}/notes/seven",
    f"{STATES}/lines/" + quote('["a",1]'),
    f"{STATES}/lines/" + quote('["a", 1]'),
    f"{STATES}/lines/" + quote('["a"]'),
    "http://localhost" + f"{STATES}/balances/a",
]
HEADERS = [
    "Accept: application/json",
    "Accept: */*",
    "Accept: avro/binary",
    "Accept: avro/binary;q=0.5, application/json;q=0.4",
    "Accept: application/json;q=0, */*;q=0.1",
    "Accept: application/*;q=0.2, avro/binary;q=0.1",
    "Accept: text/html",
    "Accept: application/json;q=0",
    "Accept:",
    "If-None-Match: {etag}",
    "If-None-Match: W/{etag}",
    'If-None-Match: "1", {etag}',
    'If-None-Match: "nothing"',
    "If-None-Match: *",
    "If-None-Match: 7",
    "If-None-Match:",
    "If-Match: {etag}",
    'If-Match: "no"',
    "If-Modified-Since: Wed, 21 Oct 2015 07:28:00 GMT",
    "Range: bytes=0-3",
    "Origin: http://localhost",
    "Origin: http://shop.example",
    "Origin: http://evil.example",
    "Origin: null",
    "X-Request-ID: mine",
    "X-Request-ID: not plain",
    "Headrace-Token: {token}",
    "Headrace-Token: garbage",
    "Authorization: Bearer abc",
    "Signature-Input: sig",
    "Content-Length: 0",
    "Content-Encoding: gzip",
    "Content-Type: application/json",
    "Connection: keep-alive",
    "Connection: close",
    "Keep-Alive: timeout=5",
    "Expect: 100-continue",
    "Cookie: a=b",
    "User-Agent: test/1.0",
    "Cache-Control: max-age=0",
    "X-Latin: \xe9",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
]
HOSTS = [
    "Host: localhost",
    "host: LOCALHOST:80",
    "Host: evil.example",
    "Host: localhost\r\nHost: localhost",
    "Host: [",
    "",
]
METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PATCH", "get", "FOO"]
CHANGING = {"date", "x-request-id"}


class Answer(NamedTuple):
    status: str
    headers: list[tuple[str, str]]
    body: str


class Served(NamedTuple):
    hr: Headrace
    running: RunningGateway
    facts: dict[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    settings = settings_in(f"embedded:{tmp_path_factory.mktemp('short')}", origins=["http://shop.example"])
    async with connect(settings=settings) as hr, hr.node(Accounts):
        accounts = hr.keyspace(Accounts)
        for key in KEYS:
            await accounts.put("balances", key, Account("ann", len(key)))
        await accounts.put("notes", 7, "seven")
        await accounts.put("lines", ("a", 1), 11)
        async with serving(hr.gateway(Accounts), settings.gateway) as running:
            answer = await asked(running, [request("GET", PATHS[0])])
            found = dict(answer[0].headers)
            yield Served(hr, running, {"etag": found["etag"], "token": found["headrace-token"]})


def request(method: str, path: str, *headers: str, host: str = HOSTS[0], version: str = "HTTP/1.1") -> bytes:
    lines = [f"{method} {path} {version}", *([host] if host else []), *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def long_way(sent: bytes) -> bytes:
    return sent[:-2] + b"Request-Timeout: 30\r\n\r\n"


@asynccontextmanager
async def connected(running: RunningGateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def next_answer(reader: asyncio.StreamReader, *, is_head: bool) -> Answer | None:
    """Return the next answer; None if the connection has ended."""
    async with asyncio.timeout(20):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        status, *lines = head[:-4].split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        given = dict(headers)
        size = 0 if is_head or " 304 " in status else int(given.get("content-length", 0))
        assert "transfer-encoding" not in given
        body = (await reader.readexactly(size)).decode("latin-1")
    if given.get("content-type") == "application/problem+json":
        body = body.replace(given.get("x-request-id", "-"), "ID")
    kept = [(name, value) for name, value in headers if name not in CHANGING or value == "mine"]
    return Answer(status, kept, body)


async def asked(running: RunningGateway, requests: Iterable[bytes], *, is_together: bool = False) -> list[Answer]:
    """Return the answers to requests of one connection, one after the other, or all sent together."""
    found: list[Answer] = []
    async with connected(running) as (reader, writer):
        requests = list(requests)
        if is_together:
            writer.write(b"".join(requests))
        for sent in requests:
            if not is_together:
                writer.write(sent)
            answer = await next_answer(reader, is_head=sent.startswith(b"HEAD"))
            if answer is None:
                break
            found.append(answer)
    return found


async def check(served: Served, sent: bytes) -> None:
    """Check that a request is answered the same way when it is new, when it is known, and the long way."""
    long = await asked(served.running, [long_way(sent)])
    twice = await asked(served.running, [sent, sent])
    assert long, sent
    assert twice[0] == long[0], sent
    assert twice[-1] == long[0], sent
    is_closed = any(each == ("connection", "close") for each in long[0].headers) or b"\r\nConnection: close" in sent
    assert is_closed or b"HTTP/1.0" in sent or len(twice) == 2, sent


def filled(served: Served, *headers: str) -> list[str]:
    return [each.format(**served.facts) for each in headers]


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
async def test_every_key_is_answered_as_the_long_way_does(served: Served, path: str) -> None:
    """G1: whatever stands in a path, and with every method and host, both ways give the same answer."""
    await check(served, request("GET", path))
    for method in METHODS:
        await check(served, request(method, path))


async def test_every_header_means_the_same_on_both_ways(served: Served) -> None:
    """G1: conditions, forms, origins, tokens and credentials are answered the same, alone and in pairs."""
    for header in HEADERS:
        for method in ("GET", "HEAD", "OPTIONS", "FOO"):
            await check(served, request(method, PATHS[0], *filled(served, header)))
        await check(served, request("GET", PATHS[0], *filled(served, header), version="HTTP/1.0"))
        await check(served, request("GET", f"{STATES}/notes/7", *filled(served, header)))
    for host in HOSTS:
        for method in METHODS:
            await check(served, request(method, PATHS[0], host=host))
    drawn = random.Random(7)
    pairs = list(itertools.permutations(HEADERS, 2))
    for pair in drawn.sample(pairs, 120):
        await check(served, request("GET", PATHS[0], *filled(served, *pair)))
    for _ in range(100):
        headers = filled(served, *drawn.sample(HEADERS, drawn.randrange(6)))
        sent = request(drawn.choice(METHODS), drawn.choice(PATHS), *headers, host=drawn.choice(HOSTS))
        await check(served, sent)


async def test_requests_that_come_together_or_in_pieces_are_answered_in_order(served: Served) -> None:
    """G1: known requests, pipelined with others or cut anywhere, get their answers in order, and no other's."""
    known, other = request("GET", PATHS[0]), request("GET", PATHS[1])
    slow, absent = long_way(request("GET", PATHS[2])), request("GET", f"{STATES}/balances/none")
    alone = {each: (await asked(served.running, [each]))[0] for each in (known, other, slow, absent)}
    for order in itertools.permutations([known, other, slow, absent, known], 4):
        found = await asked(served.running, order, is_together=True)
        assert found == [alone[each] for each in order]
    async with connected(served.running) as (reader, writer):
        for cut in range(1, len(known)):
            writer.write(known[:cut])
            await asyncio.sleep(0)
            writer.write(known[cut:] + other)
            assert await next_answer(reader, is_head=False) == alone[known]
            assert await next_answer(reader, is_head=False) == alone[other]


async def test_a_known_request_shows_each_write_at_once(served: Served) -> None:
    """G1: what is remembered of requests is never what their answers were; deleted values and new ones are seen."""
    accounts: Any = served.hr.keyspace(Accounts)
    sent = request("GET", f"{STATES}/balances/changing")
    seen: list[str] = []
    async with connected(served.running) as (reader, writer):
        for number in range(20):
            if number % 5 == 4:
                await accounts.delete("balances", "changing")
            else:
                await accounts.put("balances", "changing", Account("ann", number))
            writer.write(sent)
            answer = await next_answer(reader, is_head=False)
            assert answer is not None
            seen.append(answer.status.split()[1] if number % 5 == 4 else answer.body)
    expected = [f'{{"type":"Account","data":{{"owner":"ann","balance":{each}}}}}' for each in range(20)]
    assert seen == ["404" if number % 5 == 4 else expected[number] for number in range(20)]


class Spied:
    """Counts what was answered without a parser."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answered = 0
        answer = PlainReads.answer

        def spy(reads: PlainReads, *args: Any) -> bytes | None:
            found = answer(reads, *args)
            self.answered += found is not None
            return found

        patch.setattr(PlainReads, "answer", spy)


@asynccontextmanager
async def serving_also(served: Served, **gateway: Any) -> AsyncIterator[RunningGateway]:
    before = served.hr.settings
    served.hr.settings = settings_in(before.log.address, **gateway)
    try:
        app, settings = served.hr.gateway(Accounts), served.hr.settings.gateway
    finally:
        served.hr.settings = before
    async with serving(app, settings) as running:
        yield running


async def test_a_known_request_is_not_parsed_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way is taken by what may take it: other keys and states with the same headers, and conditions."""
    spied = Spied(monkeypatch)
    mine = "X-Of-This-Test: 1"
    sent = [request("GET", path, mine) for path in (*PATHS[:3], f"{STATES}/notes/7", f"{STATES}/balances/none")]
    condition = request("GET", PATHS[0], mine, f"If-None-Match: {served.facts['etag']}")

    async def are_known() -> bool:
        """Return True if all went the short way; a lease that has to be renewed makes some go the long one."""
        before = spied.answered
        statuses = [each.status.split()[1] for each in await asked(served.running, [*sent, condition])]
        assert statuses == ["200"] * 4 + ["404", "304"]
        return spied.answered - before == 5

    assert not await are_known()  # those that are new are parsed
    await eventually(are_known)


async def test_a_route_of_the_application_comes_first(served: Served) -> None:
    """G1: a route with a fixed name where that of keys has a parameter is asked, whatever is known of requests."""

    async def handler(_: GatewayRequest) -> object:
        return {"own": True}

    route = GatewayRoute("GET", PATHS[0], handler, "Own.", "Own", RouteAnswer("Done."))
    app = served.hr.gateway(Accounts, routes=[route])
    async with serving(app, served.hr.settings.gateway) as running:
        found = await asked(running, [request("GET", path) for path in (PATHS[1], PATHS[0], PATHS[0])])
    assert ['"own":true' in each.body for each in found] == [False, True, True]


async def test_known_requests_count_and_need_permission(served: Served) -> None:
    """G10: a known request uses up its sender's rate, each once, and one without a grant is refused as any other."""
    sent = request("GET", PATHS[0])
    async with serving_also(served, requests_per_s=0.01, burst=3) as running:
        before = refused("rate")
        found = await asked(running, [sent] * 5)
        assert [each.status.split()[1] for each in found] == ["200"] * 3 + ["429"] * 2
        assert refused("rate") == before + 2
    async with serving_also(served, signatures={"secrets": {"k": "A" * 44}}) as running:
        assert [each.status.split()[1] for each in await asked(running, [sent] * 3)] == ["401"] * 3
    grants = {"anonymous": ["read keyspace/acc*"]}
    async with serving_also(served, signatures={"secrets": {"k": "A" * 44}}, grants=grants) as running:
        assert [each.status.split()[1] for each in await asked(running, [sent] * 3)] == ["200"] * 3


async def test_a_known_request_waits_where_any_other_would(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: an owner that may not serve now shows nothing, and missing partitions are waited for, or told."""
    sent = request("GET", PATHS[0])
    async with serving_also(served) as running, connected(running) as (reader, writer):
        writer.write(sent)
        first = await next_answer(reader, is_head=False)
        with monkeypatch.context() as patch:
            patch.setattr(Owner, "may_serve", lambda owner: False)
            writer.write(sent)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await reader.readexactly(1)
        assert await next_answer(reader, is_head=False) == first
    async with serving_also(served, missing_partitions="refuse") as running, connected(running) as (reader, writer):
        writer.write(sent)
        assert await next_answer(reader, is_head=False) == first
        monkeypatch.setattr(Suspension, "_missing", lambda suspension: {"accounts": [0]})
        writer.write(sent)
        answer = await next_answer(reader, is_head=False)
        assert answer is not None
        assert " 503 " in answer.status


async def test_a_connection_of_known_requests_is_kept_while_it_is_used(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G11: a connection is closed some time after its last request, not its first; half a head is not waited for."""
    monkeypatch.setattr(server, "_KEEP_ALIVE_S", 1.0)
    sent = request("GET", PATHS[0])
    async with serving_also(served) as running, connected(running) as (reader, writer):
        for _ in range(4):
            writer.write(sent)
            assert await next_answer(reader, is_head=False) is not None
            await asyncio.sleep(0.35)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
    async with serving_also(served, header_timeout_s=0.6) as running, connected(running) as (reader, writer):
        for _ in range(2):
            writer.write(sent)
            assert await next_answer(reader, is_head=False) is not None
        writer.write(sent[:-3])
        late = await next_answer(reader, is_head=False)
        assert late is not None
        assert " 408 " in late.status


async def test_a_client_that_takes_no_answers_is_cut(served: Served) -> None:
    """G11: answers to known requests do not pile up for a client that does not read them."""
    sent = request("GET", f"{STATES}/balances/large")
    await served.hr.keyspace(Accounts).put("balances", "large", Account("x" * 200_000, 1))
    async with serving_also(served, slow_client_s=0.3) as running, connected(running) as (reader, writer):
        before = refused("slow_client")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(sent)
                await asyncio.sleep(0.005)

        async def is_cut() -> bool:
            return refused("slow_client") > before

        await eventually(is_cut)
        assert not reader.at_eof()
