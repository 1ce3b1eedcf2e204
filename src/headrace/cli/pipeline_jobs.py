"""`headrace pipeline purge-expired`, `backfill`, `audit`: jobs that run once and tell what they did."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.options import Address, AsJson, StoreAddress, command_settings
from headrace.cli.pipelines import Prefix, Topics, selection_of
from headrace.cli.spark_sessions import spark_for
from headrace.errors import BadArgument
from headrace.pipeline import AuditReport, Endpoints, audit, backfill, purge_expired

__all__ = ["add_jobs"]

FOUND = 1


def add_jobs(app: typer.Typer) -> None:
    """Add the commands to `headrace pipeline`."""
    commands: dict[str, Callable[..., None]] = {
        "purge-expired": _purge_expired,
        "backfill": _backfill,
        "audit": _audit,
    }
    for name, command in commands.items():
        app.command(name)(command)


def _purge_expired(
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
    places, selection = Endpoints.of(address, store=store, settings=settings), selection_of(topics, prefix)
    at = _time("--now", now)
    with spark_for(places, settings) as spark:
        done = purge_expired(spark, places, selection, now=at)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(f"purged {done.purged:,} of {done.journals:,} journals")


def _backfill(
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
    places, selection = Endpoints.of(address, store=store, settings=settings), selection_of(topics, prefix)
    times = {"since_ms": _milliseconds("--since", since), "until_ms": _milliseconds("--until", until)}
    with spark_for(places, settings) as spark:
        done = backfill(spark, places, selection, first=first, last=last, **times)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
        return
    typer.echo(f"applied {done.records:,} records of {done.journals:,} journals again; restored {done.restored:,} rows")
    if done.busy:
        typer.echo(f"{done.busy:,} journals were left to replication, which is at work there")


def _audit(
    topics: Topics = None,
    prefix: Prefix = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what is wrong.")] = False,
    shown: Annotated[int, typer.Option(help="The most findings to print.")] = 100,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Compare the store with the log. The exit code is 1 if something is wrong and was not repaired.

    Example: headrace pipeline audit --topics accounts --repair
    """
    settings = command_settings()
    places, selection = Endpoints.of(address, store=store, settings=settings), selection_of(topics, prefix)
    with spark_for(places, settings) as spark:
        report = audit(spark, places, selection, repair=repair, shown=shown)
        report.close()
    if as_json:
        _print_json(report)
    else:
        _print(report, repair=repair)
    if not report.is_clean:
        raise typer.Exit(FOUND)


def _print(report: AuditReport, *, repair: bool) -> None:
    if report.findings:
        mended = ["mended"] if repair else []
        table = Table("partition", "journal", "tag", "what", "seq_nr", "offset", "about", *mended)
        for each in report.findings:
            place = (f"{each.topic}[{each.partition}]", each.id, each.tag or "", each.kind.value)
            numbers = ("" if number is None else str(number) for number in (each.seq_nr, each.offset))
            table.add_row(*place, *numbers, each.detail, *(["yes" if each.mended else "no"] if repair else []))
        Console().print(table)
    records, journals, rows = (f"{report.total(name):,}" for name in ("records", "journals", "rows"))
    typer.echo(f"compared {records} records, {journals} journals and {rows} rows: {_outcome(report, repair=repair)}")
    if busy := report.total("busy"):
        typer.echo(f"{busy:,} journals were not judged: replication is at work there")


def _outcome(report: AuditReport, *, repair: bool) -> str:
    if not report.found:
        return "all is as the log says"
    found = f"{report.found:,} finding{'s' if report.found != 1 else ''}"
    return f"{found}, {report.mended:,} mended" if repair else f"{found}; --repair puts them right"


def _print_json(report: AuditReport) -> None:
    value = {
        "clean": report.is_clean,
        "found": report.found,
        "mended": report.mended,
        "counts": dict(report.counts),
        "findings": report.findings,
        "partitions": report.partitions,
    }
    typer.echo(msgspec.json.encode(value).decode())


def _milliseconds(name: str, text: str | None) -> int | None:
    time = _time(name, text)
    return None if time is None else int(time.timestamp() * 1000)


def _time(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadArgument(name, text, "it is a time in ISO 8601, as 2026-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
