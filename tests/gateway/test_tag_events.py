"""Events by tag over HTTP: pages, lines, and server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Client, Serve

from headrace.app import Headrace
from headrace.gateway.limits import Slots
from headrace.gateway.metrics import STREAMS
from headrace.gateway.streams import EVENT_STREAM, NDJSON, StreamItem, StreamResponse, StreamTerms
from headrace.model import Event

LIVE = {"accept": EVENT_STREAM}


async def written(hr: Headrace, first: int, last: int, *, tag: str = "vip", id_: str = "a") -> None:
    await hr.journal("accounts").append(id_, [Event(n, n, (tag,)) for n in range(first, last + 1)])


@asynccontextmanager
async def following(url: str, **headers: str) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
    """Open a stream of server-sent events; it gives the fields of each."""
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("GET", f"{url}/events", params={"tag": "vip"}, headers={**LIVE, **headers}) as answer,
    ):
        assert answer.status_code == 200
        yield _parsed(answer)


async def _parsed(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


async def test_pages_go_on_after_the_last_one(client: Client, hr: Headrace) -> None:
    """A page says where the next one begins; the last one says that it is the last, and new events come after it."""
    await written(hr, 1, 5)
    await written(hr, 1, 2, tag="other", id_="b")
    seen: list[int] = []
    after, is_end = None, False
    while not is_end:
        query = {"tag": "vip", "limit": "2", **({"after": after} if after else {})}
        page = (await client.get("/events", params=query)).json()
        seen += [each["payload"] for each in page["events"]]
        after, is_end = page["next"], page["is_end"]
    assert seen == [1, 2, 3, 4, 5]
    await written(hr, 6, 6)
    page = (await client.get("/events", params={"tag": "vip", "after": str(after)})).json()
    assert [(each["id"], each["number"], each["topic"]) for each in page["events"]] == [("a", 6, "accounts")]
    both = await client.get("/events", params={"tag": ["vip", "other"], "after": "2020-01-01T00:00Z"})
    assert len(both.json()["events"]) == 8


async def test_lines_end_with_the_events_that_are_there(client: Client, hr: Headrace) -> None:
    """As lines of JSON, without `live`, a query ends."""
    await written(hr, 1, 3)
    lines = await client.get("/events", params={"tag": "vip"}, headers={"accept": NDJSON})
    assert [json.loads(line)["payload"] for line in lines.text.splitlines()] == [1, 2, 3]


async def test_a_query_that_can_not_be_answered_is_refused(client: Client) -> None:
    """G1: 400 before anything is sent, also where the answer would be a stream."""
    assert (await client.get("/events?tag=vip&live")).status_code == 400
    for query in ("", "tag=", "tag=vip&after=x", "tag=vip&after=1:2", "tag=vip&after=-1:0:0:0:0", "tag=%00a"):
        assert (await client.get(f"/events?{query}")).status_code == 400, query
        assert (await client.get(f"/events?{query}", headers=LIVE)).status_code == 400, query
    refused = await client.get("/events?tag=vip&limit=5", headers=LIVE)
    assert (refused.status_code, refused.json()["name"]) == (400, "limit"), "a stream has no pages: it was ignored"


async def test_a_live_stream_gives_what_comes_and_resumes(serve: Serve, hr: Headrace) -> None:
    """Server-sent events: past ones, then each as it is written; after a reconnect exactly those that were missed."""
    await written(hr, 1, 2)
    async with serve() as gateway:
        async with following(gateway.url) as events:
            seen = [await anext(events) for _ in range(2)]
            await written(hr, 3, 3)
            seen.append(await anext(events))
        await written(hr, 4, 5)
        async with following(gateway.url, **{"last-event-id": seen[1]["id"]}) as events:
            again = [await anext(events) for _ in range(3)]
    assert [json.loads(each["data"])["payload"] for each in seen] == [1, 2, 3]
    assert [json.loads(each["data"])["payload"] for each in again] == [3, 4, 5]
    assert again[0]["id"] == seen[2]["id"]


async def test_the_gateway_stops_although_streams_are_open(serve: Serve, hr: Headrace) -> None:
    """A stop ends live streams in order, at once, so that clients resume elsewhere."""
    await written(hr, 1, 1)
    async with asyncio.timeout(10):
        serving = serve(shutdown_s=60)
        gateway = await serving.__aenter__()
        async with following(gateway.url) as events:
            await anext(events)
            await asyncio.gather(serving.__aexit__(None, None, None), _to_the_end(events))
    assert STREAMS._value.get() == 0


async def _to_the_end(events: AsyncIterator[dict[str, str]]) -> None:
    assert [each async for each in events] == []


async def test_the_headers_of_a_stream_come_without_it(serve: Serve) -> None:
    """G4: HEAD of a stream that goes on is answered at once, and its connection serves the next request."""
    async with serve() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=10) as client:
        for accept in ("text/event-stream", "application/x-ndjson"):
            answer = await client.head("/events?tag=vip", headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (200, accept)
        assert (await client.get("/health/live")).status_code == 200


class Recorded:
    """An ASGI client that takes what is sent, and leaves when it is told to."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.leave = asyncio.Event()
        self.got = asyncio.Event()

    async def receive(self) -> Any:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.got.set()

    @property
    def text(self) -> str:
        return b"".join(each.get("body", b"") for each in self.sent).decode()

    @property
    def is_complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class Source:
    """A source of items that knows whether it was closed."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.is_closed = False

    async def items(self) -> Any:
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield StreamItem(step, str(step))
        finally:
            self.is_closed = True


def streamed(source: Source, media_type: str, *, is_live: bool, **options: Any) -> tuple[StreamResponse, StreamTerms]:
    terms = StreamTerms(Slots("streams", 2, STREAMS), asyncio.Event(), options.pop("heartbeat_s", 60.0))
    return StreamResponse(source.items(), media_type, terms, request_id="r", is_live=is_live, **options), terms


async def test_a_stream_that_fails_does_not_look_complete() -> None:
    """Lines with an end that fail are broken off behind the problem; the message has no internals."""
    source, client = Source(1, 2, RuntimeError("db-7.internal")), Recorded()
    response, _ = streamed(source, NDJSON, is_live=False)
    await response({}, client.receive, client.send)
    lines = [json.loads(line) for line in client.text.splitlines()]
    assert lines[:2] == [1, 2]
    assert lines[2]["problem"]["status"] == 500
    assert "db-7" not in client.text
    assert not client.is_complete
    assert source.is_closed


async def test_a_failure_of_server_sent_events_is_an_event() -> None:
    """A client of a live stream gets an event `problem`, and the answer ends in order."""
    client = Recorded()
    response, _ = streamed(Source(1, RuntimeError("bug")), EVENT_STREAM, is_live=True)
    await response({}, client.receive, client.send)
    assert "id: 1\ndata: 1\n\n" in client.text
    assert "event: problem\ndata: {" in client.text
    assert client.is_complete


async def test_what_fails_at_once_has_a_status_of_its_own() -> None:
    """The first item is fetched before the answer begins."""
    source = Source(RuntimeError("bug"))
    response, _ = streamed(source, NDJSON, is_live=False)
    with pytest.raises(RuntimeError):
        await response.fetch_first()
    assert source.is_closed


async def test_an_idle_stream_shows_that_it_is_alive() -> None:
    """Signs of life come while nothing happens, so that proxies keep the connection and dead ones are noticed."""
    source, client = Source(asyncio.Event()), Recorded()
    response, _ = streamed(source, EVENT_STREAM, is_live=True, heartbeat_s=0.001)
    running = asyncio.create_task(response({}, client.receive, client.send))
    async with asyncio.timeout(10):
        while client.text.count(": alive") < 3:
            client.got.clear()
            await client.got.wait()
    client.leave.set()
    await running
    assert source.is_closed


async def test_a_stream_ends_with_the_token_of_its_caller() -> None:
    """A token that has expired ends the stream, also an idle one."""
    source, client = Source(1, asyncio.Event()), Recorded()
    response, terms = streamed(source, EVENT_STREAM, is_live=True, expires_s=time.time() + 0.1)
    async with asyncio.timeout(10):
        await response({}, client.receive, client.send)
    assert "data: 1" in client.text
    assert "urn:headrace:problem:unauthenticated" in client.text
    assert source.is_closed
    assert terms.slots.taken == 0


async def test_a_stream_that_is_cancelled_closes_its_source_and_frees_its_place() -> None:
    """Whatever ends a stream, its query is closed."""
    source, client = Source(1, asyncio.Event()), Recorded()
    response, terms = streamed(source, EVENT_STREAM, is_live=True)
    running = asyncio.create_task(response({}, client.receive, client.send))
    async with asyncio.timeout(10):
        while "data: 1" not in client.text:
            client.got.clear()
            await client.got.wait()
    assert terms.slots.taken == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert source.is_closed
    assert terms.slots.taken == 0


@pytest.mark.parametrize("after", ["0001-01-01T00:00%2B23:59", "9999-12-31T23:59-23:59", "%FF"])
async def test_times_that_no_clock_shows_and_bytes_that_are_no_text_are_refused(client: Client, after: str) -> None:
    """G1: the first and the last day in another time zone, and a query that is no UTF-8, are 400."""
    answer = await client.get(f"/events?tag=vip&after={after}")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:headrace:problem:bad-argument")
