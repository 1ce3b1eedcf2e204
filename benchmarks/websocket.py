"""websocket: the changes of one key to 1000 sockets through the gateway, beside websockets.broadcast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import websockets
from websockets.asyncio.server import ServerConnection, broadcast, serve

import headrace
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.gateways import KEY_PATH, PAYLOAD, BenchValue, BenchValues, gateway_settings
from headrace.gateway import serving
from headrace.testing.processes import ChildProcess, running_function

SOCKETS = 1_000
CHANGES = 80  # fewer than wait for a slow socket before they are conflated
COUNT = "benchmarks.workloads.socket_load:count_messages"
AGAINST = "websockets.broadcast of the same bytes to as many sockets of the same client"


class Listeners:
    """The process with the sockets, and how many messages it has seen."""

    def __init__(self, child: ChildProcess, sockets: int) -> None:
        self._child = child
        self._sockets = sockets
        self._expected = sockets

    async def opened(self) -> None:
        """Wait until each socket has its first message."""
        await asyncio.to_thread(self._child.wait_for_line, "open", 120)

    async def rate(self, changes: int, send: Callable[[int], Awaitable[None]]) -> Readings:
        """Return how many messages arrive in a second while changes are sent."""
        self._expected += changes * self._sockets
        with stopwatch() as watch:
            self._child.send_line(str(self._expected))
            for number in range(changes):
                await send(number)
            found = await asyncio.to_thread(self._child.wait_for_line, r"counted (\d+)", 120)
        if int(found[1]) != self._expected:
            raise BenchFailed(f"{found[1]} messages arrived, not {self._expected}")
        return {"messages_per_s": watch.rate(changes * self._sockets)}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    sockets, changes = stage.count(SOCKETS, least=10), stage.count(CHANGES, least=5)
    settings = gateway_settings(f"embedded:{stage.folder / 'log'}")
    joined: set[ServerConnection] = set()

    async def join(connection: ServerConnection) -> None:
        joined.add(connection)
        await connection.send(b"present")
        await connection.wait_closed()

    async with (
        headrace.connect(settings=settings) as hr,
        hr.node(BenchValues),
        serving(hr.gateway(BenchValues), settings.gateway) as ours,
        serve(join, "127.0.0.1", 0, compression=None) as theirs,
    ):
        values = hr.keyspace(BenchValues)
        await values.put("values", "key", BenchValue(PAYLOAD))
        async with websockets.connect(ours.url.replace("http", "ws") + KEY_PATH) as one:
            message = await one.recv()
        port = theirs.sockets[0].getsockname()[1]
        with (
            running_function(COUNT, ours.url + KEY_PATH, str(sockets)) as at_ours,
            running_function(COUNT, f"http://127.0.0.1:{port}/", str(sockets)) as at_theirs,
        ):
            work, bound = Listeners(at_ours, sockets), Listeners(at_theirs, sockets)
            await work.opened()
            await bound.opened()

            async def put(number: int) -> None:
                await values.put("values", "key", BenchValue(PAYLOAD, number))

            async def tell(number: int) -> None:
                broadcast(joined, message)
                await asyncio.sleep(0)

            yield Contest(lambda: work.rate(changes, put), lambda: bound.rate(changes, tell))


BENCH = Bench(
    name="websocket",
    work=f"{CHANGES} changes of one key, one after the other, to {SOCKETS} WebSockets that follow it, embedded",
    measures=(Measure("messages_per_s", unit="messages/s", against=AGAINST, target=at_least(0.5)),),
    setup=setup,
)
