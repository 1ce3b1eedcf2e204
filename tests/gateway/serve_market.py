"""A gateway with a keyspace in a process of its own, so that its memory can be looked at."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from tests.gateway.market import Accounts

import headrace
from headrace.config import HeadraceSettings
from headrace.gateway import serving


def serve_market(folder: str) -> None:
    """Serve until the input ends; print the address."""

    async def run() -> None:
        settings = HeadraceSettings.model_validate(
            {
                "log": {"address": f"embedded:{folder}"},
                "registry": {"address": "memory:"},
                "cluster": {"node_id": "n1"},
                "gateway": {
                    "listen": "127.0.0.1:0",
                    "max_connections": 20_000,
                    "max_connections_per_address": 20_000,
                    "max_sockets": 20_000,
                },
            }
        )
        async with (
            headrace.connect(settings=settings) as hr,
            hr.node(Accounts),
            serving(hr.gateway(Accounts), settings.gateway) as running,
        ):
            print(f"listening on {running.url}", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    uvloop.run(run())
