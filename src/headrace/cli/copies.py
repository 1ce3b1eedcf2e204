"""`headrace copy`: journals from one tier to the other."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.app import CopyReport, connect, copy_journals
from headrace.cli.options import AsJson, command_settings, creating_settings, print_json
from headrace.errors import BadArgument
from headrace.observe import SILENT, progress_on

__all__ = ["copy"]


def copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="The log to copy from: embedded:FOLDER or kafka://HOST:PORT.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="The log to copy to; a folder is made if there is none.")],
    source_store: Annotated[
        str | None, typer.Option("--from-store", help="The store of FROM, as in cassandra://HOST/KEYSPACE.")
    ] = None,
    target_store: Annotated[
        str | None, typer.Option("--to-store", help="The store of TO, as in cassandra://HOST/KEYSPACE.")
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", help="Topics, joined by commas; else all journals that FROM has.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy journals from one log and store to another, for example from a folder to Kafka and Cassandra.

    Events keep their numbers, tags, metadata and payloads; snapshots and deletes are copied too. What the target has
    already is compared and left alone, so an interrupted copy goes on when it is run again. A target that has events
    of its own is refused.

    Example: headrace copy embedded:./data kafka://127.0.0.1:9092 --to-store cassandra://127.0.0.1/shop
    """
    if (source, source_store) == (target, target_store):
        raise BadArgument("TO", target, "it is the same place as FROM; name another one")
    names = [name.strip() for name in (topics or "").split(",") if name.strip()]
    reports = asyncio.run(_run((source, source_store), (target, target_store), names, is_shown=not as_json))
    for report in reports:
        _print(report, as_json=as_json)
    if not reports and not as_json:
        typer.echo("there are no journals to copy")
    if any(report.held for report in reports):
        raise typer.Exit(1)


async def _run(
    source: tuple[str, str | None], target: tuple[str, str | None], topics: list[str], *, is_shown: bool
) -> list[CopyReport]:
    async with (
        connect(source[0], store=source[1], settings=command_settings()) as here,
        connect(target[0], store=target[1], settings=creating_settings()) as there,
    ):
        return await copy_journals(here, there, topics, progress=progress_on() if is_shown else SILENT)


def _print(report: CopyReport, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    events = f"{report.events_copied:,} events copied, {report.events_present:,} were there"
    more = f"{report.snapshots_copied:,} snapshots copied, {report.deletes:,} deletes carried out"
    typer.echo(f"{report.topic}: {report.journals:,} journals, {events}, {more}")
    for id_ in report.held:
        typer.echo(f"{report.topic}: {id_} was left out: it is held; see: headrace pipeline quarantine list", err=True)
