"""What the clients' tests talk to: two keyspaces, an engine and a journal, and a gateway in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Route

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.engine import Engine
from headrace.gateway import serving
from headrace.keyspace import Context, Keyspace, State, handles, state

BUNDLE = Path(__file__).parents[2] / "clients" / "js" / "dist" / "headrace.js"
PAGE = """<!doctype html><title>Client</title><script type="module">
import * as headrace from "/headrace.js";
globalThis.headrace = headrace;
</script>"""


@dataclass(frozen=True)
class Account:
    owner: str
    balance: int = 0


@dataclass(frozen=True)
class Deposit:
    id: str
    amount: int


class Accounts(Keyspace, partitions=2, replicas=1, store="memory"):
    balances: State[str, Account] = state(index={"owner": lambda account: account.owner})
    lines: State[tuple[str, int], int] = state()

    @handles
    async def deposit(self, message: Deposit, context: Context) -> Account:
        if message.amount < 0:
            raise ValueError("an amount is not negative")
        found = await self.balances.get(message.id) or Account("ann")
        new = Account(found.owner, found.balance + message.amount)
        await self.balances.put(message.id, new)
        return new


@dataclass(frozen=True)
class Total:
    amount: int


@dataclass(frozen=True)
class Increment:
    by: int


@dataclass(frozen=True)
class Add:
    id: str
    by: int


class Sums(Keyspace, partitions=1, replicas=1, store="memory"):
    totals: State[str, Total] = state(delta=Increment)

    @handles
    async def add(self, message: Add, context: Context) -> Total:
        return await self.totals.add_delta(
            message.id, Increment(message.by), lambda total, more: Total((total.amount if total else 0) + more.by)
        )


@dataclass(frozen=True)
class Purse:
    coins: int


@dataclass(frozen=True)
class Pay:
    coins: int


@dataclass(frozen=True)
class Paid:
    coins: int


purses: Engine[Purse] = Engine("purses", state=Purse, partitions=1)


@purses.command
def pay(purse: Purse | None, command: Pay) -> Paid:
    return Paid(command.coins)


@purses.event
def paid(purse: Purse | None, event: Paid) -> Purse:
    return Purse((purse.coins if purse else 0) + event.coins)


def settings_of(folder: str, node_id: str, **gateway: Any) -> HeadraceSettings:
    address = f"embedded:{folder}"
    return HeadraceSettings.model_validate(
        {
            "log": {"address": address},
            "store": {"address": address},
            "cluster": {"node_id": node_id, "session_s": 2.0},
            "gateway": {"listen": "127.0.0.1:0", **gateway},
        }
    )


def free_port() -> int:
    """Return a port that nobody listens at now, below those that the system gives to outgoing connections.

    A gateway comes back to it after it was killed: a client that tries to reach it meanwhile must not be given it.
    """
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def page_app() -> Starlette:
    """Return an application with an empty page that has loaded the client."""

    async def page(request: object) -> HTMLResponse:
        return HTMLResponse(PAGE)

    async def bundle(request: object) -> FileResponse:
        return FileResponse(BUNDLE, media_type="text/javascript")

    return Starlette(routes=[Route("/page", page), Route("/headrace.js", bundle)])


def gateway_of(hr: Headrace) -> Any:
    return hr.gateway(Accounts, Sums, purses, beside=page_app())


def serve(folder: str, node_id: str, port: int) -> None:
    """Run a gateway, on a node that owns nothing, until the process is killed."""

    async def run() -> None:
        settings = settings_of(folder, node_id, listen=f"127.0.0.1:{port}")
        async with connect(settings=settings) as hr, hr.node(), serving(gateway_of(hr), settings.gateway) as running:
            print(f"serving {running.url}", flush=True)
            await running.ended

    asyncio.run(run())
