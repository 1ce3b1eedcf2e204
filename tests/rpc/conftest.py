"""A node that takes commands over gRPC, and a client that is generated from the package's proto files."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import grpc_tools
import pytest
from grpc_tools import protoc
from tests.engine.models import Deposit, Deposited, bank_engine

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.engine import Engine

PROTOS = Path(str(resources.files("headrace.rpc")))
Serving = Callable[..., AbstractAsyncContextManager["Door"]]


class Door:
    """A running node, and what a client needs to call it."""

    def __init__(self, hr: Headrace, client: SimpleNamespace) -> None:
        self.hr = hr
        self.client = client
        assert hr._node is not None
        assert hr._node.grpc_address is not None
        self.node = hr._node
        self.address = hr._node.grpc_address

    @asynccontextmanager
    async def stub(self, credentials: Any = None, **options: Any) -> AsyncIterator[Any]:
        """Open a channel, with a stub of the generated client."""
        channel = (
            grpc.aio.insecure_channel(self.address)
            if credentials is None
            else grpc.aio.secure_channel(self.address, credentials, options=list(options.items()))
        )
        async with channel:
            yield self.client.engines_grpc.EnginesStub(channel)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Any]:
        async with grpc.aio.insecure_channel(self.address) as channel:
            yield channel


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Return the modules that protoc generates from the proto files, as another program would have them."""
    folder = tmp_path_factory.mktemp("client")
    arguments = [
        f"-I{PROTOS}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        "engines.proto",
        "health.proto",
    ]
    assert protoc.main([grpc_tools.__file__, *arguments]) == 0
    sys.path.insert(0, str(folder))
    names = ("engines_pb2", "engines_pb2_grpc", "health_pb2", "health_pb2_grpc")
    engines, engines_grpc, health, health_grpc = (importlib.import_module(name) for name in names)
    yield SimpleNamespace(engines=engines, engines_grpc=engines_grpc, health=health, health_grpc=health_grpc)
    sys.path.remove(str(folder))
    for name in names:
        del sys.modules[name]


def slow_bank(name: str = "slow") -> tuple[Engine[Any], asyncio.Event, asyncio.Event]:
    """Return an engine whose handler waits, an event that it sets when it begins, and one that lets it go on."""
    slow: Engine[int] = Engine(name, state=int, partitions=1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @slow.command
    async def deposit(count: int | None, command: Deposit) -> Deposited:
        begun.set()
        await go_on.wait()
        return Deposited(command.amount)

    @slow.event
    def deposited(count: int | None, event: Deposited) -> int:
        return (count or 0) + event.amount

    return slow, begun, go_on


@pytest.fixture
def serving(tmp_path: Path, client: SimpleNamespace) -> Serving:
    """Return `serving(*engines, **settings of grpc)`, a block in which a node takes commands; the bank by default."""

    @asynccontextmanager
    async def serve(*engines: Engine[Any], **door: Any) -> AsyncIterator[Door]:
        settings = HeadraceSettings.model_validate(
            {"log": {"embedded": {"fsync": False}}, "grpc": {"listen": "127.0.0.1:0", **door}}
        )
        parts = engines or (bank_engine(),)
        async with connect(f"embedded:{tmp_path / 'log'}", settings=settings) as hr, hr.node(*parts):
            yield Door(hr, client)

    return serve
