"""`headrace projection`: run, rebuild and look at projections that an application defines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from headrace.app import Headrace
from headrace.cli.asking import Address, AsJson, StoreAddress, with_headrace
from headrace.cli.tag_loading import load
from headrace.cli.tags import after_of_text
from headrace.errors import BadArgument
from headrace.observe import progress_on
from headrace.projection import Projection, ProjectionRunner, open_target, rebuild
from headrace.projection.ports import Target
from headrace.projection.slots import earliest
from headrace.runtime import shutdown_on_signals

__all__ = ["app", "load_projection"]

app = typer.Typer(no_args_is_help=True)

T = TypeVar("T")

Where = Annotated[str, typer.Argument(help="Where the projection is, as in shop.projections:orders.")]


@app.command("run")
def run(
    where: Where,
    worker: Annotated[int, typer.Option(help="Which of the workers this is, from 0.")] = 0,
    workers: Annotated[int, typer.Option(help="How many workers share the projection.")] = 1,
    current: Annotated[bool, typer.Option("--current", help="Stop after what is there now.")] = False,
    address: Address = None,
    store: StoreAddress = None,
) -> None:
    """Feed a projection's handler, from where it is, until stopped; failures are tried again."""

    async def work(hr: Headrace, projection: Projection, target: Target) -> None:
        runner = ProjectionRunner(projection, hr.tags, target, worker=worker, workers=workers)
        if current:
            typer.echo(f"{projection.name}: events handled: {await runner.catch_up()}")
            return
        async with shutdown_on_signals() as stopping:
            await _until(stopping, runner.run())

    _with_target(where, address, store, work)


@app.command("rebuild")
def rebuild_projection(
    where: Where,
    start: Annotated[str | None, typer.Option("--from", help="Only what follows this offset, or this time.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the events.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    address: Address = None,
    store: StoreAddress = None,
) -> None:
    """Reset a projection's work and handle its events again."""
    projection = load_projection(where)
    if not dry_run and not yes:
        typer.confirm(f"reset {projection.name} and handle its events again?", abort=True)

    async def work(hr: Headrace, projection: Projection, target: Target) -> None:
        after = after_of_text(start)
        done = await rebuild(projection, hr.tags, target, start=after, dry_run=dry_run, progress=progress_on())
        word = "would be handled" if dry_run else "handled"
        typer.echo(f"{projection.name}: {done.events} events {word}, {done.events_per_s:,.0f} events/s")

    _with_target(where, address, store, work)


@app.command("status")
def status(where: Where, address: Address = None, store: StoreAddress = None, as_json: AsJson = False) -> None:
    """Show how far a projection is."""

    async def work(_: Headrace, projection: Projection, target: Target) -> dict[str, object]:
        offsets = await target.load()
        first = earliest(offsets)
        time = datetime.fromtimestamp(first.log_time_ms / 1000, UTC).isoformat() if first is not None else None
        begun = sum(offset is not None for offset in offsets.values())
        place = str(first) if first is not None else None
        return {"projection": projection.name, "tag": projection.tag, "slots": len(offsets), "slots_begun": begun,
                "offset": place, "time": time}  # fmt: skip

    found = _with_target(where, address, store, work)
    if as_json:
        typer.echo(json.dumps(found))
        return
    at = f"at {found['time']} (offset {found['offset']})" if found["offset"] else "not all slots have begun"
    begun = f"{found['slots_begun']} of {found['slots']} slots begun"
    typer.echo(f"{found['projection']}: tag {found['tag']}, {begun}, {at}")


def load_projection(where: str) -> Projection:
    """Return the projection that `module:name` names; modules of the current folder are found too."""
    rule = "it must name a Projection, as in shop.projections:orders"
    projection = load("projection", where, rule)
    if not isinstance(projection, Projection):
        raise BadArgument("projection", where, rule)
    return projection


async def _until(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Work until the operator asks to stop, or the work fails for good."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _with_target(
    where: str, address: str | None, store: str | None, work: Callable[[Headrace, Projection, Target], Awaitable[T]]
) -> T:
    projection = load_projection(where)

    async def use(hr: Headrace) -> T:
        target = open_target(projection, hr.store.settings)
        try:
            return await work(hr, projection, target)
        finally:
            await target.close()

    return with_headrace(address, store, use)
