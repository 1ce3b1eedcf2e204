"""The application itself: problems, deadlines, limits, forms of answers, the description, routes beside."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.gateway.conftest import Client, NewClient, app_of
from tests.test_errors import LEAVES, SAMPLES

from headrace import errors
from headrace.app import Headrace
from headrace.errors import BadArgument, HeadraceError, Misconfigured, TimedOut, Unreachable, WrongMediaType
from headrace.gateway import CALLER, GatewayRequest, GatewayRoute, RouteAnswer
from headrace.gateway.limits import Rates, Slots
from headrace.gateway.metrics import STREAMS
from headrace.gateway.problems import problem_of
from headrace.gateway.requests import chosen_media_type

SECRET = "db-7.internal/secret-path"


def route(handler: Any, path: str = "/x", method: str = "GET") -> GatewayRoute:
    return GatewayRoute(method, path, handler, "Test.", "Test", RouteAnswer("Done."))


def raising(error: Exception, path: str) -> GatewayRoute:
    async def handler(request: GatewayRequest) -> object:
        raise error

    return route(handler, path)


def marked(kind: Any) -> HeadraceError:
    samples = {**SAMPLES, "str": SECRET, "tuple[str, ...]": (SECRET,)}
    return kind(**{field.name: samples[field.type] for field in dataclasses.fields(kind)})


STATUSES: list[tuple[Exception, int]] = [
    (BadArgument("n", 1, "it is 2"), 400),
    (errors.WrongSeqNr("a", 1, 2), 409),
    (errors.Forbidden("read", "no grant"), 403),
    (errors.Unauthenticated("no token"), 401),
    (errors.UnknownTopic("t"), 404),
    (errors.TopicClaimed("t", "e", "append"), 409),
    (NotImplementedError("not here"), 501),
    (TimedOut("append", 3.0), 503),
    (TimeoutError(), 503),
    (errors.RateExceeded(2.0), 429),
    (RuntimeError(SECRET), 500),
    (KeyError(SECRET), 500),
]


async def test_every_kind_of_failure_has_its_status(new_client: NewClient) -> None:
    """G1: the status says what the caller can do; the body is a JSON problem with the request's id."""
    client = new_client(routes=[raising(error, f"/x/{at}") for at, (error, _) in enumerate(STATUSES)])
    for at, (_, status) in enumerate(STATUSES):
        answer = await client.get(f"/x/{at}", headers={"x-request-id": "r-1"})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.json()["status"], answer.json()["request_id"]) == (status, "r-1")
        assert answer.json()["detail"]
        assert SECRET not in answer.text
        assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_a_compressed_body_is_refused_unread(client: Client) -> None:
    """G11: nothing is unpacked, so nothing small becomes large; the caller is told which coding is taken."""
    body = gzip.compress(b'{"events":[{}]}')
    answer = await client.post("/journals/accounts/a", content=body, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["offered"]) == (415, ["identity"])


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_of_the_tree_has_an_answer(kind: Any) -> None:
    """G1: no error of the tree is unknown to the gateway, and what operators are told is told to no caller."""
    problem = problem_of(marked(kind))
    assert 400 <= problem.status <= 503
    if issubclass(kind, Misconfigured | Unreachable | errors.FileUnusable | errors.OperationFailed):
        assert problem.status >= 500
        assert SECRET not in str(problem.to_json("r"))


async def test_a_handler_that_raises_harms_no_other_request(new_client: NewClient) -> None:
    """G2: requests before, beside and after it are answered, and no place stays taken."""

    async def handler(request: GatewayRequest) -> object:
        await asyncio.sleep(0)
        if "fail" in request.query:
            raise RuntimeError("bug")
        return {"ok": True}

    client = new_client(routes=[dataclasses.replace(route(handler), takes_any_query=True)], max_requests_in_flight=20)
    for _ in range(3):
        urls = ["/x?fail" if n % 2 else "/x" for n in range(20)]
        answers = await asyncio.gather(*(client.get(url) for url in urls))
        assert [each.status_code for each in answers] == [200, 500] * 10


async def test_a_request_that_takes_too_long_is_answered(new_client: NewClient) -> None:
    """G3: a deadline gives 503 when it passes, and says whether the outcome is known; the handler is cancelled."""
    cancelled = asyncio.Event()

    async def handler(request: GatewayRequest) -> object:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return {}

    client = new_client(routes=[route(handler), route(handler, method="POST")], request_timeout_s=0.05)
    read, written = await client.get("/x"), await client.post("/x")
    assert (read.status_code, read.json()["outcome_known"]) == (503, True)
    assert (written.status_code, written.json()["outcome_known"]) == (503, False)
    assert cancelled.is_set()


