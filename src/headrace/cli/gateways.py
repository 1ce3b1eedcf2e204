"""`headrace gateway`: journals, events by tag and schemas over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from headrace.app import Headrace
from headrace.cli.loader import load
from headrace.cli.options import Address, AsJson, StoreAddress, answer, with_headrace
from headrace.runtime import shutdown_on_signals

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Beside = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:NAME", help="An ASGI application to serve beside the gateway's routes."),
]


@app.command("run")
def run(
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen. Default: gateway.listen.")
    ] = None,
    beside: Beside = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Serve journals, events by tag and schemas over HTTP until interrupted.

    Example: headrace gateway run --listen 127.0.0.1:8080
    """

    async def use(hr: Headrace) -> None:
        from headrace.gateway import serving

        if listen is not None:
            changed = hr.settings.gateway.model_copy(update={"listen": listen})
            hr.settings = hr.settings.model_copy(update={"gateway": changed})
        gateway = hr.gateway(beside=load("app", beside, _APP_RULE) if beside is not None else None)
        async with shutdown_on_signals() as stopping, serving(gateway, hr.settings.gateway) as running:
            answer(f"the gateway serves {running.url}; see {running.url}/docs", as_json=as_json, url=running.url)
            stop = asyncio.create_task(stopping.wait())
            running.ended.add_done_callback(lambda _: stopping.set())  # a server that failed must not look alive
            await stop

    with_headrace(address, store, use)


_APP_RULE = "name an ASGI application as module:name, such as shop.web:app"


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
