"""The command's root: what it is made of, and how errors are shown."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console

from headrace import __version__
from headrace.cli import (
    clusters,
    demo,
    journals,
    outboxes,
    pipeline_jobs,
    pipeline_package,
    pipelines,
    projections,
    records,
    schemas,
    services,
    settings,
    sql,
    tags,
    topics,
)
from headrace.config import HeadraceSettings
from headrace.errors import HeadraceError
from headrace.observe import configure

__all__ = ["app", "main"]

# They log, with tracebacks, what the error that follows says in one sentence.
_DRIVERS = ("alembic", "cassandra", "kazoo", "py4j", "urllib3")

app = typer.Typer(
    help="Headrace turns a log into something an application can stand on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(services.app, name="services", help="Real servers from packages, for development and tests.")
app.add_typer(journals.app, name="journal", help="Journals: append, read, delete, purge, look into.")
app.add_typer(projections.app, name="projection", help="Projections: run, rebuild, look at, operate.")
app.add_typer(tags.app, name="tags", help="Events by tag: list, follow, repair.")
app.add_typer(topics.app, name="topic", help="Topics of the log.")
app.add_typer(schemas.app, name="schema", help="Avro schemas and the registry that keeps them.")
app.add_typer(outboxes.app, name="outbox", help="The outbox: its tables, its relay, what waits and what is dead.")
app.add_typer(clusters.app, name="cluster", help="Nodes that share partitions: look at them, move, drain.")
app.add_typer(settings.app, name="config", help="Settings and where they come from.")
app.add_typer(pipelines.app, name="pipeline", help="Jobs on Spark: replication and what goes with it.")
app.command("sql")(sql.sql)
app.command("demo")(demo.demo)
records.add_commands(topics.app)
pipeline_jobs.add_jobs(pipelines.app)
pipeline_package.add_package(pipelines.app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def configure_logging(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the library's debug log.")] = False,
) -> None:
    """Set up logging: the library itself never does."""
    observe = HeadraceSettings.load().observe
    configure("DEBUG" if verbose else observe.log_level, observe.log_format)
    if not verbose:
        for driver in _DRIVERS:
            logging.getLogger(driver).setLevel(logging.CRITICAL)


@app.command("version")
def show_version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command; a HeadraceError is a message, not a traceback."""
    try:
        app()
    except HeadraceError as error:
        Console(stderr=True, highlight=False).print("[bold red]error:[/] ", end="")
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
