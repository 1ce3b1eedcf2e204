"""The gateway while partitions have no owner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import settings_with
from tests.gateway.market import Account, Accounts
from tests.gateway.test_failover import a_node

from headrace.app import Headrace
from headrace.app.gateways import ConnectionParts
from headrace.gateway import GatewayApp, GatewayRoute, RouteAnswer
from headrace.gateway.suspension import Suspension
from headrace.testing.conformance.log_setting import eventually

Missing = dict[str, list[int] | None]


class Held:
    """A gateway with a route that needs owners and remembers the order of its requests, and what is missing."""

    def __init__(self, hr: Headrace, **gateway: Any) -> None:
        self.missing: Missing = {"accounts": [1]}
        self.handled: list[str] = []
        self.app = GatewayApp(
            ConnectionParts(hr.log, hr.registry, hr.tags, hr.journal),
            settings_with(**gateway).gateway,
            version="1",
            routes=[
                GatewayRoute(
                    "GET",
                    "/numbers/{number}",
                    self._handle,
                    "Get a number.",
                    "Numbers",
                    RouteAnswer("It."),
                    needs_owners=lambda _: True,
                )
            ],
            find_missing=lambda: self.missing,
        )
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost")

    async def _handle(self, request: Any) -> object:
        self.handled.append(request.path["number"])
        return {"number": request.path["number"]}

    def get(self, number: int, **options: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.client.get(f"/numbers/{number}", **options))

    async def are_held(self, count: int) -> None:
        async def are_held() -> bool:
            return len(self.app._suspension._held) >= count

        await eventually(are_held, every_s=0.001, what=f"{count} held requests")


@pytest.fixture
async def held(hr: Headrace) -> AsyncIterator[Callable[..., Held]]:
    async with contextlib.AsyncExitStack() as opened:

        def new(**gateway: Any) -> Held:
            made = Held(hr, **gateway)
            opened.push_async_callback(made.client.aclose)
            return made

        yield new


async def test_requests_are_held_in_order_until_the_last_partition_is_there(held: Callable[..., Held]) -> None:
    """C10: they go on in the order in which they came when nothing is missing any more, and not before."""
    gateway = held()
    asked = []
    for number in range(50):
        asked.append(gateway.get(number))
        await gateway.are_held(number + 1)
    gateway.missing = {"orders": None}
    assert (await gateway.client.get("/health/live")).status_code == 200
    assert gateway.handled == []
    gateway.missing = {}
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    assert gateway.handled == [str(number) for number in range(50)]


async def test_a_request_beyond_the_limit_is_refused_at_once(held: Callable[..., Held]) -> None:
    """C10: a thousand wait, the one after them gets 503 and Retry-After; the thousand take no places of others."""
    gateway = held(max_requests_in_flight=1)
    asked = []
    for number in range(1000):
        asked.append(gateway.get(number))
        await asyncio.sleep(0)
    await gateway.are_held(1000)
    answer = await gateway.get(1000)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["outcome_known"]) == (503, "1", True)
    assert (await gateway.client.get("/health/live")).status_code == 200
    gateway.missing = {}
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_requests_are_refused_if_the_setting_says_so(held: Callable[..., Held]) -> None:
    """C10: 503 with Retry-After, and nothing was done; what needs no owner goes on."""
    gateway = held(missing_partitions="refuse")
    answer = await gateway.get(1)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["outcome_known"]) == (503, "1", True)
    assert answer.json()["type"] == "urn:headrace:problem:gateway-suspended"
    assert (await gateway.client.get("/keyspaces")).status_code == 200
    gateway.missing = {}
    assert (await gateway.get(2)).status_code == 200
    assert gateway.handled == ["2"]


async def test_requests_go_on_if_the_setting_says_so(held: Callable[..., Held]) -> None:
    """C10: each of them then waits for its own partition only, at the router."""
    gateway = held(missing_partitions="ignore")
    assert (await gateway.get(1)).status_code == 200


async def test_a_read_that_a_copy_may_answer_is_not_held(hr: Headrace) -> None:
    """C10, C12: a copy needs no owner."""
    async with hr.node(Accounts):
        app = hr.gateway(Accounts)
        app._suspension = Suspension(lambda: {"accounts": [0]}, mode="refuse", limit=1)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            path = "/keyspaces/accounts/states/balances/a"
            answers = [await client.get(path, params=query) for query in ({}, {"max_staleness_s": 60})]
    assert [answer.status_code for answer in answers] == [503, 404]


async def test_a_held_request_ends_at_its_deadline_and_leaves_its_place(held: Callable[..., Held]) -> None:
    """C10, G3: its client hears that nothing was done, and another one may wait in its place."""
    gateway = held(max_held_requests=1)
    answer = await gateway.get(1, headers={"request-timeout": "0.05"})
    assert (answer.status_code, answer.json()["outcome_known"]) == (503, True)
    waiting = gateway.get(2)
    await gateway.are_held(1)
    gateway.missing = {}
    assert (await waiting).status_code == 200
    assert gateway.handled == ["2"]


async def test_a_gateway_that_stops_refuses_what_it_holds(held: Callable[..., Held]) -> None:
    """C10: the clients of held requests try another gateway, and need not wait for this one."""
    gateway = held()
    waiting = gateway.get(1)
    await gateway.are_held(1)
    gateway.app.close_streams()
    assert (await waiting).status_code == 503


async def test_a_keyspace_without_owners_suspends_the_gateway_and_its_new_owner_resumes_it(tmp_path: Path) -> None:
    """C10: a value is asked for while the only node of the keyspace is away, and comes when another one has started."""
    async with contextlib.AsyncExitStack() as nodes:
        leaving = await nodes.enter_async_context(contextlib.AsyncExitStack())
        await leaving.enter_async_context(a_node(tmp_path, "n1", Accounts))
        hr = await nodes.enter_async_context(a_node(tmp_path, "n0"))
        app = hr.gateway(Accounts)
        client = await nodes.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)
        )
        await hr.keyspace(Accounts).put("balances", "a", Account("ann", 1))

        async def is_suspended() -> bool:
            return app._suspension.is_suspended

        async def is_held() -> bool:
            return bool(app._suspension._held)

        assert not await is_suspended()
        await leaving.aclose()
        await eventually(is_suspended, every_s=0.01, what="the suspension")
        asked = asyncio.create_task(client.get("/keyspaces/accounts/states/balances/a"))
        await eventually(is_held, every_s=0.01, what="the held request")
        await nodes.enter_async_context(a_node(tmp_path, "n2", Accounts))
        answer = await asked
        assert (answer.status_code, answer.json()["data"]["balance"]) == (200, 1)
