"""`headrace export`: journals to Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import Address, AsJson, StoreAddress, answer, command_settings
from headrace.cli.spark_sessions import quiet_spark_for
from headrace.pipeline import Endpoints, Selection, export_journals

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keep the name of the only command."""


@app.command("journals")
def export_to_folder(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files are; made if it is not there.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topics", help="Only these journals; may be given again.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Only journals whose topic has this prefix.")] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Add the events that were replicated since the last export to the Parquet files in a folder.

    Example: headrace export journals ./lake --topics accounts
    """
    settings = command_settings()
    endpoints = Endpoints.of(address, store=store, settings=settings)
    with quiet_spark_for(endpoints, settings, name="headrace export") as spark:
        done = export_journals(spark, endpoints, folder, Selection(tuple(topics or ()), prefix))
    text = f"export {done.version}: {done.events:,} events, {done.tags:,} tags, {done.heads:,} heads in {folder}"
    if not done.heads:
        text = (
            f"nothing was replicated since export {done.version}" if done.version >= 0 else "nothing is replicated yet"
        )
    answer(text, as_json=as_json, version=done.version, events=done.events, tags=done.tags, heads=done.heads)
