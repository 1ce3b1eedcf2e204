"""What the children of the cluster's tests do, each in a process of its own. They report by printing lines."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.cluster.server import IncomingRequest, NodeServer
from headrace.config import ClusterSettings


def serve_slowly(listen: str, node: str) -> None:
    """Serve `echo`, and `wait`, which never replies; print how many wait."""

    async def run() -> None:
        waiting = 0

        async def echo(request: IncomingRequest) -> bytes:
            return request.payload

        async def wait(request: IncomingRequest) -> bytes:
            nonlocal waiting
            waiting += 1
            print(f"waiting {waiting}", flush=True)
            await asyncio.Event().wait()
            return b""

        server = NodeServer(node, {"echo": echo, "wait": wait}, ClusterSettings(name="c", listen=listen))
        await server.start()
        print(f"listening on {server.address}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


def run_node(folder: str, node_id: str) -> None:
    """Be a node that takes what it is proposed for, until killed."""
    from tests.cluster.test_node import Owning

    async def run() -> None:
        owning = Owning(node_id, Path(folder))
        await owning.start()
        print("started", flush=True)
        await owning.node.wait()

    asyncio.run(run())
