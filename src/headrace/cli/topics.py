"""`headrace topic`: topics of the log, on either tier."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from headrace.app import Headrace
from headrace.cli import records
from headrace.cli.options import (
    Address,
    AsJson,
    StoreAddress,
    answer,
    confirm,
    creating_headrace,
    plain_console,
    with_headrace,
)
from headrace.errors import BadArgument, JournalTopicExpires
from headrace.journal import (
    RETENTION_MS,
    TopicTerms,
    Topology,
    change_terms,
    check_retention,
    drop_other_claims,
    grow_topic,
    journal_config,
    read_terms,
    why_records_expire,
)
from headrace.log import Log
from headrace.model import Cleanup, Topic, TopicConfig, TopicPartition

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
records.add_commands(app)


@app.command("list")
def list_topics(address: Address = None, as_json: AsJson = False) -> None:
    """List the topics of the log.

    Example: headrace topic list --json
    """
    names = with_headrace(address, None, lambda hr: hr.log.admin.topics())
    for name in names:
        answer(name, as_json=as_json, topic=name)
    if not names and not as_json:
        typer.echo("no topics yet")


TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]
IsJournal = Annotated[
    bool,
    typer.Option("--journal", help="For journals: records stay until they are replicated, then for the retention."),
]
IsShared = Annotated[
    bool, typer.Option("--shared", help="Journals of other services too: the topic keeps a retention of its own.")
]


@app.command("create")
def create(
    topic: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(help="The number of partitions. Default: 1; of journals: the setting journal.partitions."),
    ] = None,
    cleanup: Annotated[Cleanup, typer.Option(help="What is done with old records.")] = Cleanup.DELETE,
    retention_ms: Annotated[int, typer.Option(help="How long records are kept; 0: forever.")] = RETENTION_MS,
    is_journal: IsJournal = False,
    is_shared: IsShared = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    Example: headrace topic create accounts --journal --partitions 8
    """
    if cleanup.compacts and (is_journal or is_shared):
        raise BadArgument("--cleanup", cleanup.value, "compaction removes events of journals; leave --cleanup out")
    config = TopicConfig(cleanup=cleanup, retention_ms=retention_ms or None)

    async def make(hr: Headrace) -> Topic:
        if not is_journal and not is_shared:
            return await hr.log.admin.create(topic, partitions=1 if partitions is None else partitions, config=config)
        wanted = config if is_shared else journal_config(config)
        _check_terms(hr, topic, retention_ms, is_shared=is_shared)
        count = hr.settings.journal.partitions if partitions is None else partitions
        made = await hr.log.admin.create(topic, partitions=count, config=wanted)
        if is_shared or retention_ms != RETENTION_MS:  # else the store need not be at hand
            await _store_terms(hr, topic, retention_ms, is_shared=is_shared)
        return made

    made = creating_headrace(address, store, make)
    text = f"created {made.name} with {made.partitions} partition{'s' if made.partitions != 1 else ''}"
    answer(text, as_json=as_json, topic=made.name, partitions=made.partitions)


