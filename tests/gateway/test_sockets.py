"""Sockets on scripted keyspaces and connections: what happens between two frames."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.gateway.conftest import settings_with
from tests.gateway.market import Account, Accounts

from headrace.app import Headrace
from headrace.app.gateways import ConnectionParts
from headrace.gateway import GatewayApp, ServedKeyspace
from headrace.gateway.socket_wire import PUSHES
from headrace.keyspace import CollectionEvent, KeyspaceClient
from headrace.state import StateChange
from headrace.testing.conformance.log_setting import eventually

KEY_PATH = "/keyspaces/accounts/states/balances/a"
SUBSCRIBE = {"op": "subscribe", "id": 1, "keyspace": "accounts", "state": "balances", "key": "a"}


class ScriptedChanges:
    """The changes of a keyspace's keys, as a test gives them."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Queue[Any]] = {}

    def of(self, key: str) -> asyncio.Queue[Any]:
        return self.waiting.setdefault(key, asyncio.Queue())

    def put(self, key: str, balance: int) -> None:
        self.of(key).put_nowait(StateChange(key, Account("ann", balance), balance, f"t:{balance}"))

    async def changes(self, state: str, key: str, **options: Any) -> AsyncIterator[StateChange[Any, Any]]:
        while (change := await self.of(key).get()) is not None:
            if isinstance(change, Exception):
                raise change
            yield change

    async def collection(self, state: str, **options: Any) -> AsyncIterator[CollectionEvent]:
        for number in itertools.count():
            yield CollectionEvent("begin" if number == 0 else "reset", partitions=(0,))
            await self.of("collection").get()


class ScriptedSocket:
    """The client of a WebSocket without a network. `gate` is closed while the client takes nothing."""

    def __init__(self, app: GatewayApp, path: str, *protocols: str, **scope: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.left = False
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "subprotocols": list(protocols),
            "client": ("127.0.0.1", 1),
            **scope,
        }
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)  # a server may let others run
        await self.gate.wait()
        if self.left:
            raise ConnectionResetError
        self.sent.append(message)

    def say(self, frame: Any) -> None:
        self._incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def leave(self) -> None:
        self.left = True
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    @property
    def frames(self) -> list[Any]:
        return [json.loads(each["text"]) for each in self.sent if each.get("text")]

    @property
    def codes(self) -> list[int]:
        return [each["code"] for each in self.sent if each["type"] == "websocket.close"]

    async def got(self, count: int) -> list[Any]:
        async def enough() -> bool:
            return len(self.frames) >= count

        await eventually(enough, every_s=0)
        return self.frames


@pytest.fixture
def script() -> ScriptedChanges:
    return ScriptedChanges()


def app_with(hr: Headrace, script: ScriptedChanges, registry: Any = None, **gateway: Any) -> GatewayApp:
    client: Any = script
    served: KeyspaceClient = client
    parts = ConnectionParts(hr.log, registry or hr.registry, hr.tags, hr.journal)
    settings = settings_with(**gateway).gateway
    return GatewayApp(parts, settings, version="1", keyspaces=[ServedKeyspace(Accounts.spec, served)])


class HeldRegistry:
    """A registry that does not answer while its gate is closed."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        async def held(*args: Any, **options: Any) -> Any:
            self.asked.set()
            await self.gate.wait()
            return await getattr(self._registry, name)(*args, **options)

        return held


async def test_no_push_comes_behind_the_news_that_its_subscription_has_ended(
    hr: Headrace, script: ScriptedChanges
) -> None:
    """G6: a number can be used again at once: what was on its way for the old key comes before, or never."""
    socket = ScriptedSocket(app_with(hr, script), "/socket", "headrace.v1")
    socket.say(SUBSCRIBE)
    script.put("a", 1)
    await socket.got(1)
    socket.gate.clear()
    script.put("a", 2)
    script.put("a", 3)  # both are being written when the client leaves the key
    for _ in range(20):
        await asyncio.sleep(0)
    socket.say({"op": "unsubscribe", "id": 1})
    for _ in range(20):
        await asyncio.sleep(0)
    socket.gate.set()
    assert [each["op"] for each in await socket.got(4)] == ["value", "value", "value", "unsubscribed"]
    socket.leave()
    await socket.task


async def test_a_subscription_that_ends_before_its_schema_is_known_pushes_nothing(
    hr: Headrace, script: ScriptedChanges
) -> None:
    """G6: the schema of a key's values is fetched before its changes are followed; who leaves meanwhile gets none."""
    registry = HeldRegistry(hr.registry)
    socket = ScriptedSocket(app_with(hr, script, registry), "/socket", "headrace.v1")
    socket.say({**SUBSCRIBE, "format": "avro"})
    script.put("a", 1)
    await registry.asked.wait()
    socket.say({"op": "unsubscribe", "id": 1})
    await socket.got(1)
    registry.gate.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert [each["op"] for each in socket.frames] == ["unsubscribed"]
    assert not any(each.get("bytes") for each in socket.sent)
    socket.leave()
    await socket.task