async def test_the_caller_may_ask_for_a_shorter_deadline(new_client: NewClient) -> None:
    """G3: the header Request-Timeout shortens the deadline, and never lengthens it."""

    async def handler(request: GatewayRequest) -> object:
        await asyncio.sleep(60)
        return {}

    client = new_client(routes=[route(handler)], request_timeout_s=0.1)
    for value, words in (("0.01", "within 0.01 s"), ("1e9", "within 0.1 s"), ("inf", "within 0.1 s")):
        answer = await client.get("/x", headers={"request-timeout": value})
        assert answer.status_code == 503
        assert words in answer.json()["detail"]
    for value in ("0", "-1", "nan", "soon", ""):
        assert (await client.get("/x", headers={"request-timeout": value})).status_code == 400


async def test_a_body_that_is_too_large_is_refused(new_client: NewClient) -> None:
    """G11: by its announced length before it is read, or while it comes."""
    client = new_client(max_body_bytes=1000)

    async def chunks() -> Any:
        for _ in range(20):
            yield b"x" * 100

    announced = await client.post("/journals/accounts/a", content=b"x" * 1001)
    streamed = await client.post("/journals/accounts/a", content=chunks())
    assert [announced.status_code, streamed.status_code] == [413, 413]
    assert announced.headers["connection"] == "close"
    assert (await client.get("/health/live")).status_code == 200


async def test_more_requests_than_may_be_in_flight_are_refused_at_once(new_client: NewClient) -> None:
    """Further requests get 503 while all places are taken, and are answered when one is free."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(request: GatewayRequest) -> object:
        entered.set()
        await leave.wait()
        return {}

    client = new_client(routes=[route(handler)], max_requests_in_flight=1)
    first = asyncio.create_task(client.get("/x"))
    await entered.wait()
    assert (await client.get("/health/live")).status_code == 503
    leave.set()
    assert (await first).status_code == 200
    assert (await client.get("/health/live")).status_code == 200


async def test_one_caller_does_not_take_the_places_of_others(hr: Headrace) -> None:
    """G11: who has as many requests in flight as one caller may have is refused; another one is answered."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(request: GatewayRequest) -> object:
        entered.set()
        await leave.wait()
        return {}

    app = app_of(hr, routes=[route(handler)], max_requests_in_flight=3, max_requests_in_flight_per_caller=1)
    one, other = (
        Client(transport=httpx.ASGITransport(app, client=(address, 1)), base_url="http://localhost")
        for address in ("10.0.0.1", "10.0.0.2")
    )
    async with one, other:
        first = asyncio.create_task(one.get("/x"))
        await entered.wait()
        assert (await one.get("/health/live")).status_code == 503
        assert (await other.get("/health/live")).status_code == 200
        leave.set()
        assert (await first).status_code == 200
        assert (await one.get("/health/live")).status_code == 200