@app.command("configure")
def configure(
    topic: TopicName,
    retention_ms: Annotated[
        int | None, typer.Option(help="How long records are kept; 0: forever. Default: as long as now.")
    ] = None,
    is_journal: IsJournal = False,
    is_shared: IsShared = False,
    is_only_store: Annotated[
        bool, typer.Option("--only-store", help="With --journal: other stores that replicated the topic are gone.")
    ] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Change how long a topic keeps its records. With --journal none is removed before it is replicated.

    With --shared, and no --retention-ms, the topic itself is not changed.

    Example: headrace topic configure accounts --journal --retention-ms 86400000
    """

    async def change(hr: Headrace) -> tuple[Topic, int]:
        described = await hr.log.admin.describe(topic)
        known = described.config
        kept_ms = (known.retention_ms or 0) if retention_ms is None else retention_ms
        if is_journal and retention_ms is None and not kept_ms:
            kept_ms = (await read_terms(hr.store.settings, topic)).retention_ms
        if is_shared and known.cleanup.compacts:
            raise JournalTopicExpires(topic, why_records_expire(known) or "")
        if is_journal or is_shared:
            _check_terms(hr, topic, kept_ms, is_shared=is_shared)
            await _store_terms(hr, topic, kept_ms, is_shared=is_shared)
        if is_only_store:
            layout = await Topology(hr.log, hr.store.settings, topic).layout()
            await drop_other_claims(hr.log, hr.store.settings, layout)
        if not is_journal and retention_ms is None:
            return described, kept_ms
        own = msgspec.structs.replace(known, retention_ms=kept_ms or None)
        return await hr.log.admin.configure(topic, journal_config(known) if is_journal else own), kept_ms

    if is_journal and is_shared:
        raise BadArgument("--shared", topic, "a topic is a journal's own, or shared; give one of the two")
    if is_only_store and not is_journal:
        raise BadArgument("--only-store", topic, "it says that a journal's topic has one store; give --journal too")
    changed, kept_ms = with_headrace(address, store, change)
    is_kept = why_records_expire(changed.config) is None and is_journal
    until = "until they are replicated, and " if is_kept else ""
    facts = {"retention_ms": kept_ms, "until_replicated": is_kept}
    how_long = f"for {kept_ms} ms" if kept_ms else "forever"
    answer(f"{topic} keeps its records {until}{how_long}", as_json=as_json, topic=topic, **facts)


def _check_terms(hr: Headrace, topic: str, retention_ms: int, *, is_shared: bool) -> None:
    if is_shared:
        return
    if retention_ms < 1:
        raise BadArgument("--retention-ms", retention_ms, "replicated records of journals stay for a time above 0")
    kept = hr.settings.store
    check_retention(topic, retention_ms, marker_ttl_s=kept.marker_ttl_s, gc_grace_s=kept.gc_grace_s)


async def _store_terms(hr: Headrace, topic: str, retention_ms: int, *, is_shared: bool) -> None:
    """Store the terms. What the command does not set stays, such as the engine that is the topic's only writer."""

    def changed(known: TopicTerms) -> TopicTerms:
        kept_ms = known.retention_ms if is_shared else retention_ms or RETENTION_MS
        return msgspec.structs.replace(known, retention_ms=kept_ms, is_shared=is_shared)

    await change_terms(hr.store.settings, topic, changed)


@app.command("describe")
def describe(topic: TopicName, address: Address = None, as_json: AsJson = False) -> None:
    """Show a topic's configuration and the offsets that its partitions hold.

    Example: headrace topic describe accounts
    """
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
    plain_console().print(table)


@app.command("delete")
def delete(
    topic: TopicName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Remove a topic and all its records.

    Example: headrace topic delete accounts --yes
    """
    confirm(f"remove topic {topic} and all its records?", is_sure=yes)
    with_headrace(address, None, lambda hr: hr.log.admin.delete(topic))
    answer(f"removed {topic}", as_json=as_json, topic=topic, removed=True)


@app.command("grow")
def grow(
    topic: TopicName,
    partitions: Annotated[int, typer.Option(help="The new number of partitions.")],
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Give a journal topic more partitions; every journal keeps its order. Writers wait meanwhile.

    Example: headrace topic grow accounts --partitions 16
    """
    grown = with_headrace(
        address,
        store,
        lambda hr: grow_topic(
            hr.log, hr.store.settings, topic, partitions=partitions, lease_s=hr.settings.journal.lease_s
        ),
    )
    text = f"{topic} has {grown.partitions} partitions, in generation {grown.generation}"
    answer(text, as_json=as_json, topic=topic, partitions=grown.partitions, generation=grown.generation)


async def _describe(log: Log, topic: str) -> tuple[Topic, list[tuple[int, int]]]:
    found = await log.admin.describe(topic)
    bounds = [await log.bounds(TopicPartition(topic, partition)) for partition in range(found.partitions)]
    return found, [(bound.start, bound.end) for bound in bounds]
