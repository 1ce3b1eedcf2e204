"""A gateway over an embedded connection, asked without a network; and one that serves at a port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.app import Headrace, connect
from headrace.config import HeadraceSettings
from headrace.gateway import GatewayApp, RunningGateway, serving
from headrace.journal import JOURNAL_TOPIC

Client = httpx.AsyncClient
NewClient = Callable[..., Client]
Serve = Callable[..., Any]


def settings_with(**gateway: Any) -> HeadraceSettings:
    return HeadraceSettings.model_validate({"registry": {"address": "memory:"}, "gateway": gateway})


@pytest.fixture
async def hr(tmp_path: Path) -> AsyncIterator[Headrace]:
    async with connect(f"embedded:{tmp_path}", settings=settings_with()) as opened:
        await opened.log.admin.create("accounts", partitions=2, config=JOURNAL_TOPIC)
        yield opened


def app_of(hr: Headrace, *, routes: Any = (), beside: Any = None, **gateway: Any) -> GatewayApp:
    hr.settings = settings_with(**gateway)
    return hr.gateway(routes=routes, beside=beside)


@pytest.fixture
async def new_client(hr: Headrace) -> AsyncIterator[NewClient]:
    """Return `new_client(**settings of the gateway)`; two clients are two gateways on one log and store."""
    async with AsyncExitStack() as opened:

        def new(*, routes: Any = (), beside: Any = None, headers: Any = None, **gateway: Any) -> Client:
            app = app_of(hr, routes=routes, beside=beside, **gateway)
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            client = Client(transport=transport, base_url="http://localhost", headers=headers)
            opened.push_async_callback(client.aclose)
            return client

        yield new


@pytest.fixture
def client(new_client: NewClient) -> Client:
    """Return a client of a gateway with the default settings."""
    return new_client()


@pytest.fixture
def serve(hr: Headrace) -> Serve:
    """Return `serve(**settings)`, a block in which a real server listens at a free port."""

    @asynccontextmanager
    async def run(*, routes: Any = (), beside: Any = None, **gateway: Any) -> AsyncIterator[RunningGateway]:
        given = {"listen": "127.0.0.1:0", **gateway}
        app = app_of(hr, routes=routes, beside=beside, **given)
        async with serving(app, hr.settings.gateway) as running:
            yield running

    return run