class ReadySocket(ScriptedSocket):
    """The client of a WebSocket whose server writes frames at once while the client takes them."""

    def __init__(self, app: GatewayApp, path: str, *protocols: str) -> None:
        self.is_ready = True
        self.written: list[str | bytes] = []
        pushes = {"is_ready": lambda: self.is_ready, "write": self.written.append}
        super().__init__(app, path, *protocols, extensions={PUSHES: pushes})

    async def wrote(self, count: int) -> list[Any]:
        async def enough() -> bool:
            return len(self.written) >= count

        await eventually(enough, every_s=0)
        return [json.loads(each) for each in self.written]


async def test_a_change_is_written_to_all_sockets_that_take_it_in_one_turn(
    hr: Headrace, script: ScriptedChanges
) -> None:
    """A change reaches every client that is ready without a task of its own; it is encoded once for all of them."""
    app = app_with(hr, script)
    sockets = [ReadySocket(app, KEY_PATH, "headrace.json") for _ in range(3)]
    feed = await _shared(app, script, len(sockets))
    at = [len(socket.written) for socket in sockets]
    _, form = app._sockets._routes.form("accounts", "balances")
    encode, encoded = form.to_json, 0

    def counted(value: Any) -> Any:
        nonlocal encoded
        encoded += 1
        return encode(value)

    form.to_json = counted  # type: ignore[method-assign]
    feed._take(StateChange("a", Account("ann", 99_999), 99_999, "t:99999"))
    assert [len(socket.written) - before for socket, before in zip(sockets, at, strict=True)] == [1, 1, 1]
    assert {json.loads(socket.written[-1])["data"]["balance"] for socket in sockets} == {99_999}
    assert encoded == 1
    await _left(*sockets)


async def test_what_a_client_does_not_take_waits_and_keeps_its_order(hr: Headrace, script: ScriptedChanges) -> None:
    """A change for a client that is not ready waits in its queue, and so do those behind it until that is empty."""
    socket = ReadySocket(app_with(hr, script), "/socket", "headrace.v1")
    socket.say(SUBSCRIBE)
    script.put("a", 1)
    await socket.wrote(1)
    socket.gate.clear()
    socket.is_ready = False
    script.put("a", 2)
    for _ in range(20):
        await asyncio.sleep(0)
    socket.is_ready = True
    script.put("a", 3)  # the one before is being sent
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(socket.written) == 1
    socket.gate.set()
    assert [each["value"]["data"]["balance"] for each in await socket.got(2)] == [2, 3]
    script.put("a", 4)
    assert (await socket.wrote(2))[1]["value"]["data"]["balance"] == 4
    await _left(socket)


async def test_a_value_that_has_no_frame_ends_no_socket_but_its_own(hr: Headrace, script: ScriptedChanges) -> None:
    """A value that JSON can't carry ends the sockets that would get it, and not the feed that others share."""
    app = app_with(hr, script)
    socket, other = ReadySocket(app, KEY_PATH, "headrace.json"), ReadySocket(app, "/socket", "headrace.v1")
    other.say({**SUBSCRIBE, "format": "avro"})
    feed = await _shared(app, script, 2)
    _, form = app._sockets._routes.form("accounts", "balances")
    form.json_pushed = _fails  # type: ignore[method-assign]
    before = len(other.written)
    feed._take(StateChange("a", Account("ann", 99_999), 99_999, "t:99999"))
    assert len(other.written) == before + 1
    await socket.task
    assert socket.codes == [4500]
    before = len(other.written)
    feed._take(StateChange("a", Account("ann", 100_000), 100_000, "t:100000"))
    assert len(other.written) == before + 1
    await _left(other)


async def _shared(app: GatewayApp, script: ScriptedChanges, sockets: int) -> Any:
    """Return the feed of the key, when all sockets are on it."""
    feeds, balances = app._sockets._feeds._feeds, itertools.count(1)

    async def all_joined() -> bool:
        script.put("a", next(balances))
        return any(len(feed._subscribers) == sockets for feed in feeds.values())

    await eventually(all_joined, every_s=0)
    return next(iter(feeds.values()))


def _fails(value: Any) -> bytes:
    raise TypeError(f"{value!r} has no JSON")


async def _left(*sockets: ScriptedSocket) -> None:
    for socket in sockets:
        socket.leave()
        await socket.task


@pytest.mark.parametrize("end", [RuntimeError("db-7.internal"), None], ids=["a failure", "the end"])
async def test_a_subscription_never_falls_silent(hr: Headrace, script: ScriptedChanges, end: Exception | None) -> None:
    """G8: whatever ends the changes of a key, its client is told, without internals; then it may subscribe again."""
    socket = ScriptedSocket(app_with(hr, script), "/socket", "headrace.v1")
    socket.say(SUBSCRIBE)
    script.of("a").put_nowait(end)
    (problem,) = await socket.got(1)
    assert (problem["op"], problem["id"]) == ("problem", 1)
    assert problem["problem"]["status"] in (500, 503)
    assert "db-7" not in json.dumps(problem)
    socket.say(SUBSCRIBE)
    script.put("a", 1)
    assert (await socket.got(2))[1]["op"] == "value"
    socket.leave()
    await socket.task


