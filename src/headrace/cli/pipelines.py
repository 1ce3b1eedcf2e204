"""`headrace pipeline`: the jobs on Spark."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, TypeAlias

import typer
from rich.console import Console

from headrace.cli import quarantines
from headrace.cli.options import Address, AsJson, StoreAddress, command_settings, creating_settings
from headrace.cli.spark_sessions import spark_for
from headrace.errors import BadArgument
from headrace.observe import serve
from headrace.pipeline import Endpoints, Replication, Selection, Summary, accept_loss, display_on, run

__all__ = ["Prefix", "Topics", "app", "selection_of"]

app = typer.Typer(no_args_is_help=True)
app.add_typer(quarantines.app, name="quarantine", help="Journals with a record that can't be decoded.")

Topics: TypeAlias = Annotated[
    str | None, typer.Option("--topics", help="Topics, joined by commas. Default: all that hold journals.")
]
Prefix: TypeAlias = Annotated[str | None, typer.Option("--prefix", help="All topics whose names have this prefix.")]


def selection_of(topics: str | None, prefix: str | None) -> Selection:
    """Return what the options select."""
    if topics is not None and prefix is not None:
        raise BadArgument("--prefix", prefix, "give --topics or --prefix, not both")
    return Selection(tuple(name.strip() for name in (topics or "").split(",") if name.strip()), prefix)


@app.command("replicate")
def replicate(
    topics: Topics = None,
    prefix: Prefix = None,
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="End when everything that is in the log now is replicated.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept-loss", metavar="TOPIC:PARTITION:LAST", help="Continue behind records that are lost."),
    ] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Replicate journals from the log into the store. SIGTERM and Ctrl-C end it cleanly.

    Example: headrace pipeline replicate --topics accounts,orders --once
    """
    settings = command_settings() if once else creating_settings()
    places = Endpoints.of(address, store=store, settings=settings)
    selection = selection_of(topics, prefix)
    console = Console(stderr=True)
    for loss in accept or ():
        run(accept_loss(places, *_loss_of(loss)))
        console.print(f"accepted: {loss}", highlight=False, markup=False)
    if settings.observe.metrics_port is not None:
        serve(settings.observe.metrics_port)
    with spark_for(places, settings) as spark, display_on(console) as display:
        job = Replication(spark, places, selection, settings=settings.pipeline, watcher=display)
        with _stopping(job):
            summary = job.run(once=once)
    _print(summary, as_json=as_json)


@contextmanager
def _stopping(job: Replication) -> Iterator[None]:
    """End the job at the first signal; the second one ends the process as it would any other."""

    def handle(number: int, frame: FrameType | None) -> None:
        job.stop()
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _loss_of(text: str) -> tuple[str, int, int]:
    topic, _, rest = text.rpartition(":")
    topic, _, partition = topic.rpartition(":")
    if not topic or not partition.isdigit() or not rest.isdigit():
        raise BadArgument("--accept-loss", text, "it is TOPIC:PARTITION:LAST, as the error printed it")
    return topic, int(partition), int(rest)


def _print(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"batches": summary.batches, "records": summary.records, "rows": summary.rows}))
        return
    typer.echo(f"replicated {summary.records:,} records, {summary.rows:,} rows, in {summary.batches:,} batches")
