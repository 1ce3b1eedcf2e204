"""`headrace gateway`: journals, events by tag, schemas and keyspaces over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.app import Headrace
from headrace.cli.options import Address, AsJson, StoreAddress, answer, with_headrace
from headrace.config import GatewaySettings
from headrace.engine import Engine
from headrace.errors import BadArgument
from headrace.keyspace import App, Keyspace
from headrace.runtime import load_named, raise_open_files, rare_collections, shutdown_on_signals

if TYPE_CHECKING:  # it needs the extra `gateway`
    from headrace.gateway import GatewayApp

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Served = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:NAME",
        help="An App, a Keyspace or an Engine, which other nodes run, or an ASGI application to serve beside.",
    ),
]


@app.command("run")
def run(
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen. Default: gateway.listen.")
    ] = None,
    served: Served = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Serve journals, events by tag, schemas and keyspaces over HTTP until interrupted.

    Example: headrace gateway run --listen 127.0.0.1:8080 --app shop.market:app
    """
    found = load_named("app", served, _APP_RULE) if served is not None else None
    if served is not None and not (callable(found) or isinstance(found, App | Engine)):
        raise BadArgument("app", served, f"{_APP_RULE}; this is of type {type(found).__name__}")

    raise_open_files()

    async def use(hr: Headrace) -> None:
        if listen is not None:
            changed = hr.settings.gateway.model_copy(update={"listen": listen})
            hr.settings = hr.settings.model_copy(update={"gateway": changed})
        async with shutdown_on_signals() as stopping, _gateway_of(hr, found) as gateway:
            with rare_collections():
                await _serve(gateway, hr.settings.gateway, stopping, as_json=as_json)

    with_headrace(address, store, use, loop_factory=_fastest_loop())


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the kind of loop to serve with: uvloop's, which does not exist for every platform."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.asynccontextmanager
async def _gateway_of(hr: Headrace, found: Any) -> AsyncIterator[GatewayApp]:  # noqa: ANN401 - whatever was named
    """Make the gateway. Keyspaces and engines need a node, which has no partitions of its own: it only calls others."""
    is_keyspace = isinstance(found, type) and issubclass(found, Keyspace)
    if is_keyspace or isinstance(found, App | Engine):
        async with hr.node():
            yield hr.gateway(found)
    else:
        yield hr.gateway(beside=found)


async def _serve(gateway: GatewayApp, settings: GatewaySettings, stopping: asyncio.Event, *, as_json: bool) -> None:
    from headrace.gateway import serving

    async with serving(gateway, settings) as running:
        console = f"{running.url}/console" if settings.console else None
        text = f"the gateway serves {running.url}; see {running.url}/docs" + (f" and {console}" if console else "")
        answer(text, as_json=as_json, url=running.url, console=console)
        running.ended.add_done_callback(lambda _: stopping.set())  # a server that failed must not look alive
        await stopping.wait()


_APP_RULE = "name an App, a Keyspace, an Engine or an ASGI application as module:name, such as shop.market:app"


@app.command("openapi")
def openapi(
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Print the description of all routes, OpenAPI 3.1, without serving them.

    Example: headrace gateway openapi --json
    """

    async def use(hr: Headrace) -> dict[str, object]:
        return hr.gateway().description()

    found = with_headrace(address, store, use)
    typer.echo(json.dumps(found, ensure_ascii=False, indent=None if as_json else 2))
