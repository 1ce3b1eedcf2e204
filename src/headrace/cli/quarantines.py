"""`headrace pipeline quarantine`: list, release and skip records that can't be decoded."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from headrace.app import Headrace
from headrace.cli.options import Address, AsJson, StoreAddress, answer, confirm, plain_console, with_headrace
from headrace.errors import BadArgument
from headrace.journal import Held, held_journals, pass_verdict
from headrace.pipeline import Selection, topics_of

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the journals.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The journal's id.")]


@app.command("list")
def show(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="The topic. Default: all that hold journals.")
    ] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """List the journals that are held, since when, and why.

    Example: headrace pipeline quarantine list accounts
    """

    async def find(hr: Headrace) -> list[Held]:
        topics = [topic] if topic is not None else await topics_of(hr.log, hr.store, Selection())
        return [held for name in topics async for held in held_journals(hr.store, name)]

    found = with_headrace(address, store, find)
    if as_json:
        for held in found:
            typer.echo(json.dumps(asdict(held)))
        return
    if not found:
        typer.echo("no journal is held")
        return
    table = Table("topic", "journal", "partition", "offset", "since", "records", "why", box=None)
    for held in found:
        since = datetime.fromtimestamp(held.since_ms / 1000, UTC).isoformat(timespec="seconds")
        where = (held.topic, held.id, str(held.partition), str(held.offset))
        table.add_row(*where, since, str(held.records), held.reason)
    plain_console().print(table)


@app.command("release")
def release(
    topic: Topic, id_: Id, address: Address = None, store: StoreAddress = None, as_json: AsJson = False
) -> None:
    """Decode the held records again with this version. The decision is a record in the log.

    Example: headrace pipeline quarantine release accounts acc-1
    """
    _pass(topic, id_, address, store, skip=False, as_json=as_json)


@app.command("skip")
def skip(
    topic: Topic,
    id_: Id,
    offset: Annotated[
        int | None, typer.Option(help="The offset of the record to skip, as `list` shows it; needed with --yes.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Skip the record that can't be decoded, forever, and continue behind it.

    Example: headrace pipeline quarantine skip accounts acc-1 --offset 17 --yes
    """
    if yes and offset is None:
        raise BadArgument("--offset", offset, "it must name the record to skip; see: headrace pipeline quarantine list")
    if not yes:
        offset = _confirmed(topic, id_, offset, address, store)
    _pass(topic, id_, address, store, skip=True, offset=offset, as_json=as_json)


def _confirmed(topic: str, id_: str, offset: int | None, address: str | None, store: str | None) -> int | None:
    """Ask for confirmation of the record to skip, and return its offset, so that no other record is skipped."""

    async def find(hr: Headrace) -> list[Held]:
        return [held async for held in held_journals(hr.store, topic) if held.id == id_]

    for held in with_headrace(address, store, find):
        offset = held.offset if offset is None else offset
        where = f"the record at offset {offset} of {topic}[{held.partition}]"
        confirm(f"What {where} holds of {id_} is lost to all readers. Skip it?", is_sure=False)
    return offset


def _pass(
    topic: str,
    id_: str,
    address: str | None,
    store: str | None,
    *,
    skip: bool,
    as_json: bool,
    offset: int | None = None,
) -> None:
    written = with_headrace(
        address, store, lambda hr: pass_verdict(hr.log, hr.store, topic, id_, skip=skip, offset=offset)
    )
    about = f"skip of offset {offset} " if skip else "release "
    text = f"{about}written at partition {written.partition}, offset {written.offset}; replication carries it out"
    answer(text, as_json=as_json, partition=written.partition, offset=written.offset)
