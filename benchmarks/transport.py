"""transport: requests of 200 bytes to another process, many at once and one at a time, beside a bare gRPC echo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, at_most, p50, stopwatch
from headrace.cluster.client import Peer
from headrace.cluster.server import IncomingRequest, NodeServer
from headrace.config import ClusterSettings
from headrace.testing.processes import running_function

AGAINST = "a unary echo of plain bytes with grpcio's asyncio API, on one channel"
PAYLOAD = bytes(range(200))
REQUESTS = 20_000
SINGLE = 2_000
CALLERS = 100
SETTINGS = ClusterSettings(name="bench")

Call: TypeAlias = Callable[[], Awaitable[object]]


def serve() -> None:
    """Serve both echoes, print their addresses, and stay until killed."""
    asyncio.run(_serve())


async def _serve() -> None:
    async def echo(request: IncomingRequest) -> bytes:
        return request.payload

    async def bare(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
        return request

    ours = NodeServer("node", {"echo": echo}, SETTINGS)
    await ours.start()
    theirs = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(bare)
    theirs.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
    port = theirs.add_insecure_port("127.0.0.1:0")
    await theirs.start()
    print(f"listening on {ours.address} and 127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


async def measure(call: Call, requests: int, single: int) -> Readings:
    """Return the rate of many callers, and how long one request of a single caller takes."""

    async def caller(count: int) -> None:
        for _ in range(count):
            await call()

    with stopwatch() as watch:
        await asyncio.gather(*(caller(requests // CALLERS) for _ in range(CALLERS)))
    rate = requests // CALLERS * CALLERS / watch.seconds
    return {"requests_per_s": rate, "one_request_p50_ms": p50(await one_by_one(call, single))}


async def one_by_one(call: Call, count: int) -> Sequence[float]:
    """Return the seconds of each request when there is only one at a time."""
    seen: list[float] = []
    for _ in range(count):
        with stopwatch() as watch:
            await call()
        seen.append(watch.seconds)
    return seen


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    requests, single = stage.count(REQUESTS, least=CALLERS * 5), stage.count(SINGLE, least=100)
    with running_function("benchmarks.transport:serve") as child:
        found = await asyncio.to_thread(child.wait_for_line, r"listening on (\S+) and (\S+)", 30)
        peer = Peer(found[1], node="bench", settings=SETTINGS)
        async with grpc.aio.insecure_channel(found[2]) as channel:
            echo: Any = channel.unary_unary("/bench/Echo")
            try:
                yield Contest(
                    lambda: measure(lambda: peer.call("echo", PAYLOAD, timeout_s=60), requests, single),
                    lambda: measure(lambda: echo(PAYLOAD, timeout=60), requests, single),
                )
            finally:
                await peer.close()


BENCH = Bench(
    name="transport",
    work=f"requests of {len(PAYLOAD)} bytes to another process and back: {CALLERS} callers, then one",
    measures=(
        Measure("requests_per_s", unit="requests/s", against=AGAINST, target=at_least(0.5)),
        Measure("one_request_p50_ms", unit="ms", against=AGAINST, target=at_most(2)),
    ),
    setup=setup,
)
