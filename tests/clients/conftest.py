"""A node that owns the keyspaces, a gateway that tests kill and start again, and programs that use the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ed25519
from tests.browser.packages import NodePackages
from tests.browser.pages import Browser, BrowserPage
from tests.clients.market import Sums, free_port, gateway_of, settings_of
from tests.gateway.market import Accounts, purses
from tests.gateway.test_security import Issuer, jwks_of

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.gateway import serving
from headrace.journal import JOURNAL_TOPIC
from headrace.testing import ChildProcess, running_function

PROGRAM = Path(__file__).parent / "program.mjs"


class GatewayProcess:
    """A gateway in a process of its own, always at the same port."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._port = free_port()
        self._starts = 0
        self._held = ExitStack()
        self._child: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._starts += 1
        call = running_function("tests.clients.market:serve", self._folder, f"g{self._starts}", self._port)
        self._child = self._held.enter_context(call)
        await asyncio.to_thread(self._child.wait_for_line, "serving", 60)

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()

    def close(self) -> None:
        self._held.close()


class Market:
    """The node in this process, and the gateway."""

    def __init__(self, hr: Headrace, gateway: GatewayProcess, folder: str) -> None:
        self.hr = hr
        self.gateway = gateway
        self.folder = folder
        self.accounts = hr.keyspace(Accounts)
        self.sums = hr.keyspace(Sums)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    folder = str(tmp_path_factory.mktemp("market"))
    settings = settings_of(folder, "owner")
    async with connect(settings=settings) as hr, hr.node(Accounts, Sums, purses):
        await hr.log.admin.create("orders", partitions=2, config=JOURNAL_TOPIC)
        gateway = GatewayProcess(folder)
        try:
            await gateway.start()
            yield Market(hr, gateway, folder)
        finally:
            gateway.close()


@asynccontextmanager
async def serving_also(hr: Headrace, **gateway: Any) -> AsyncIterator[str]:
    """Serve another gateway in this process, with settings of its own; its address is the value."""
    before = hr.settings
    given = before.model_dump() | {"gateway": {"listen": "127.0.0.1:0", **gateway}}
    hr.settings = HeadraceSettings.model_validate(given)
    try:
        app, settings = gateway_of(hr), hr.settings.gateway
    finally:
        hr.settings = before
    async with serving(app, settings) as running:
        yield running.url


class Relay:
    """A way to the gateway that can be made silent: what is open stays open, and nothing comes through any more."""

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.opened = 0
        self.is_mute = False
        """True while new connections are taken, and nothing comes through from their beginning."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.silence()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def silence(self) -> None:
        """Let nothing through on the connections that there are; new ones work."""
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        if self.is_mute:
            self._writers.append(writer)
            return
        there = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, there[1]]
        for source, target in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()


def new_issuer(folder: Path) -> Issuer:
    """Return an issuer of tokens, whose public key is in a file of the folder."""
    key, file = ed25519.Ed25519PrivateKey.generate(), folder / "keys.json"
    file.write_text(jwks_of(k1=key))
    return Issuer(key, file)


class NodeProgram:
    """A program in Node that has the client."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def evaluate(self, code: str, arg: Any = None) -> Any:
        """Run the body of an async function with `arg`, and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"code": code, "arg": arg}).encode() + b"\n")
        async with asyncio.timeout(40):
            line = await self._process.stdout.readline()
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]


@asynccontextmanager
async def running_node(packages: NodePackages) -> AsyncIterator[NodeProgram]:
    process = await asyncio.create_subprocess_exec(
        *packages.command(PROGRAM),
        env=packages.environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        yield NodeProgram(process)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def open_page(browser: Browser, url: str) -> AsyncIterator[BrowserPage]:
    page = BrowserPage(browser)
    await page.open()
    try:
        await page.goto(f"{url}/page")
        await page.until("globalThis.headrace !== undefined || arg", bool(await page.errors()))
        assert await page.errors() == []
        yield page
    finally:
        await page.close()


@pytest_asyncio.fixture(loop_scope="module")
async def node_program(node_packages: NodePackages) -> AsyncIterator[NodeProgram]:
    """Return a program in Node that has the client."""
    async with running_node(node_packages) as program:
        yield program


@pytest_asyncio.fixture(loop_scope="module", params=["node", "browser"])
async def program(
    request: pytest.FixtureRequest, market: Market, node_packages: NodePackages, browser: Browser
) -> AsyncIterator[NodeProgram | BrowserPage]:
    """Return a program that has the client: in Node, and in a page of the gateway's own origin."""
    if request.param == "node":
        async with running_node(node_packages) as program:
            yield program
    else:
        async with open_page(browser, market.gateway.url) as page:
            yield page
