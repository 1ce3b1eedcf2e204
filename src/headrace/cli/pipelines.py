"""`headrace pipeline`: replication, expiry, back-fill and the package for a cluster; the audit is in `audits`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli import quarantines
from headrace.cli.audits import run_audit
from headrace.cli.options import Address, AsJson, StoreAddress, answer, command_settings, creating_settings
from headrace.cli.spark_sessions import Prefix, Topics, selection_of, spark_for
from headrace.errors import BadArgument
from headrace.observe import serve
from headrace.pipeline import (
    Endpoints,
    Replication,
    Summary,
    accept_loss,
    backfill,
    display_on,
    package,
    purge_expired,
    run,
)
from headrace.services import Terminal

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
app.add_typer(quarantines.app, name="quarantine", help="Journals with a record that can't be decoded.")


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
    endpoints = Endpoints.of(address, store=store, settings=settings)
    selection = selection_of(topics, prefix)
    console = Console(stderr=True)
    for loss in accept or ():
        run(accept_loss(endpoints, *_loss_of(loss)))
        console.print(f"accepted: {loss}", highlight=False, markup=False)
    port = settings.observe.metrics_port
    metrics: AbstractContextManager[int | None] = nullcontext() if port is None else serve(port)
    with metrics, spark_for(endpoints, settings) as spark, display_on(console) as display:
        job = Replication(spark, endpoints, selection, settings=settings.pipeline, watcher=display)
        with _stopping(job):
            summary = job.run(once=once)
    _print_summary(summary, as_json=as_json)


@app.command("purge-expired")
def run_expiry(
    topics: Topics = None,
    prefix: Prefix = None,
    now: Annotated[str | None, typer.Option(help="The time that counts as now, in ISO 8601. Default: now.")] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Purge the journals that have expired. A journal that is appended to meanwhile stays.

    Example: headrace pipeline purge-expired --topics accounts
    """
    settings = command_settings()
    endpoints, selection = Endpoints.of(address, store=store, settings=settings), selection_of(topics, prefix)
    at = _time("--now", now)
    with spark_for(endpoints, settings) as spark:
        done = purge_expired(spark, endpoints, selection, now=at)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(f"purged {done.purged:,} of {done.journals:,} journals")


@app.command("backfill")
def run_backfill(
    topics: Topics = None,
    prefix: Prefix = None,
    first: Annotated[int | None, typer.Option(help="The first offset of each partition.")] = None,
    last: Annotated[int | None, typer.Option(help="The last offset of each partition.")] = None,
    since: Annotated[str | None, typer.Option(help="Records from this time on, ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option(help="Records before this time, ISO 8601.")] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Apply a range of the log to the store again. What is right stays, what is missing is restored.

    Example: headrace pipeline backfill --topics accounts --since 2026-01-31T12:00Z
    """
    settings = command_settings()
    endpoints, selection = Endpoints.of(address, store=store, settings=settings), selection_of(topics, prefix)
    times = {"since_ms": _milliseconds("--since", since), "until_ms": _milliseconds("--until", until)}
    with spark_for(endpoints, settings) as spark:
        done = backfill(spark, endpoints, selection, first=first, last=last, **times)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    typer.echo(f"applied {done.records:,} records of {done.journals:,} journals again; restored {done.restored:,} rows")
    if done.busy:
        typer.echo(f"{done.busy:,} journals were left to replication, which is at work there")


app.command("audit")(run_audit)


@app.command("package")
def make_package(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that is not there yet.")],
    own: Annotated[
        list[str] | None,
        typer.Option("--with", help="A package of your own, with all it requires; may be given again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the modules and jars that spark-submit needs into a folder. See docs/cluster.md.

    Example: headrace pipeline package ./submit --with shop
    """
    package(folder, own=own or (), watcher=Terminal(Console(stderr=True)))
    command = "spark-submit --master MASTER --properties-file spark.conf main.py pipeline replicate"
    answer(f"cd {folder}\n{command}", as_json=as_json, folder=str(folder), command=command)


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
        raise BadArgument("--accept-loss", text, "it must be TOPIC:PARTITION:LAST, as the error printed it")
    return topic, int(partition), int(rest)


def _print_summary(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"batches": summary.batches, "records": summary.records, "rows": summary.rows}))
        return
    typer.echo(f"replicated {summary.records:,} records, {summary.rows:,} rows, in {summary.batches:,} batches")


def _milliseconds(name: str, text: str | None) -> int | None:
    time = _time(name, text)
    return None if time is None else int(time.timestamp() * 1000)


def _time(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadArgument(name, text, "it must be a time in ISO 8601, as 2026-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
