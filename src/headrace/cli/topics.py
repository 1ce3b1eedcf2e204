"""`headrace topic`: topics of the log, on either tier."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.asking import Address, AsJson, StoreAddress, with_headrace
from headrace.journal import grow_topic
from headrace.log import Log
from headrace.model import Cleanup, Topic, TopicConfig, TopicPartition

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_topics(address: Address = None, as_json: AsJson = False) -> None:
    """List the topics."""
    names = with_headrace(address, None, lambda hr: hr.log.admin.topics())
    typer.echo(json.dumps(list(names)) if as_json else "\n".join(names) or "no topics yet")


@app.command("create")
def create(
    topic: str,
    partitions: Annotated[int, typer.Option(help="How many partitions.")] = 1,
    cleanup: Annotated[Cleanup, typer.Option(help="What happens to old records.")] = Cleanup.DELETE,
    retention_ms: Annotated[int, typer.Option(help="Keep records that long; 0: for ever.")] = 7 * 24 * 3600 * 1000,
    address: Address = None,
) -> None:
    """Make a topic."""
    config = TopicConfig(cleanup=cleanup, retention_ms=retention_ms or None)
    made = with_headrace(address, None, lambda hr: hr.log.admin.create(topic, partitions=partitions, config=config))
    typer.echo(f"created {made.name} with {made.partitions} partition{'s' if made.partitions != 1 else ''}")


@app.command("describe")
def describe(topic: str, address: Address = None, as_json: AsJson = False) -> None:
    """Show a topic's configuration and what its partitions hold."""
    found, bounds = with_headrace(address, None, lambda hr: _describe(hr.log, topic))
    if as_json:
        partitions = [{"partition": n, "start": b[0], "end": b[1]} for n, b in enumerate(bounds)]
        typer.echo(json.dumps({**msgspec.to_builtins(found), "partitions": partitions}))
        return
    typer.echo(f"{found.name}  id {found.topic_id}")
    for name, value in msgspec.to_builtins(found.config).items():
        typer.echo(f"  {name} = {value}")
    table = Table("partition", "start", "end", box=None)
    for partition, (start, end) in enumerate(bounds):
        table.add_row(str(partition), str(start), str(end))
    Console().print(table)


@app.command("delete")
def delete(
    topic: str,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    address: Address = None,
) -> None:
    """Remove a topic with all it holds."""
    if not yes:
        typer.confirm(f"remove topic {topic} and all its records?", abort=True)
    with_headrace(address, None, lambda hr: hr.log.admin.delete(topic))
    typer.echo(f"removed {topic}")


@app.command("grow")
def grow(
    topic: str,
    partitions: Annotated[int, typer.Option(help="How many partitions it shall have.")],
    address: Address = None,
    store: StoreAddress = None,
) -> None:
    """Give a journal topic more partitions without losing the order of any key. Writers wait meanwhile."""
    grown = with_headrace(
        address,
        store,
        lambda hr: grow_topic(
            hr.log, hr.store.settings, topic, partitions=partitions, lease_s=hr.settings.journal.lease_s
        ),
    )
    typer.echo(f"{topic} has {grown.partitions} partitions, in generation {grown.generation}")


async def _describe(log: Log, topic: str) -> tuple[Topic, list[tuple[int, int]]]:
    found = await log.admin.describe(topic)
    bounds = [await log.bounds(TopicPartition(topic, partition)) for partition in range(found.partitions)]
    return found, [(bound.start, bound.end) for bound in bounds]
