"""Gateways for benches, in processes of their own, beside servers that only answer with a constant."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, cast

import uvloop

import headrace
from benchmarks.harness import stopwatch
from headrace.config import HeadraceSettings
from headrace.engine import Engine
from headrace.gateway import GatewayApp, serving
from headrace.keyspace import Keyspace, State, state
from headrace.runtime import rare_collections

__all__ = [
    "BenchValue",
    "BenchValues",
    "CountUp",
    "counters",
    "gateway_settings",
    "run_fast",
    "serve_counters",
    "serve_values",
]

KEY_PATH = "/keyspaces/bench-values/states/values/key"
PAYLOAD = "x" * 180


@dataclass(frozen=True)
class BenchValue:
    """A value of about 200 bytes."""

    text: str
    number: int = 0


class BenchValues(Keyspace, name="bench-values", partitions=1, replicas=1, store="memory"):
    """Values by key."""

    values: State[str, BenchValue] = state()


@dataclass(frozen=True)
class Counted:
    """The state of a counter."""

    total: int


@dataclass(frozen=True)
class CountUp:
    """Add to a counter."""

    by: int
    text: str = ""


@dataclass(frozen=True)
class WasCounted:
    """Something was added."""

    by: int
    text: str


counters: Engine[Counted] = Engine("bench-counters", state=Counted, partitions=1)


@counters.command
def count_up(counted: Counted | None, command: CountUp) -> WasCounted:
    return WasCounted(command.by, command.text)


@counters.event
def was_counted(counted: Counted | None, event: WasCounted) -> Counted:
    return Counted((counted.total if counted else 0) + event.by)


class ConstantAnswer:
    """An ASGI application with one answer, served in the gateway's place by the same server."""

    plain_reads = plain_commands = None

    def __init__(self, body: bytes) -> None:
        self._start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        }
        self._body = {"type": "http.response.body", "body": body}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - as ASGI has it
        if scope["type"] == "http":
            await send(self._start)
            await send(self._body)

    def close_streams(self) -> None:
        """End all streams: there are none."""

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Record charts: there are none."""
        yield


def _beside(store: str) -> str:
    """Return a folder for copies beside an embedded store: a log on Kafka has none of its own."""
    return f"{store.removeprefix('embedded:')}/copies"


def gateway_settings(address: str, store: str | None = None, **gateway: Any) -> HeadraceSettings:  # noqa: ANN401
    """Return the settings of a node that serves a gateway at any free port."""
    return HeadraceSettings.model_validate(
        {
            "log": {"address": address},
            **({"store": {"address": store}, "keyspace": {"state_dir": _beside(store)}} if store is not None else {}),
            "registry": {"address": "memory:"},
            "cluster": {"name": "bench", "node_id": "n1"},
            "gateway": {"listen": "127.0.0.1:0", "max_connections_per_address": 20_000, **gateway},
        }
    )


def run_fast(main: Coroutine[Any, Any, None]) -> None:
    """Run a server on the kind of loop, and with as few collections of garbage, as `headrace gateway run` does."""
    with rare_collections():
        uvloop.run(main)


def serve_values(address: str) -> None:
    """Serve one key through the gateway and the same bytes as a constant; print both addresses."""

    async def run() -> None:
        settings = gateway_settings(address)
        async with headrace.connect(settings=settings) as hr, hr.node(BenchValues):
            await hr.keyspace(BenchValues).put("values", "key", BenchValue(PAYLOAD))
            constant = cast("GatewayApp", ConstantAnswer(b'{"type":"BenchValue","data":"' + PAYLOAD.encode() + b'"}'))
            async with (
                serving(hr.gateway(BenchValues), settings.gateway) as ours,
                serving(constant, settings.gateway) as theirs,
            ):
                print(f"listening on {ours.url} and {theirs.url}", flush=True)
                await asyncio.to_thread(sys.stdin.readline)

    run_fast(run())


def serve_counters(address: str, store: str) -> None:
    """Serve an engine through the gateway, print its address, and measure the engine itself when told to.

    The store is not written to: nothing is replicated here. A line of the input is how many commands to send, and how
    many of them at a time.
    """

    async def run() -> None:
        settings = gateway_settings(address, store)
        async with headrace.connect(settings=settings) as hr, hr.node(counters):
            engine = hr.engine(counters)

            async def sender(aggregate: int, count: int) -> None:
                for _ in range(count):
                    await engine.aggregate(f"a-{aggregate}").send(CountUp(1, PAYLOAD))

            async with serving(hr.gateway(counters), settings.gateway) as ours:
                print(f"listening on {ours.url}", flush=True)
                while line := await asyncio.to_thread(sys.stdin.readline):
                    commands, senders = map(int, line.split())
                    with stopwatch() as watch:
                        await asyncio.gather(*(sender(each, commands // senders) for each in range(senders)))
                    print(f"rate {watch.rate(commands // senders * senders)}", flush=True)

    run_fast(run())
