"""`headrace keyspace`: look at keyspaces, pause and resume one, and give one another number of partitions."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from headrace.app import Headrace
from headrace.cli.options import Address, AsJson, answer, confirm, with_headrace
from headrace.errors import BadArgument
from headrace.keyspace import App, Keyspace, KeyspaceLayouts, change_phase, resize_keyspace
from headrace.runtime import load_named

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="KEYSPACE", help="The keyspace's name.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show how many partitions a keyspace has, and in which generation of its topics.

    Example: headrace keyspace show accounts
    """

    async def use(hr: Headrace) -> None:
        layouts = KeyspaceLayouts(hr.log, hr.settings.cluster.name)
        await layouts.open()
        layout = layouts.get(name)
        await layouts.close()
        if layout is None:
            raise BadArgument("keyspace", name, f"no node of cluster {hr.settings.cluster.name!r} has served it yet")
        state = {"copying": "is being resized", "paused": "is paused", "serving": "is served"}[layout.phase]
        text = f"{name} has {layout.partitions} partitions, in generation {layout.generation}, and {state}"
        facts = {"partitions": layout.partitions, "generation": layout.generation, "phase": layout.phase}
        answer(text, as_json=as_json, keyspace=name, **facts)

    with_headrace(address, None, use)


@app.command("pause")
def pause(
    name: Annotated[str, typer.Argument(metavar="KEYSPACE", help="The keyspace's name.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Stop serving a keyspace until it is resumed; its callers wait. For bulk loads.

    Example: headrace keyspace pause accounts
    """
    _change(name, "paused", "is paused; its callers wait until: headrace keyspace resume", address, as_json=as_json)


@app.command("resume")
def resume(
    name: Annotated[str, typer.Argument(metavar="KEYSPACE", help="The keyspace's name.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Let a keyspace that was paused be served again.

    Example: headrace keyspace resume accounts
    """
    _change(name, "serving", "is served again", address, as_json=as_json)


def _change(name: str, phase: Literal["serving", "paused"], said: str, address: str | None, *, as_json: bool) -> None:
    async def use(hr: Headrace) -> None:
        layout = await change_phase(hr.log, hr.settings.cluster.name, name, phase)
        answer(f"{name} {said}", as_json=as_json, keyspace=name, phase=layout.phase)

    with_headrace(address, None, use)


@app.command("resize")
def resize(
    where: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The keyspace's class, as in shop.market:Offers.")
    ],
    partitions: Annotated[int, typer.Option("--partitions", help="How many it shall have.")],
    delete_old: Annotated[bool, typer.Option("--delete-old", help="Delete the old topics when it is done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Give a keyspace another number of partitions. Its callers wait while it is copied; nodes continue automatically.

    Example: headrace keyspace resize shop.market:Offers --partitions 16
    """
    rule = "name a Keyspace as module:name, such as shop.market:Offers"
    kind = load_named("keyspace", where, rule)
    if isinstance(kind, App) or not (isinstance(kind, type) and issubclass(kind, Keyspace)):
        raise BadArgument("keyspace", where, f"{rule}; this is of type {type(kind).__name__}")
    if partitions < 1:
        raise BadArgument("--partitions", partitions, "a keyspace has at least 1")
    confirm(f"Nobody serves {kind.spec.name} while it is copied. Resize it to {partitions} partitions?", is_sure=yes)

    async def use(hr: Headrace) -> None:
        def tell(what: str) -> None:
            typer.echo(f"{kind.spec.name}: {what}", err=True)

        done = await resize_keyspace(hr.log, hr.settings, kind, partitions, on_progress=tell)
        if delete_old:
            for topic in done.old_topics:
                await hr.log.admin.delete(topic)
        rest = "" if delete_old else f"; the old topics are not used any more: {', '.join(done.old_topics)}"
        text = f"{done.keyspace} has {done.partitions} partitions now, {done.records} records were copied{rest}"
        facts = {"partitions": done.partitions, "generation": done.generation, "records": done.records}
        answer(text, as_json=as_json, keyspace=done.keyspace, old_topics=list(done.old_topics), **facts)

    with_headrace(address, None, use)