@pytest.mark.parametrize("end", [RuntimeError("db-7.internal"), None], ids=["a failure", "the end"])
async def test_a_socket_on_one_key_is_closed_when_its_changes_end(
    hr: Headrace, script: ScriptedChanges, end: Exception | None
) -> None:
    """G8: it is closed with a code, so that the client connects again."""
    socket = ScriptedSocket(app_with(hr, script), KEY_PATH, "headrace.json")
    script.of("a").put_nowait(end)
    await socket.task
    assert socket.codes == [4500 if end else 1013]


async def test_a_client_that_leaves_while_it_is_written_to_is_no_error(
    hr: Headrace, script: ScriptedChanges, caplog: pytest.LogCaptureFixture
) -> None:
    """G11: what the server raises for a frame that nobody takes any more is neither logged nor counted as a refusal."""
    socket = ScriptedSocket(app_with(hr, script), KEY_PATH, "headrace.json")
    script.put("a", 1)
    await socket.got(1)
    socket.left = True
    with caplog.at_level(logging.WARNING):
        script.put("a", 2)
        await socket.task
    assert not caplog.records
    assert socket.codes == []


async def test_a_client_that_leaves_in_a_snapshot_is_no_error(
    hr: Headrace, script: ScriptedChanges, caplog: pytest.LogCaptureFixture
) -> None:
    """G11: a collection whose client is gone ends without a word, also before its socket has noticed."""
    socket = ScriptedSocket(app_with(hr, script), "/socket", "headrace.v1")
    socket.say({**{name: SUBSCRIBE[name] for name in ("id", "keyspace", "state")}, "op": "collect"})
    await socket.got(1)
    socket.left = True
    with caplog.at_level(logging.WARNING):
        tasks = asyncio.all_tasks()
        script.of("collection").put_nowait(None)

        async def has_ended() -> bool:
            return len(asyncio.all_tasks()) < len(tasks)

        await eventually(has_ended, every_s=0)
        socket.leave()
        await socket.task
        gc.collect()  # asyncio tells of errors that nobody has seen
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_nothing_is_pushed_behind_the_end_of_a_token(hr: Headrace, script: ScriptedChanges) -> None:
    """G10: a client that reads slowly gets no values from after the end of its socket, only the reason."""
    app = app_with(hr, script)
    socket = ScriptedSocket(app, KEY_PATH, "headrace.json")
    script.put("a", 1)
    await socket.got(1)
    socket.gate.clear()
    for balance in range(2, 6):
        script.put("a", balance)
        await asyncio.sleep(0)
    app.close_streams()
    for _ in range(20):
        await asyncio.sleep(0)
    socket.gate.set()
    await socket.task
    assert (len(socket.frames), socket.codes) == (1, [1012])


@pytest.mark.parametrize("protocol", ["headrace.json", "headrace.avro"])
async def test_a_browser_with_a_token_gets_a_sub_protocol(hr: Headrace, script: ScriptedChanges, protocol: str) -> None:
    """G5, G10: of the sub-protocols that a client offers beside others one is chosen, or a browser gives up."""
    socket = ScriptedSocket(app_with(hr, script), KEY_PATH, "other", protocol)
    script.put("a", 1)
    await eventually(lambda: _has_sent(socket, 2), every_s=0)
    assert socket.sent[0] == {"type": "websocket.accept", "subprotocol": protocol}
    assert ("text" in socket.sent[1]) == (protocol == "headrace.json")
    socket.leave()
    await socket.task


async def _has_sent(socket: ScriptedSocket, count: int) -> bool:
    return len(socket.sent) >= count


async def test_frames_count_as_requests_of_their_sender(hr: Headrace, script: ScriptedChanges) -> None:
    """G11: who opens a WebSocket may not send more through it than by requests."""
    app = app_with(hr, script, requests_per_s=0.001, burst=3)
    socket = ScriptedSocket(app, "/socket", "headrace.v1")
    for number in range(1, 4):
        socket.say({**SUBSCRIBE, "id": number})
    (problem,) = await socket.got(1)
    assert (problem["id"], problem["problem"]["status"]) == (3, 429)
    socket.leave()
    await socket.task
    refused = ScriptedSocket(app, "/socket", "headrace.v1", extensions={"websocket.http.response": {}})
    await refused.task
    assert refused.sent[0]["status"] == 429


async def test_a_token_among_the_sub_protocols_is_shown_to_nobody(
    hr: Headrace, script: ScriptedChanges, caplog: pytest.LogCaptureFixture
) -> None:
    """G10: neither the log nor the answer repeats a token that stands where the sub-protocols do."""
    app = app_with(hr, script)
    with caplog.at_level(logging.DEBUG):
        scope = {"extensions": {"websocket.http.response": {}}}
        with_token = ScriptedSocket(app, "/socket", "headrace.bearer.not-to-be-shown", **scope)
        await with_token.task
        no_token = ScriptedSocket(app, "/socket", "other.protocol", **scope)
        await no_token.task
    assert [each.sent[0]["status"] for each in (with_token, no_token)] == [401, 400]
    assert "not-to-be-shown" not in f"{with_token.sent}{caplog.text}"
