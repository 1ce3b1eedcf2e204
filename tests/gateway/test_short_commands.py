"""Commands go a short way where their headers are known: the same answers and effects as the long way has.

The long way is forced by a header `Request-Timeout`, which means nothing else here. All requests go over a connection,
byte by byte as written: what the server remembers of the requests before must change nothing.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from tests.gateway.test_keyspaces import settings_in
from tests.gateway.test_server import refused
from tests.gateway.test_short_way import HOSTS, Answer, asked, connected, next_answer

from headrace.app import Headrace, connect
from headrace.engine import CommandContext, Engine, Reject
from headrace.gateway import GatewayRequest, GatewayRoute, RouteAnswer, RunningGateway, serving
from headrace.gateway.metrics import IN_FLIGHT
from headrace.gateway.plain_commands import PlainCommands
from headrace.gateway.suspension import Suspension
from headrace.testing.conformance.log_setting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = "/engines/short-notes"
BODY = '{"text":"a"}'
GATES: list[asyncio.Event] = []
STARTED: list[str] = []


@dataclass(frozen=True)
class Notes:
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Look:
    text: str = ""


@dataclass(frozen=True)
class Refuse:
    text: str


@dataclass(frozen=True)
class Break:
    text: str


@dataclass(frozen=True)
class Write:
    text: str


@dataclass(frozen=True)
class Wait:
    text: str


class Pair(NamedTuple):
    text: str


@dataclass(frozen=True)
class Written:
    text: str


notes: Engine[Notes] = Engine("short-notes", state=Notes, partitions=1)


@notes.command
def look(state: Notes | None, command: Look, context: CommandContext[Notes]) -> None:
    context.reply({"text": command.text, "known": state is not None})


@notes.command
def refuse(state: Notes | None, command: Refuse) -> Reject:
    return Reject("no", f"not {command.text}", {"text": command.text})


@notes.command
def fail(state: Notes | None, command: Break) -> None:
    raise ValueError(command.text)


@notes.command
def write(state: Notes | None, command: Write) -> Written:
    return Written(command.text)


@notes.command
def pair(state: Notes | None, command: Pair) -> None:
    return None


@notes.command
async def wait(state: Notes | None, command: Wait) -> None:
    STARTED.append(command.text)
    await GATES[-1].wait()


@notes.event
def written(state: Notes | None, event: Written) -> Notes:
    return Notes(((*state.texts, event.text) if state else (event.text,))[-3:])


PATHS = [
    *(f"{ENGINE}/a/commands/{name}" for name in ("Look", "Refuse", "Break", "Write", "Nothing", "look", "")),
    *(f"{ENGINE}/{id_}/commands/Look" for id_ in ("a%2Fb", "%C3%BC", "%FF", "%zz", "", "%00hr.x", "k" * 5000, "~:@")),
    f"{ENGINE}/a/commands/Look/",
    f"/{ENGINE}/a/commands/Look",
    f"{ENGINE}/a/commands/Look?",
    f"{ENGINE}/a/commands/Look?since=1:1",
    f"{ENGINE}/a/commands/Look?wrong=1",
    f"{ENGINE}/a/command/Look",
    "/engines/none/a/commands/Look",
    "/engines/short%2Dnotes/a/commands/Look",
    f"{ENGINE}/a",
]
BODIES = [
    BODY,
    "{}",
    "",
    "[]",
    '["a"]',
    "null",
    '{"text":1}',
    '{"text":"a","more":[1,2]}',
    '{"text":"\xfc"}',
    '{"text":"a"',
    '{"text":"a"}}',
    ' {"text": "a"} \n',
    '{"text":"a","text":"b"}',
    '{"text":"' + "x" * 70_000 + '"}',
    '{"text":' + "[" * 3000 + "]" * 3000 + "}",
]
HEADERS = [
    "Content-Type: application/json",
    "content-type: Application/JSON; charset=utf-8",
    "Content-Type: application/vnd.x+json",
    "Content-Type: text/plain",
    "Content-Type:",
    "Content-Type: application/json\r\nContent-Type: text/plain",
    "Idempotency-Key: k1",
    "Idempotency-Key: ",
    "idempotency-key: K1~!",
    "Idempotency-Key: a b",
    "Idempotency-Key: " + "k" * 255,
    "Idempotency-Key: " + "k" * 256,
    "Idempotency-Key: k1\r\nIdempotency-Key: k2",
    "Content-Length: 12",
    'If-Match: "0"',
    'If-Match: "7"',
    "If-Match: 7",
    "Origin: http://localhost",
    "Origin: http://shop.example",
    "Origin: http://evil.example",
    "X-Request-ID: mine",
    "Headrace-Token: garbage",
    "Authorization: Bearer abc",
    "Signature-Input: sig",
    "Content-Encoding: gzip",
    "Connection: keep-alive",
    "Connection: close",
    "Accept: text/html",
    "Cookie: a=b",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Content-Length: 3",
]


class Served(NamedTuple):
    hr: Headrace
    running: RunningGateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    settings = settings_in(f"embedded:{tmp_path_factory.mktemp('short')}", origins=["http://shop.example"])
    async with (
        connect(settings=settings) as hr,
        hr.node(notes),
        serving(hr.gateway(notes), settings.gateway) as running,
    ):
        yield Served(hr, running)


@asynccontextmanager
async def serving_also(served: Served, **gateway: Any) -> AsyncIterator[RunningGateway]:
    before = served.hr.settings
    served.hr.settings = settings_in(before.log.address, **gateway)
    try:
        app, settings = served.hr.gateway(notes), served.hr.settings.gateway
    finally:
        served.hr.settings = before
    async with serving(app, settings) as running:
        yield running


def post(path: str, *headers: str, body: str = BODY, method: str = "POST", host: str = HOSTS[0]) -> bytes:
    data = body.encode()
    lines = [f"{method} {path} HTTP/1.1", *([host] if host else []), *headers, f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def long_way(sent: bytes) -> bytes:
    return sent.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nRequest-Timeout: 30\r\n", 1)


def masked(answer: Answer) -> Answer:
    """Return an answer without what each command changes: numbers of versions and batches, and the token."""
    headers = [(name, "…" if name == "headrace-token" else value) for name, value in answer.headers]
    if " 200 " in answer.status:
        headers = [(name, "…" if name == "content-length" else value) for name, value in headers]
    return Answer(answer.status, headers, re.sub(r'"(version|since)":("[^"]*"|\d+)', r'"\1":…', answer.body))


async def check(served: Served, sent: bytes) -> None:
    """Check that a command is answered the same way when it is new, when it is known, and the long way."""
    for _ in range(4 if b"/Write " in sent or b"dempotency" in sent else 1):  # until it changes nothing any more
        long = await asked(served.running, [long_way(sent)])
    found = await asked(served.running, [sent, sent, sent])
    assert long, sent[:300]
    expected = masked(long[0])
    for each in found:
        assert masked(each) == expected, sent[:300]
    is_closed = ("connection", "close") in long[0].headers or b"\r\nConnection: close" in sent
    assert is_closed or len(found) == 3, sent[:300]


async def test_every_command_is_answered_as_the_long_way_does(served: Served) -> None:
    """G1: results, rejections, failures and whatever is wrong with a path or a body look the same on both ways."""
    for path in PATHS:
        await check(served, post(path))
    for body in BODIES:
        for name in ("Look", "Refuse", "Write", "Pair"):
            await check(served, post(f"{ENGINE}/a/commands/{name}", body=body))


async def test_every_header_means_the_same_on_both_ways(served: Served) -> None:
    """G1: media types, keys, conditions, origins, hosts and credentials are answered the same, alone and together."""
    drawn = random.Random(7)
    for header in HEADERS:
        await check(served, post(PATHS[0], header))
    for host in HOSTS:
        await check(served, post(PATHS[0], host=host))
    for method in ("PUT", "GET", "post", "DELETE"):
        await check(served, post(PATHS[0], method=method))
    for _ in range(40):
        headers = drawn.sample(HEADERS, drawn.randrange(5))
        body = drawn.choice(BODIES[:8])
        await check(served, post(drawn.choice(PATHS), *headers, body=body, host=drawn.choice(HOSTS)))


class Spied:
    """Counts the commands that went the short way."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        begin = PlainCommands.begin

        def spy(commands: PlainCommands, *args: Any) -> Any:
            found = begin(commands, *args)
            self.begun += found is not None
            return found

        patch.setattr(PlainCommands, "begin", spy)


