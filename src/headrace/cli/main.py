"""The root of the command: its groups, and the display of errors.

A group of commands is imported when it is used: importing all of them takes half a second, and `--help` needs none.
"""

from __future__ import annotations

import io
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group_from_info
from typer.models import TyperInfo

from headrace import __version__

if TYPE_CHECKING:  # typer keeps a click of its own
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter

__all__ = ["app", "main"]

# These log tracebacks of failures that the error message describes in one sentence.
_DRIVERS = ("alembic", "cassandra", "kazoo", "py4j", "urllib3")


class _Part(NamedTuple):
    """A command, or a group of them: where it is defined, and its line in the list of commands."""

    module: str
    help: str


_PARTS = {
    "journal": _Part("journals", "Journals: append, read, delete, purge, look into."),
    "tags": _Part("tags", "Events by tag: list, follow, repair."),
    "projection": _Part("projections", "Projections: run, rebuild, look at, operate."),
    "topic": _Part("topics", "Topics of the log, and their records."),
    "schema": _Part("schemas", "Avro schemas and the registry that keeps them."),
    "outbox": _Part("outboxes", "The outbox: its tables, its relay, what waits and what is dead."),
    "pipeline": _Part("pipelines", "Jobs on Spark: replication and what goes with it."),
    "sql": _Part("sql", "Ask journals and topics by SQL."),
    "import": _Part("imports", "Events of other systems become journals."),
    "export": _Part("exports", "Journals to Parquet files."),
    "copy": _Part("copies", "Copy journals from one tier to the other."),
    "node": _Part("nodes", "Nodes that serve keyspaces: run one."),
    "keyspace": _Part("keyspaces", "Keyspaces: show, pause and resume one, give it another number of partitions."),
    "engine": _Part("engines", "Command engines: compare states with journals, rebuild them, replay."),
    "cluster": _Part("clusters", "Nodes that share partitions: look at them, move, drain."),
    "gateway": _Part("gateways", "Journals, events by tag, schemas and keyspaces over HTTP."),
    "services": _Part("services", "Real servers from packages, for development and tests."),
    "config": _Part("settings", "Settings and where they come from."),
    "demo": _Part("demo", "See all parts at work, in a temporary folder."),
}


class _Root(TyperGroup):
    """The root group, whose parts are imported when they are asked for."""

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names of all commands."""
        return [*_PARTS, *(name for name in self.commands if name not in _PARTS)]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Return the command, imported now if it was not yet."""
        if cmd_name in _PARTS and cmd_name not in self.commands:
            self.commands[cmd_name] = _imported(cmd_name, _PARTS[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Find the command of the arguments; the nearest name is suggested for one that is not there."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and (near := get_close_matches(args[0], known)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        own = [(name, each.get_short_help_str()) for name, each in self.commands.items() if name not in _PARTS]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, part.help) for name, part in _PARTS.items()), *own])


def _imported(name: str, part: _Part) -> Command:
    module = import_module(f"headrace.cli.{part.module}")
    if hasattr(module, "app"):
        return get_group_from_info(
            TyperInfo(module.app, name=name, help=part.help),
            pretty_exceptions_short=False,
            suggest_commands=True,
            rich_markup_mode=None,
        )
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(name)(getattr(module, name))
    return get_command(single)


app = typer.Typer(
    cls=_Root,
    help="Headrace: journals, events by tag, keyspaces, commands and an outbox, on Kafka or in one folder.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    """Set up logging and the folders of servers: the library itself never does."""
    import logging

    from headrace.config import HeadraceSettings
    from headrace.observe import configure

    settings = HeadraceSettings.load()
    observe = settings.observe
    # Variables, because child processes and Spark's jars are found by them, without settings.
    for name, folder in (
        ("HEADRACE_CACHE", settings.services.cache_dir),
        ("HEADRACE_SERVICES_DIR", settings.services.data_dir),
    ):
        if folder:
            os.environ[name] = folder
    configure("DEBUG" if verbose else observe.log_level, observe.log_format)
    if not verbose:
        for driver in _DRIVERS:
            logging.getLogger(driver).setLevel(logging.CRITICAL)


@app.command("version")
def show_version() -> None:
    """Print the version.

    Example: headrace version
    """
    typer.echo(__version__)


def main() -> None:
    """Run the command; a HeadraceError is a message, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters that keys and payloads have
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Exception as error:
        from headrace.errors import HeadraceError  # ninety classes, which `--help` need not wait for

        # A traceback would not explain a file that the system refuses.
        is_about_a_file = isinstance(error, OSError) and error.filename is not None
        if not isinstance(error, HeadraceError) and not is_about_a_file:
            raise
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(f"cannot use {error.filename}: {error.strerror}" if isinstance(error, OSError) else error, err=True)
        sys.exit(1)
