"""`headrace node`: run a node of a cluster with the keyspaces and engines of an application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from headrace.access import host_and_port
from headrace.app import Headrace, RunningNode
from headrace.cli.options import Address, AsJson, StoreAddress, answer, creating_headrace
from headrace.config import HeadraceSettings
from headrace.engine import Engine
from headrace.errors import BadArgument
from headrace.keyspace import App, Keyspace
from headrace.observe import Health, HealthState, get_logger
from headrace.runtime import load_named, raise_open_files, rare_collections, shutdown_on_signals

if TYPE_CHECKING:  # it needs the extra `gateway`
    from headrace.gateway import RunningGateway

__all__ = ["app", "load_part", "watch_health"]

_NodePart: TypeAlias = App | type[Keyspace] | Engine[Any]

app = typer.Typer(no_args_is_help=True)
_logger = get_logger(__name__)


@app.callback()
def group() -> None:
    """Nodes that serve keyspaces and engines."""


@app.command("run")
def run(
    where: Annotated[
        list[str],
        typer.Argument(metavar="MODULE:NAME", help="Apps, Keyspaces and Engines, as in shop.market:app."),
    ],
    node_id: Annotated[
        str | None, typer.Option("--node-id", help="This node's id, the same after a restart. Default: its address.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where other nodes reach this one.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve the gateway and its console here, too; port 0: any."),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option("--grpc", metavar="HOST:PORT", help="Where other programs send commands. Default: grpc.listen."),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="When stopped, hand everything over to other nodes first.")
    ] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Run a node until it is stopped. At the start it prints what it serves, and which partitions have no owner yet.

    With --http the gateway runs inside the node, on the same connection, with the console at /console.

    Example: headrace node run shop.market:app --node-id node-1
    """
    parts = [load_part(each) for each in where]
    names = [name for part in parts for name in _names_of(part)]
    if grpc is not None and not any(isinstance(part, Engine) for part in parts):
        raise BadArgument("--grpc", grpc, "commands are sent to engines, and this node would serve none; name one")

    for option, given in (("--listen", listen), ("--http", http), ("--grpc", grpc)):
        if given is not None:
            host_and_port(given, option)
    raise_open_files()

    async def use(hr: Headrace) -> None:
        hr.settings = _with_options(hr.settings, node_id=node_id, listen=listen, grpc=grpc)
        async with shutdown_on_signals() as stopping, hr.node(*parts) as node, _served(hr, parts, http) as gateway:
            _print_start(node, names, gateway, has_console=hr.settings.gateway.console, as_json=as_json)
            with rare_collections():
                await _until_one_ends(stopping, node, gateway)
            if drain and len(node.view.members) > 1:
                await node.drain()

    creating_headrace(address, store, use)


def _with_options(
    settings: HeadraceSettings, *, node_id: str | None, listen: str | None, grpc: str | None
) -> HeadraceSettings:
    """Return the settings with the options that were given."""
    cluster = {"node_id": node_id or settings.cluster.node_id, "listen": listen or settings.cluster.listen}
    sections = {
        "cluster": settings.cluster.model_copy(update=cluster),
        "grpc": settings.grpc.model_copy(update={"listen": grpc or settings.grpc.listen}),
    }
    return settings.model_copy(update=sections)


def _print_start(
    node: RunningNode, names: Sequence[str], gateway: RunningGateway | None, *, has_console: bool, as_json: bool
) -> None:
    """Print what the node serves and where, which partitions have no owner yet, and what does not work."""
    missing = {name: gaps for name in names if (gaps := node.missing(name))}
    health = node.health
    text = f"node {node.id} at {node.address} serves {', '.join(names)}"
    text += f"; without an owner yet: {missing}" if missing else "; every partition has an owner"
    text += f"; it takes commands at {node.grpc_address}" if node.grpc_address else ""
    text += "".join(f"\n{line}" for line in health.complaints())
    is_ready = not missing and health.readiness is not HealthState.DOWN
    facts = {"node": node.id, "address": node.address, "owned": len(node.owned), "ready": is_ready}
    facts["grpc_address"] = node.grpc_address
    if gateway is not None:
        text += f"\nthe gateway serves {gateway.url}"
        text += f", with the console at {gateway.url}/console" if has_console else ""
        facts["url"] = gateway.url
    answer(text, as_json=as_json, **facts, health=health.to_dict())


@contextlib.asynccontextmanager
async def _served(hr: Headrace, parts: Sequence[_NodePart], http: str | None) -> AsyncIterator[RunningGateway | None]:
    """Serve the gateway of the node's own connection while the block runs, if an address is given."""
    if http is None:
        yield None
        return
    from headrace.gateway import serving

    changed = hr.settings.gateway.model_copy(update={"listen": http})
    hr.settings = hr.settings.model_copy(update={"gateway": changed})
    async with serving(hr.gateway(*parts), changed) as running:
        yield running


async def _until_one_ends(stopping: asyncio.Event, node: RunningNode, gateway: RunningGateway | None) -> None:
    """Wait for the signal to stop, or for the end of the node or its gateway: half of them must not look alive."""
    works = (stopping.wait(), node.wait(), watch_health(lambda: node.health))
    waits: list[asyncio.Future[Any]] = [asyncio.create_task(each) for each in works]
    ended: list[asyncio.Future[Any]] = [] if gateway is None else [gateway.ended]
    await asyncio.wait([*waits, *ended], return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        if task.done():
            task.result()
        task.cancel()


async def watch_health(look: Callable[[], Health], *, every_s: float = 1.0) -> None:
    """Log what is wrong with a node whenever that changes, and when nothing is any more; until cancelled."""
    before: list[str] = []
    while True:
        tree = look()
        complaints = list(tree.complaints())
        if complaints and complaints != before:
            _logger.warning("not everything works", of=tree.name, state=str(tree.state), parts=complaints)
        elif before and not complaints:
            _logger.info("everything works again", of=tree.name)
        before = complaints
        await asyncio.sleep(every_s)


def load_part(where: str) -> App | type[Keyspace] | Engine[Any]:
    """Return what a node serves, by `module:name`. Raises BadArgument."""
    rule = "name an App, a Keyspace or an Engine as module:name, such as shop.market:app"
    found = load_named("app", where, rule)
    if isinstance(found, App | Engine) or (isinstance(found, type) and issubclass(found, Keyspace)):
        return found
    raise BadArgument("app", where, f"{rule}; this is of type {type(found).__name__}")


def _names_of(part: App | type[Keyspace] | Engine[Any]) -> list[str]:
    if isinstance(part, App):
        return list(part.keyspaces)
    return [part.name if isinstance(part, Engine) else part.spec.name]
