"""`headrace pipeline audit`: compare the store with the log, and print the report as a table or as JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from headrace.cli.options import Address, AsJson, StoreAddress, command_settings, plain_console
from headrace.cli.spark_sessions import Prefix, Topics, selection_of, spark_for
from headrace.pipeline import AuditReport, Endpoints, audit

__all__ = ["run_audit"]


def run_audit(
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
    endpoints, selection = Endpoints.of(address, store=store, settings=settings), selection_of(topics, prefix)
    with spark_for(endpoints, settings) as spark:
        report = audit(spark, endpoints, selection, repair=repair, shown=shown)
        report.close()
    if as_json:
        _print_report_json(report)
    else:
        _print_report(report, repair=repair)
    if not report.is_clean:
        raise typer.Exit(1)


def _print_report(report: AuditReport, *, repair: bool) -> None:
    if report.findings:
        repaired = ["repaired"] if repair else []
        table = Table("partition", "journal", "tag", "what", "seq_nr", "offset", "about", *repaired)
        for each in report.findings:
            place = (f"{each.topic}[{each.partition}]", each.id, each.tag or "", each.kind.value)
            numbers = ("" if number is None else str(number) for number in (each.seq_nr, each.offset))
            table.add_row(*place, *numbers, each.detail, *(["yes" if each.repaired else "no"] if repair else []))
        plain_console().print(table)
    records, journals, rows = (f"{report.total(name):,}" for name in ("records", "journals", "rows"))
    typer.echo(f"compared {records} records, {journals} journals and {rows} rows: {_outcome(report, repair=repair)}")
    if busy := report.total("busy"):
        typer.echo(f"{busy:,} journals were not judged: replication is at work there")


def _outcome(report: AuditReport, *, repair: bool) -> str:
    if not report.found:
        return "all is as the log says"
    found = f"{report.found:,} finding{'s' if report.found != 1 else ''}"
    return f"{found}, {report.repaired:,} repaired" if repair else f"{found}; --repair repairs them"


def _print_report_json(report: AuditReport) -> None:
    value = {
        "clean": report.is_clean,
        "found": report.found,
        "repaired": report.repaired,
        "counts": dict(report.counts),
        "findings": report.findings,
        "partitions": report.partitions,
    }
    typer.echo(msgspec.json.encode(value).decode())
