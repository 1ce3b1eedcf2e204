"""What the clients' tests talk to: the market of the gateway's tests, sums that change by deltas, and a gateway
in a process of its own.
"""

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
from tests.gateway.market import Accounts, purses

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.gateway import serving
from headrace.keyspace import Context, Keyspace, State, handles, state

BUNDLE = Path(__file__).parents[2] / "clients" / "js" / "dist" / "headrace.js"
PAGE = """<!doctype html><title>Client</title><script type="module">
import * as headrace from "/headrace.js";
globalThis.headrace = headrace;
</script>"""


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
