"""ask: requests of 200 bytes to the owner of a key, on another node and on the caller's own, beside a gRPC echo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, at_most
from benchmarks.transport import CALLERS, PAYLOAD, Call, measure
from benchmarks.workloads.keyspaces import BenchPlace, Echo, Echoes, NearEchoes
from headrace.testing.processes import running_function

AGAINST = "a unary echo of the same bytes with grpcio's asyncio API, between the same two processes"
REQUESTS = 10_000
SINGLE = 1_000


async def both(remote: Call, local: Call, requests: int, single: int) -> Readings:
    """Return rate and time of one request to an owner elsewhere, and to one in this process."""
    away, here = await measure(remote, requests, single), await measure(local, requests, single)
    return {
        "remote_requests_per_s": away["requests_per_s"],
        "remote_p50_ms": away["one_request_p50_ms"],
        "local_requests_per_s": here["requests_per_s"],
        "local_p50_ms": here["one_request_p50_ms"],
    }


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    requests, single = stage.count(REQUESTS, least=CALLERS * 5), stage.count(SINGLE, least=100)
    place = BenchPlace(f"embedded:{stage.folder / 'log'}", "", str(stage.folder / "state"))
    with running_function("benchmarks.workloads.keyspaces:serve_echoes", *place, "owner") as child:
        found = await asyncio.to_thread(child.wait_for_line, r"listening on (\S+)", 60)
        async with place.node("caller", NearEchoes) as (hr, _), grpc.aio.insecure_channel(found[1]) as channel:
            away, near, message = hr.keyspace(Echoes), hr.keyspace(NearEchoes), Echo("key", PAYLOAD)
            echo: Any = channel.unary_unary("/bench/Echo")

            async def bound() -> Readings:
                return await both(
                    lambda: echo(PAYLOAD, timeout=60), lambda: echo(PAYLOAD, timeout=60), requests, single
                )

            yield Contest(lambda: both(lambda: away.ask(message), lambda: near.ask(message), requests, single), bound)


BENCH = Bench(
    name="ask",
    work=f"asks of {len(PAYLOAD)} bytes, answered by a handler that only reads: {CALLERS} callers, then one",
    measures=(
        Measure("remote_requests_per_s", unit="requests/s", against=AGAINST, target=at_least(0.5)),
        Measure("remote_p50_ms", unit="ms", against=AGAINST, target=at_most(2)),
        Measure("local_requests_per_s", unit="requests/s", against=AGAINST, target=at_least(0.5)),
        Measure("local_p50_ms", unit="ms", against=AGAINST, target=at_most(2)),
    ),
    setup=setup,
)