async def test_a_known_command_is_not_parsed_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way is taken for other aggregates, commands and lengths of the body, and each command is done once."""
    spied = Spied(monkeypatch)
    mine = "X-Of-This-Test: 1"
    texts = ["a" * n for n in range(1, 6)]
    sent = [post(f"{ENGINE}/once%2F{n}/commands/Write", mine, body=f'{{"text":"{t}"}}') for n, t in enumerate(texts)]
    answers = await asked(served.running, [*sent, post(PATHS[1], mine)])
    assert [each.status.split()[1] for each in answers] == ["200"] * 5 + ["409"]
    assert spied.begun == 5  # all but the first
    engine = served.hr.engine(notes)
    assert [await engine.aggregate(f"once/{n}").state() for n in range(5)] == [Notes((text,)) for text in texts]


async def test_a_known_command_with_an_id_is_done_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """C3: another id is another command, on the short way, too; the same one is not done again, whatever its way."""
    spied = Spied(monkeypatch)
    mine = "X-Of-This-Test: 2"
    sent = [post(f"{ENGINE}/ids/commands/Write", mine, f"Idempotency-Key: id-{n}") for n in range(4)]
    first = await asked(served.running, [post(f"{ENGINE}/ids/commands/Write", mine), *sent])
    assert spied.begun == 4
    again = await asked(served.running, [*sent, *map(long_way, sent)])
    assert ['is_repeated":true' in each.body for each in (*first, *again)] == [False] * 5 + [True] * 8
    assert (await served.hr.engine(notes).aggregate("ids").read()).version == 5


async def test_commands_that_come_together_or_in_pieces_are_answered_in_order(served: Served) -> None:
    """G1: known commands, pipelined with others or cut anywhere, get their answers in order, each done once."""
    known = post(f"{ENGINE}/pieces/commands/Write")
    await asked(served.running, [known])
    other = post(PATHS[1])
    found = await asked(served.running, [known, other, known, long_way(known), known], is_together=True)
    assert [each.status.split()[1] for each in found] == ["200", "409", "200", "200", "200"]
    async with connected(served.running) as (reader, writer):
        for cut in range(1, len(known), 3):
            writer.write(known[:cut])
            await asyncio.sleep(0)
            writer.write(known[cut:] + other)
            for status in (" 200 ", " 409 "):
                answer = await next_answer(reader, is_head=False)
                assert answer is not None
                assert status in answer.status
        writer.write(post(PATHS[0], body=BODY + "  ")[:-2])  # the body is JSON already, and not whole
        await asyncio.sleep(0.05)
        writer.write(b"  " + other)
        for status in (" 200 ", " 409 "):
            answer = await next_answer(reader, is_head=False)
            assert answer is not None
            assert status in answer.status
    read = await served.hr.engine(notes).aggregate("pieces").read()
    assert read.version == 5 + len(range(1, len(known), 3))


async def test_a_route_of_the_application_comes_first(served: Served) -> None:
    """G1: a route with a fixed name where that of commands has a parameter is asked, whatever is known of requests."""

    async def handler(request: GatewayRequest) -> object:
        return {"own": True}

    route = GatewayRoute("POST", f"{ENGINE}/own/commands/Look", handler, "Own.", "Own", RouteAnswer("Done."))
    app = served.hr.gateway(notes, routes=[route])
    async with serving(app, served.hr.settings.gateway) as running:
        found = await asked(running, [post(PATHS[0]), *[post(f"{ENGINE}/own/commands/Look")] * 2])
    assert ['"own":true' in each.body for each in found] == [False, True, True]


async def test_known_commands_count_and_need_permission(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """G10: rates, places, bodies, permissions and missing partitions hold for known commands as for any other."""
    sent = post(PATHS[0])

    async def statuses(count: int, **gateway: Any) -> list[str]:
        async with serving_also(served, **gateway) as running:
            return [(await asked(running, [sent]))[0].status.split()[1] for _ in range(count)]

    before = refused("rate")
    assert await statuses(5, requests_per_s=0.01, burst=3) == ["200"] * 3 + ["429"] * 2
    assert refused("rate") == before + 2
    secrets = {"secrets": {"k": "A" * 44}}
    assert await statuses(3, signatures=secrets) == ["401"] * 3
    assert await statuses(3, signatures=secrets, grants={"anonymous": ["read engine/*"]}) == ["401"] * 3
    assert await statuses(3, signatures=secrets, grants={"anonymous": ["command engine/short-*"]}) == ["200"] * 3
    assert await statuses(3, max_body_bytes=5) == ["413"] * 3
    async with serving_also(served, missing_partitions="refuse") as running, connected(running) as (reader, writer):
        for status in (" 200 ", " 503 "):
            writer.write(sent)
            answer = await next_answer(reader, is_head=False)
            assert answer is not None
            assert status in answer.status
            monkeypatch.setattr(Suspension, "_missing", lambda suspension: {"short-notes": [0]})


async def waiting(writer: asyncio.StreamWriter, text: str) -> None:
    """Send a command whose handler waits, and return when it does."""
    writer.write(post(f"{ENGINE}/wait-{text}/commands/Wait", body=f'{{"text":"{text}"}}'))

    async def has_started() -> bool:
        return text in STARTED

    await eventually(has_started)


async def test_a_known_command_holds_its_place_and_has_a_deadline(served: Served) -> None:
    """G10, G11: places are held until the answer, also if the client leaves; a late command is answered as unknown."""
    in_flight = IN_FLIGHT._value.get()
    GATES.append(asyncio.Event())
    async with serving_also(served, max_requests_in_flight=1) as running, connected(running) as (reader, writer):
        writer.write(post(PATHS[0]))
        assert await next_answer(reader, is_head=False) is not None
        await waiting(writer, "place")
        [busy] = await asked(running, [post(PATHS[0])])
        assert " 503 " in busy.status
        writer.transport.abort()
        GATES[-1].set()

        async def is_free() -> bool:
            return IN_FLIGHT._value.get() == in_flight

        await eventually(is_free)
    GATES.append(asyncio.Event())
    async with serving_also(served, request_timeout_s=0.3) as running, connected(running) as (reader, writer):
        writer.write(post(PATHS[0]))
        assert await next_answer(reader, is_head=False) is not None
        await waiting(writer, "late")
        late = await next_answer(reader, is_head=False)
        [long] = await asked(running, [post(f"{ENGINE}/wait-long/commands/Wait", "Cookie: long=1")])
    GATES[-1].set()
    assert late == long
    assert late is not None
    assert "it may or may not have happened" in late.body


async def test_a_gateway_that_stops_answers_a_known_command_and_closes(served: Served) -> None:
    """G11: a command that is under way gets its answer, which says that the connection ends."""
    GATES.append(asyncio.Event())
    started: asyncio.Future[RunningGateway] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving_also(served) as running:
            started.set_result(running)
            await stop.wait()

    server = asyncio.create_task(serve())
    async with connected(await started) as (reader, writer):
        writer.write(post(PATHS[0]))
        assert await next_answer(reader, is_head=False) is not None
        await waiting(writer, "stop")
        stop.set()

        async def is_refused() -> bool:
            """Return True if the gateway takes no further connections."""
            try:
                async with connected(started.result()):
                    return False
            except OSError:
                return True

        await eventually(is_refused)
        GATES[-1].set()
        answer = await next_answer(reader, is_head=False)
        assert answer is not None
        assert " 200 " in answer.status
        assert ("connection", "close") in answer.headers
        assert await reader.read() == b""
    await asyncio.wait_for(server, 20)
