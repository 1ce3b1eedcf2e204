"""`headrace topic`: topics of the log, on either tier."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headrace.app import Headrace
from headrace.cli.asking import Address, AsJson, StoreAddress, with_headrace
from headrace.errors import BadArgument
from headrace.journal import Topology, grow_topic
from headrace.journal.retention import (
    RETENTION_MS,
    TopicTerms,
    change_terms,
    check_retention,
    journal_config,
    why_records_expire,
)
from headrace.journal.store_claims import drop_other_claims
from headrace.log import Log
from headrace.model import Cleanup, Topic, TopicConfig, TopicPartition

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_topics(address: Address = None, as_json: AsJson = False) -> None:
    """List the topics."""
    names = with_headrace(address, None, lambda hr: hr.log.admin.topics())
    typer.echo(json.dumps(list(names)) if as_json else "\n".join(names) or "no topics yet")


IsJournal = Annotated[
    bool,
    typer.Option("--journal", help="For journals: records stay until they are replicated, then for the retention."),
]
IsShared = Annotated[
    bool, typer.Option("--shared", help="Journals of other services too: the topic keeps a retention of its own.")
]


@app.command("create")
def create(
    topic: str,
    partitions: Annotated[int, typer.Option(help="How many partitions.")] = 1,
    cleanup: Annotated[Cleanup, typer.Option(help="What happens to old records.")] = Cleanup.DELETE,
    retention_ms: Annotated[int, typer.Option(help="Keep records that long; 0: for ever.")] = RETENTION_MS,
    is_journal: IsJournal = False,
    is_shared: IsShared = False,
    address: Address = None,
    store: StoreAddress = None,
) -> None:
    """Make a topic."""
    config = TopicConfig(cleanup=cleanup, retention_ms=retention_ms or None)

    async def make(hr: Headrace) -> Topic:
        if not is_journal and not is_shared:
            return await hr.log.admin.create(topic, partitions=partitions, config=config)
        wanted = config if is_shared else journal_config(config)
        _check_terms(hr, topic, retention_ms, is_shared=is_shared)
        made = await hr.log.admin.create(topic, partitions=partitions, config=wanted)
        if is_shared or retention_ms != RETENTION_MS:  # else the store need not be at hand
            await _store_terms(hr, topic, retention_ms, is_shared=is_shared)
        return made

    made = with_headrace(address, store, make)
    typer.echo(f"created {made.name} with {made.partitions} partition{'s' if made.partitions != 1 else ''}")


@app.command("configure")
def configure(
    topic: str,
    retention_ms: Annotated[
        int | None, typer.Option(help="Keep records that long; unset: as long as now, or 7 days.")
    ] = None,
    is_journal: IsJournal = False,
    is_shared: IsShared = False,
    is_only_store: Annotated[
        bool, typer.Option("--only-store", help="With --journal: other stores that replicated the topic are gone.")
    ] = False,
    address: Address = None,
    store: StoreAddress = None,
) -> None:
    """Change how long a topic keeps its records; with --journal nothing goes before it is replicated."""

    async def change(hr: Headrace) -> tuple[Topic, int]:
        known = (await hr.log.admin.describe(topic)).config
        kept_ms = retention_ms if retention_ms is not None else known.retention_ms or RETENTION_MS
        if is_journal or is_shared:
            _check_terms(hr, topic, kept_ms, is_shared=is_shared)
            await _store_terms(hr, topic, kept_ms, is_shared=is_shared)
        if is_only_store:
            layout = await Topology(hr.log, hr.store.settings, topic).layout()
            await drop_other_claims(hr.log, hr.store.settings, layout)
        own = msgspec.structs.replace(known, retention_ms=kept_ms or None)
        return await hr.log.admin.configure(topic, journal_config(known) if is_journal else own), kept_ms

    if is_journal and is_shared:
        raise BadArgument("--shared", topic, "a topic is a journal's own, or shared; give one of the two")
    if is_only_store and not is_journal:
        raise BadArgument("--only-store", topic, "it says that a journal's topic has one store; give --journal too")
    changed, kept_ms = with_headrace(address, store, change)
    if why_records_expire(changed.config) is None and is_journal:
        typer.echo(f"{topic} keeps its records until they are replicated, and for {kept_ms} ms")
    else:
        typer.echo(f"{topic} keeps its records for {kept_ms} ms")


def _check_terms(hr: Headrace, topic: str, retention_ms: int, *, is_shared: bool) -> None:
    if is_shared:
        return
    if retention_ms < 1:
        raise BadArgument("--retention-ms", retention_ms, "replicated records of journals stay for a time above 0")
    kept = hr.settings.store
    check_retention(topic, retention_ms, marker_ttl_s=kept.marker_ttl_s, gc_grace_s=kept.gc_grace_s)


async def _store_terms(hr: Headrace, topic: str, retention_ms: int, *, is_shared: bool) -> None:
    terms = TopicTerms(retention_ms=retention_ms or RETENTION_MS, is_shared=is_shared)
    await change_terms(hr.store.settings, topic, lambda _: terms)


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
