"""A socket while the owner of its key goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import websockets
from tests.gateway.market import Account, Accounts

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.gateway import serving
from headrace.keyspace import Keyspace


@contextlib.asynccontextmanager
async def a_node(folder: Path, node_id: str, *kinds: type[Keyspace]) -> AsyncIterator[Headrace]:
    address = f"embedded:{folder}"
    given = {
        "log": {"address": address},
        "store": {"address": address},
        "cluster": {"node_id": node_id, "session_s": 1.0},
        "gateway": {"listen": "127.0.0.1:0"},
    }
    async with connect(settings=HeadraceSettings.model_validate(given)) as hr, hr.node(*kinds):
        yield hr


async def received(socket: Any) -> Any:
    async with asyncio.timeout(60):
        return json.loads(await socket.recv())


async def test_a_socket_goes_on_when_the_owner_of_its_key_leaves(tmp_path: Path) -> None:
    """G8, G13: the subscription moves to the new owner, and shows later changes once, in order, up to the last one.

    A change may be passed over if it came before the subscription reached the new owner: frames of a socket on one key
    have no place to resume from, and no mark for a gap.
    """
    async with contextlib.AsyncExitStack() as nodes:
        leaving = await nodes.enter_async_context(contextlib.AsyncExitStack())
        await leaving.enter_async_context(a_node(tmp_path, "n1", Accounts))
        hr = await nodes.enter_async_context(a_node(tmp_path, "n0"))
        gateway = await nodes.enter_async_context(serving(hr.gateway(Accounts), hr.settings.gateway))
        accounts = hr.keyspace(Accounts)
        url = f"{gateway.url.replace('http', 'ws')}/keyspaces/accounts/states/balances/moves"
        async with websockets.connect(url, subprotocols=[websockets.Subprotocol("headrace.json")]) as socket:
            assert await received(socket) == {}
            await accounts.put("balances", "moves", Account("ann", 1))
            assert (await received(socket))["data"]["balance"] == 1
            await nodes.enter_async_context(a_node(tmp_path, "n2", Accounts))
            await leaving.aclose()
            for balance in (2, 3):
                await accounts.put("balances", "moves", Account("ann", balance), timeout_s=60)
            seen = [(await received(socket))["data"]["balance"]]
            while seen[-1] != 3:
                seen.append((await received(socket))["data"]["balance"])
            assert seen in ([2, 3], [3])
