"""Nodes that serve a keyspace, in processes of their own, for benches."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import grpc.aio

import headrace
from headrace.app import Headrace, RunningNode
from headrace.config import ClusterSettings, HeadraceSettings, KeyspaceSettings, LogSettings
from headrace.keyspace import Keyspace, State, handles, state

__all__ = [
    "Add",
    "BenchCounters",
    "BenchPlace",
    "BenchValues",
    "Echo",
    "Echoes",
    "NearEchoes",
    "serve_counters",
    "serve_echoes",
]


class BenchPlace(NamedTuple):
    """Where a cluster is: its log, its coordinator (empty: where the log is), the folder of its copies."""

    log: str
    coordinator: str
    folder: str

    def settings(self, node: str) -> HeadraceSettings:
        """Return the settings of a node."""
        cluster = ClusterSettings(name="bench", node_id=node, coordinator=self.coordinator or None)
        keyspace = KeyspaceSettings(state_dir=self.folder)
        return HeadraceSettings(log=LogSettings(address=self.log), cluster=cluster, keyspace=keyspace)

    @asynccontextmanager
    async def node(self, name: str, *kinds: type[Keyspace]) -> AsyncIterator[tuple[Headrace, RunningNode]]:
        """Run a node in this process."""
        async with headrace.connect(settings=self.settings(name)) as hr, hr.node(*kinds) as node:
            yield hr, node


@dataclass
class Echo:
    """Some bytes to send back."""

    id: str
    data: bytes


class Echoes(Keyspace, partitions=1, replicas=1, store="memory"):
    """Answers without writing, so that only the way to the owner and back is measured."""

    @handles(read=True)
    async def echo(self, message: Echo) -> bytes:
        """Send it back."""
        return message.data


class NearEchoes(Keyspace, partitions=1, replicas=1, store="memory"):
    """The same, served by the caller's own node."""

    @handles(read=True)
    async def echo(self, message: Echo) -> bytes:
        """Send it back."""
        return message.data


@dataclass
class Add:
    """Add one to a counter."""

    id: str


class BenchCounters(Keyspace, partitions=1, replicas=2):
    """A counter for each key."""

    totals: State[str, int] = state()

    @handles
    async def add(self, message: Add) -> int:
        """Count."""
        total = (await self.totals.get(message.id) or 0) + 1
        await self.totals.put(message.id, total)
        return total


class BenchValues(Keyspace, partitions=1, replicas=1, store="memory"):
    """Values of bytes, which callers put and get themselves."""

    values: State[str, bytes] = state()


def serve_echoes(log: str, coordinator: str, folder: str, name: str) -> None:
    """Serve the keyspace and a bare gRPC echo, print the address of the latter, and stay until killed."""

    async def bare(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
        return request

    async def run() -> None:
        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(bare)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with BenchPlace(log, coordinator, folder).node(name, Echoes):
            print(f"listening on 127.0.0.1:{port}", flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


def serve_counters(log: str, coordinator: str, folder: str) -> None:
    """Get ready, become the node that the first line of the input names, and serve the counters until it ends."""

    async def run() -> None:
        print("ready", flush=True)
        name = (await asyncio.to_thread(sys.stdin.readline)).strip()
        if not name:
            return
        async with BenchPlace(log, coordinator, folder).node(name, BenchCounters):
            print("started", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    asyncio.run(run())