async def test_the_bodies_in_memory_are_bounded_together(new_client: NewClient) -> None:
    """G11: bodies that do not fit beside those that are being handled get 503, and fit again afterwards."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(request: GatewayRequest) -> object:
        entered.set()
        await leave.wait()
        return {"size": len(request.body)}

    client = new_client(routes=[route(handler, method="POST")], max_bodies_bytes=1000)
    first = asyncio.create_task(client.post("/x", content=bytes(800)))
    await entered.wait()
    assert (await client.post("/x", content=bytes(300))).status_code == 503
    leave.set()
    assert (await first).json() == {"size": 800}
    for _ in range(3):
        assert (await client.post("/x", content=bytes(900))).json() == {"size": 900}


async def test_routes_of_the_application_are_served_beside(new_client: NewClient) -> None:
    """G4: an ASGI application gets what no route takes, with the caller and behind the same guards."""

    async def hello(request: Request) -> PlainTextResponse:
        body = await request.body()
        return PlainTextResponse(f"{request.scope[CALLER].subject} {len(body)}")

    shop = Starlette(routes=[Route("/hello", hello, methods=["POST"])])

    async def beside(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/broken":
            raise errors.WrongSeqNr("a", 1, 2)
        await shop(scope, receive, send)

    client = new_client(beside=beside, max_body_bytes=10)
    assert (await client.post("/hello", content=b"abc")).text == "anonymous 3"
    assert (await client.post("/hello", content=b"x" * 11)).status_code == 413
    assert (await client.get("/broken")).status_code == 409
    assert (await client.get("/health/live")).json() == {"state": "up"}
    assert (await client.get("/nowhere")).status_code == 404


async def test_a_path_without_a_route_and_a_method_without_one(client: Client) -> None:
    """G1: an unknown path is 404, a wrong method 405 with the methods that there are."""
    assert (await client.get("/nowhere")).status_code == 404
    refused = await client.put("/journals/accounts/a")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, GET, POST")
    assert (await client.head("/health/live")).status_code == 200


async def test_health_readiness_and_metrics(hr: Headrace, new_client: NewClient) -> None:
    """G4: the process answers, says whether it is ready and why not, and what it counts."""
    client = new_client()
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/health/ready")).json() == {"state": "up"}
    assert {each["name"] for each in (await client.get("/health")).json()["children"]} == {"log", "registry"}
    metrics = await client.get("/metrics")
    assert 'headrace_gateway_request_seconds_count{method="GET",route="/health/ready",status="200"}' in metrics.text
    app = app_of(hr)
    app.close_streams()
    async with Client(transport=httpx.ASGITransport(app), base_url="http://localhost") as closing:
        assert (await closing.get("/health/ready")).status_code == 503


async def test_the_description_names_every_route_and_loads_nothing(client: Client) -> None:
    """G4: OpenAPI 3.1 from the table of routes, and a page without scripts or addresses of others."""
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert {"/journals/{topic}/{id}", "/events", "/subjects", "/health", "/metrics"} <= set(document["paths"])
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    page = await client.get("/docs")
    assert all(path in page.text for path in document["paths"])
    assert not [word for word in ("<script", "http://", "https://", "//", "@import", "url(") if word in page.text]
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "a/json"),
        ("*/*", "a/json"),
        ("a/*", "a/json"),
        ("b/avro", "b/avro"),
        ("b/avro;q=0.5, a/json;q=0.4", "b/avro"),
        ("b/avro;q=0.5, */*;q=0.9", "a/json"),
        ("a/json;q=0, */*", "b/avro"),
        ("A/JSON", "a/json"),
        ("b/avro; Q=1.0; x=y", "b/avro"),
    ],
)
def test_the_form_of_the_answer_is_the_one_that_is_liked_best(accept: str, chosen: str) -> None:
    """Accept chooses among the offered media types; the most specific range counts."""
    assert chosen_media_type(accept, ("a/json", "b/avro")) == chosen


@pytest.mark.parametrize("accept", ["text/html", "a/json;q=0", "a/json;q=x", ";", "a/json;q=nan"])
def test_a_form_that_is_not_offered_is_refused(accept: str) -> None:
    """A caller that takes none of them gets 406."""
    with pytest.raises(WrongMediaType):
        chosen_media_type(accept, ("a/json",))


def test_a_caller_that_sends_too_fast_waits() -> None:
    """A burst, then the average; callers do not use up one another's share."""
    now_s = [0.0]
    rates = Rates(2.0, 3, now_s=lambda: now_s[0])
    for _ in range(3):
        rates.take("a")
    with pytest.raises(errors.RateExceeded) as refused:
        rates.take("a")
    assert refused.value.retry_in_s == 0.5
    rates.take("b")
    now_s[0] = 0.5
    rates.take("a")
    with pytest.raises(errors.RateExceeded):
        rates.take("a")


def test_a_place_is_free_again_after_a_failure() -> None:
    """A place is given back however the block ends."""
    slots = Slots("streams", 1, STREAMS)
    with pytest.raises(RuntimeError), slots.take():
        raise RuntimeError
    with slots.take(), pytest.raises(errors.Busy), slots.take():
        pass
    assert slots.taken == 0


async def test_without_a_store_all_but_journals_and_tags_is_served(hr: Headrace, new_client: NewClient) -> None:
    """G4: keyspaces and schemas on Kafka need no store; what needs one is 501, and says how to name it."""
    store, hr._store = hr._store, None
    try:
        client = new_client()
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/subjects")).json() == []
        for path in ("/journals/accounts/acc-1", "/journals/accounts/acc-1/pointer", "/events?tag=vip", "/tags"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["type"]) == (501, "urn:headrace:problem:no-store"), path
            assert "--store" in answer.json()["detail"]
        body = {"events": [{"payload": 1}]}
        assert (await client.post("/journals/accounts/acc-1", json=body)).status_code == 501
    finally:
        hr._store = store
