"""What a socket with many keys takes beside subscriptions: messages, collections and questions for schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import websockets

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.gateway import serving
from headrace.keyspace import Context, Keyspace, KeyspaceClient, State, handles, state
from headrace.serde import Schema, schema_of

pytestmark = pytest.mark.asyncio(loop_scope="module")  # all tests here share the node's loop

GATE = asyncio.Event()


@dataclass(frozen=True)
class Line:
    texts: list[str]


@dataclass(frozen=True)
class Write:
    id: str
    text: str


@dataclass(frozen=True)
class Sum:
    least: int = 0


@dataclass(frozen=True)
class Count:
    id: str


@dataclass(frozen=True)
class Gather:
    ids: list[str]


class Notes(Keyspace, partitions=2, replicas=1, store="memory"):
    lines: State[str, Line] = state()
    marks: State[tuple[str, int], int] = state()

    @handles
    async def write(self, message: Write, context: Context) -> int:
        if message.text == "wait":
            await GATE.wait()
        if message.text == "fail":
            raise ValueError("no such text")
        before = await self.lines.get(message.id) or Line([])
        await self.lines.put(message.id, Line([*before.texts, message.text]))
        return len(before.texts) + 1

    @handles(read=True, key=lambda count: str(int(count.id)))
    async def count(self, message: Count) -> str:
        return message.id

    @handles(read=True, key="ids")
    async def gather(self, message: Gather) -> int:
        return len(message.ids)

    @handles(scatter=True, read=True)
    async def sum(self, message: Sum) -> int:
        return await self.lines.count()


class Notebook:
    """The node, and the address of its gateway."""

    def __init__(self, hr: Headrace, url: str) -> None:
        self.client: KeyspaceClient = hr.keyspace(Notes)
        self.registry = hr.registry
        self.url = url

    def socket(self) -> Any:
        return websockets.connect(f"{self.url.replace('http', 'ws')}/socket", subprotocols=["headrace.v1"])  # type: ignore[list-item]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def notebook(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Notebook]:
    folder: Path = tmp_path_factory.mktemp("notes")
    address = f"embedded:{folder}"
    settings = HeadraceSettings.model_validate(
        {
            "log": {"address": address},
            "store": {"address": address},
            "registry": {"address": "memory:"},
            "cluster": {"node_id": "n1"},
            "gateway": {"listen": "127.0.0.1:0", "max_waiting_changes": 4},
        }
    )
    async with (
        connect(settings=settings) as hr,
        hr.node(Notes),
        serving(hr.gateway(Notes), settings.gateway) as running,
    ):
        yield Notebook(hr, running.url)


async def received(socket: Any) -> Any:
    async with asyncio.timeout(20):
        frame = await socket.recv()
    return json.loads(frame) if isinstance(frame, str) else frame


def publish(number: int, text: str, **more: Any) -> str:
    data = {"id": more.pop("key", "k"), "text": text}
    return json.dumps({"op": "publish", "id": number, "keyspace": "notes", "message": "Write", "data": data, **more})


async def test_messages_to_one_key_are_handled_in_order(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """G6: a message that is late on its way to the owner is not overtaken by the next one to its key.

    Those to other keys do not wait for it.
    """
    gate, ack = asyncio.Event(), KeyspaceClient.ack

    async def late(self: KeyspaceClient, message: Any, **given: Any) -> Any:
        if message.text == "first":
            await gate.wait()
        return await ack(self, message, **given)

    monkeypatch.setattr(KeyspaceClient, "ack", late)
    async with notebook.socket() as socket:
        for number, text in enumerate(("first", "second", "third")):
            await socket.send(publish(number, text, key="ordered"))
        await socket.send(publish(9, "other", key="elsewhere"))
        assert await received(socket) == {"op": "published", "id": 9, "reply": 1}
        gate.set()
        replies = [await received(socket) for _ in range(3)]
    assert [(each["id"], each["reply"]) for each in replies] == [(0, 1), (1, 2), (2, 3)]
    assert await notebook.client.get("lines", "ordered") == Line(["first", "second", "third"])


async def test_a_request_of_a_wrong_form_is_refused_alone(notebook: Notebook) -> None:
    """G11: a wrong type or an unknown field is told to the request that has it; what has no number ends the socket."""
    subscribe = {"op": "subscribe", "id": 2, "keyspace": "notes", "state": "lines", "key": "k"}
    async with notebook.socket() as socket:
        for frame, op, number in (
            (publish(1, "x", message=7), "refused", 1),
            (json.dumps({**subscribe, "after": 5}), "problem", 2),
            (json.dumps({**subscribe, "id": 3, "of_tomorrow": True}), "problem", 3),
            (json.dumps({"op": "dance", "id": 4}), "problem", 4),
        ):
            await socket.send(frame)
            answer = await received(socket)
            assert (answer["op"], answer["id"], answer["problem"]["status"]) == (op, number, 400)
        await socket.send(publish(5, "x", key="form"))
        assert (await received(socket))["op"] == "published"
        await socket.send('{"op": "unsubscribe"}')
        with pytest.raises(websockets.ConnectionClosed, match="4400"):
            await received(socket)


async def test_a_message_whose_key_can_not_be_made_is_refused_alone(notebook: Notebook) -> None:
    """G2: the function for keys is the application's, as the handler is. Over HTTP its error is a status of its kind.

    It closed the socket with all its subscriptions, and a client that came back sent the message again.
    """
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("Count", {"id": "seven"}, "invalid literal for int"),
        ("Gather", {"ids": ["a", "b"]}, "keys are of type"),
    ]
    async with notebook.socket() as socket, httpx.AsyncClient(base_url=notebook.url) as client:
        for number, (name, data, reason) in enumerate(cases):
            request = {"op": "publish", "id": number, "keyspace": "notes", "message": name, "data": data}
            await socket.send(json.dumps(request))
            refused = await received(socket)
            assert (refused["op"], refused["id"], refused["problem"]["status"]) == ("refused", number, 400), refused
            answer = await client.post(f"/keyspaces/notes/messages/{name}", json=data)
            assert answer.status_code == 400, answer.text
            assert reason in refused["problem"]["detail"] == answer.json()["detail"], answer.text
        await socket.send(publish(9, "x", key="after"))
        assert (await received(socket))["op"] == "published", "the socket goes on"
    async with websockets.connect(
        f"{notebook.url.replace('http', 'ws')}/keyspaces/notes/states/lines/k",
        subprotocols=["headrace.json"],  # type: ignore[list-item]
    ) as on_key:
        await received(on_key)
        await on_key.send(json.dumps({"type": "Count", "data": {"id": "seven"}}))
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await received(on_key)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4400


async def test_a_message_is_handled_once_and_refused_for_itself(notebook: Notebook) -> None:
    """G14: a repeat with its id gets the first reply; what is refused is told, and the socket goes on."""
    async with notebook.socket() as socket:
        for number in (1, 2):
            await socket.send(publish(number, "once", key="once", message_id="m-1"))
            assert (await received(socket))["reply"] == 1
        for frame, status in (
            (publish(3, "fail"), 400),
            (publish(4, "x", message="Fly"), 404),
            (publish(5, "x", keyspace="none"), 404),
            (publish(6, "x", message="Sum", data={}), 404),
            (publish(7, "x", data={"id": 1}), 400),
            (publish(8, "x", message_id=""), 400),
        ):
            await socket.send(frame)
            refused = await received(socket)
            assert (refused["op"], refused["id"], refused["problem"]["status"]) == (
                "refused",
                json.loads(frame)["id"],
                status,
            )
        await socket.send(publish(9, "after", key="once"))
        assert (await received(socket))["reply"] == 2


async def test_messages_on_their_way_are_bounded(notebook: Notebook) -> None:
    """G11: more messages than may wait are refused with 503, and the others are not harmed."""
    GATE.clear()
    async with notebook.socket() as socket:
        for number in range(6):
            await socket.send(publish(number, "wait", key="full"))
        refused = [await received(socket) for _ in range(2)]
        assert [(each["op"], each["id"], each["problem"]["status"]) for each in refused] == [
            ("refused", 4, 503),
            ("refused", 5, 503),
        ]
        GATE.set()
        assert [(await received(socket))["reply"] for _ in range(4)] == [1, 2, 3, 4]


async def test_a_collection_on_a_socket(notebook: Notebook) -> None:
    """G6: pages, `ready`, changes; ends that do not fit are refused; an unsubscribed one is silent."""
    for number in range(3):
        await notebook.client.put("marks", ("c", number), number)
    await notebook.client.put("marks", ("d", 0), 7)

    def collect(number: int, **more: Any) -> str:
        return json.dumps({"op": "collect", "id": number, "keyspace": "notes", "state": "marks", **more})

    async with notebook.socket() as socket:
        await socket.send(collect(1, prefix=["c"], start=["c", 1]))
        begin, reset, pairs, ready = [await received(socket) for _ in range(4)]
        assert (begin["op"], len(begin["partitions"]), reset["op"], ready["op"]) == ("begin", 1, "reset", "ready")
        assert pairs["pairs"] == [{"key": ["c", 1], "value": 1}, {"key": ["c", 2], "value": 2}]
        await notebook.client.put("marks", ("d", 1), 8)
        await notebook.client.put("marks", ("c", 0), 8)
        await notebook.client.delete("marks", ("c", 2))
        change = await received(socket)
        assert (change["op"], change["key"], change["value"]) == ("change", ["c", 2], None)
        for wrong in ({"prefix": "c"}, {"start": [1]}, {"after": {"x": "y"}}, {"format": "avro"}, {"state": "none"}):
            await socket.send(collect(2, **wrong))
            problem = await received(socket)
            assert (problem["op"], problem["id"]) == ("problem", 2), wrong
            assert problem["problem"]["status"] in (400, 404), wrong
        await socket.send(json.dumps({"op": "unsubscribe", "id": 1}))
        assert await received(socket) == {"op": "unsubscribed", "id": 1}
        place = {str(change["partition"]): change["offset"]}
        await notebook.client.put("marks", ("c", 3), 3)
        await socket.send(collect(3, prefix=["c"], after=place))
        assert [(await received(socket))["op"] for _ in range(2)] == ["begin", "change"]


async def test_schemas_are_told_to_those_who_may_read(notebook: Notebook) -> None:
    """G5: byte 123 and an id is answered on this socket, too; an id that nobody knows ends it."""
    version = (await notebook.registry.versions("notes-lines-value"))[-1]
    async with notebook.socket() as socket:
        await socket.send(b"\x7b" + version.schema_id.to_bytes(4, "big"))
        frame = await received(socket)
        assert Schema(frame[5:].decode()) == schema_of(Line)
        await socket.send(b"\x7b\x00\x00\x99\x00")
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await received(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4404


async def test_a_subscription_takes_the_token_of_a_write(notebook: Notebook) -> None:
    """The first value shows what the token names; a token that is none ends the subscription with a problem."""
    written = await notebook.client.put("marks", ("token", 1), 5)

    def subscribe(number: int, token: str) -> str:
        asked = {"op": "subscribe", "id": number, "keyspace": "notes", "state": "marks", "key": '["token",1]'}
        return json.dumps({**asked, "token": token})

    async with notebook.socket() as socket:
        await socket.send(subscribe(1, written.token))
        assert (await received(socket))["value"] == 5
        await socket.send(subscribe(2, "garbage"))
        problem = await received(socket)
        assert (problem["op"], problem["id"], problem["problem"]["status"]) == ("problem", 2, 400)
