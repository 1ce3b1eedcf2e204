"""`headrace node`: run a node of a cluster with the keyspaces and engines of an application."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from headrace.app import Headrace
from headrace.cli.loader import load
from headrace.cli.options import Address, AsJson, StoreAddress, answer, creating_headrace
from headrace.engine import Engine
from headrace.errors import BadArgument
from headrace.keyspace import App, Keyspace
from headrace.runtime import rare_collections, shutdown_on_signals

__all__ = ["app", "load_part"]

app = typer.Typer(no_args_is_help=True)


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
    """Run a node until it is stopped. It says when every partition has an owner.

    Example: headrace node run shop.market:app --node-id node-1
    """
    parts = [load_part(each) for each in where]
    names = [name for part in parts for name in _names_of(part)]
    if grpc is not None and not any(isinstance(part, Engine) for part in parts):
        raise BadArgument("--grpc", grpc, "commands are sent to engines, and this node would serve none; name one")

    async def use(hr: Headrace) -> None:
        cluster = hr.settings.cluster
        changes = {"node_id": node_id or cluster.node_id, "listen": listen or cluster.listen}
        door = hr.settings.grpc.model_copy(update={"listen": grpc or hr.settings.grpc.listen})
        sections = {"cluster": cluster.model_copy(update=changes), "grpc": door}
        hr.settings = hr.settings.model_copy(update=sections)
        async with shutdown_on_signals() as stopping, hr.node(*parts) as node:
            missing = {name: gaps for name in names if (gaps := node.missing(name))}
            text = f"node {node.id} at {node.address} serves {', '.join(names)}"
            text += f"; without an owner yet: {missing}" if missing else "; every partition has an owner"
            text += f"; it takes commands at {node.grpc_address}" if node.grpc_address else ""
            facts = {"node": node.id, "address": node.address, "grpc_address": node.grpc_address}
            answer(text, as_json=as_json, **facts, owned=len(node.owned), ready=not missing)
            waits = [asyncio.create_task(each) for each in (stopping.wait(), node.wait())]
            with rare_collections():
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                if task.done():
                    task.result()
                task.cancel()
            if drain and len(node.view.members) > 1:
                await node.drain()

    creating_headrace(address, store, use)


def load_part(where: str) -> App | type[Keyspace] | Engine[Any]:
    """Return what a node serves, by `module:name`. Raises BadArgument."""
    rule = "name an App, a Keyspace or an Engine as module:name, such as shop.market:app"
    found = load("app", where, rule)
    if isinstance(found, App | Engine) or (isinstance(found, type) and issubclass(found, Keyspace)):
        return found
    raise BadArgument("app", where, f"{rule}; this is of type {type(found).__name__}")


def _names_of(part: App | type[Keyspace] | Engine[Any]) -> list[str]:
    if isinstance(part, App):
        return list(part.keyspaces)
    return [part.name if isinstance(part, Engine) else part.spec.name]
