"""`headrace services`: start, stop and inspect real servers from packages."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.options import AsJson, answer, plain_console, print_json
from headrace.errors import BadArgument, NoServer
from headrace.services import (
    NAMES,
    VARIABLES,
    Detached,
    RunningService,
    ServerNode,
    StartOptions,
    Terminal,
    environment_of,
    follow,
    hold,
    start_with,
    stop_signals,
)

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

_NOTHING = "nothing was started from here"

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help=f"The services: {', '.join(NAMES)}.")]
Purge = Annotated[bool, typer.Option("--purge", help="Remove the data too.")]
Data = Annotated[
    Path | None, typer.Option("--data", help="The folder that `up --data` was given; else those started from here.")
]


@app.command()
def up(
    names: Names = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop the servers at Ctrl-C.")] = False,
    port: Annotated[list[str] | None, typer.Option(help="NAME[.ROLE]=PORT, such as kafka=9092.")] = None,
    brokers: Annotated[int | None, typer.Option(help="The number of brokers of Kafka.")] = None,
    nodes: Annotated[int | None, typer.Option(help="The number of nodes of Cassandra.")] = None,
    ensemble: Annotated[int | None, typer.Option(help="The number of servers of ZooKeeper.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--set", help="NAME.KEY=VALUE, a property of the server's own.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Keep the data in this folder.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove data kept from before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start servers and wait until they answer; all of them if none is named.

    They stay until `down`, and their data until `down --purge`. With --foreground they die with this command,
    and their data too unless --data names a folder for it.

    Example: headrace services up kafka cassandra
    """
    wanted = _checked(names)
    counts = {"kafka": brokers, "cassandra": nodes, "zookeeper": ensemble}
    ports, settings = _ports(port or []), _properties(properties or [])
    _refuse_unwanted(wanted, [*ports, *settings, *(name for name, count in counts.items() if count)])
    options = {name: StartOptions(counts.get(name), ports.get(name, {}), settings.get(name, {})) for name in wanted}
    if foreground:
        _up_foreground(options, data, as_json=as_json)
    else:
        _up_detached(options, data, fresh=fresh, as_json=as_json)


@app.command()
def down(names: Names = None, purge: Purge = False, data: Data = None, as_json: AsJson = False) -> None:
    """Stop servers; all that were started from here if none is named.

    Example: headrace services down kafka --purge
    """
    here = Detached(data)
    wanted = _checked(names) if names else tuple(service.name for service in here.known())
    if not wanted and not as_json:
        typer.echo(_NOTHING)
    for name in wanted:
        if purge:
            is_changed = here.purge(name)
            text = f"{name} is down, its data is gone" if is_changed else f"{name} was never started here"
        else:
            is_changed = here.down(name)
            text = f"{name} is down, its data is kept" if is_changed else f"{name} was not up"
        answer(text, as_json=as_json, service=name, changed=is_changed, purged=purge and is_changed)


@app.command()
def status(names: Names = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show the servers that were started from here, with --json one line for each.

    Example: headrace services status --json
    """
    wanted = _checked(names)
    known = Detached(data).known()
    rows = [_row(service, node) for service in known if service.name in wanted for node in service.nodes]
    if as_json:
        for row in rows:
            print_json(row)
    elif not rows:
        typer.echo(f"{_NOTHING}; run: headrace services up kafka")
    else:
        _show(rows)


@app.command()
def env(
    names: Names = None,
    keyspace: Annotated[str, typer.Option(help="The keyspace of the journals in Cassandra.")] = "headrace",
    is_unset: Annotated[bool, typer.Option("--unset", help="Go back: print what unsets the variables.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Print the variables by which other commands, and your programs, use the servers that are up.

    Example: eval "$(headrace services env)"
    """
    if is_unset:
        typer.echo(f"unset {' '.join(VARIABLES)}")
        return
    wanted = _checked(names)
    up = [service for service in Detached(data).known() if service.name in wanted and service.is_ready]
    missing = [name for name in names or () if name not in {service.name for service in up}]
    if missing:
        raise BadArgument("service", ", ".join(missing), f"it is not up; run: headrace services up {' '.join(missing)}")
    if not up:
        raise NoServer("is up here", "kafka")
    variables = environment_of(up, keyspace=keyspace)
    if as_json:
        print_json(variables)
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")
    if {service.name for service in up} & {"kafka", "cassandra"} == {"kafka"}:
        typer.echo("journals on Kafka need a store too; run: headrace services up cassandra", err=True)


@app.command()
def logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A service, or one of its nodes such as kafka-2.")],
    lines: Annotated[int, typer.Option("--lines", "-n", help="The number of last lines.")] = 50,
    keep_on: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines.")] = False,
    data: Data = None,
) -> None:
    """Show the last lines a server printed.

    Example: headrace services logs kafka -n 100 -f
    """
    nodes = _nodes_named(name, data)
    for node in nodes:
        mark = f"{node.name}: " if len(nodes) > 1 else ""
        for line in node.log_tail(lines).splitlines():
            typer.echo(mark + line)
    if keep_on:
        for node, line in follow(nodes):
            typer.echo(f"{node.name}: {line}" if len(nodes) > 1 else line)


def _up_detached(options: Mapping[str, StartOptions], data: Path | None, *, fresh: bool, as_json: bool) -> None:
    here, watcher = Detached(), Terminal(Console(stderr=True))
    for name, chosen in options.items():
        if fresh:
            here.purge(name)
        started = here.up(name, chosen, data_dir=data / name if data else None, watcher=watcher)
        running = started or here.find(name)
        is_plain = chosen == StartOptions() and (not data or not running or running.folder == (data / name).resolve())
        remark = "was up already" if is_plain else "was up already, so the options were not applied"
        if running:
            _notify(running, "" if started else f" ({remark})", as_json=as_json)
    where = f" --data {shlex.quote(str(data))}" if data else ""
    typer.echo(f"they stay until: headrace services down{where}", err=True)
    typer.echo(f'other commands use them after: eval "$(headrace services env{where})"', err=True)


def _up_foreground(options: Mapping[str, StartOptions], data: Path | None, *, as_json: bool) -> None:
    watcher = Terminal(Console(stderr=True))
    with ExitStack() as stopped_at_end:
        services = []
        for name, chosen in options.items():
            folder = data / name if data else None
            service = start_with(name, chosen, attached=True, data_dir=folder, watcher=watcher)
            services.append(stopped_at_end.enter_context(service))
            _notify(service, "", as_json=as_json)
        with stop_signals() as stop:
            typer.echo("Ctrl-C stops them", err=True)
            hold(services, stop)
        typer.echo("stopping", err=True)


def _notify(service: RunningService, remark: str, *, as_json: bool) -> None:
    facts = {"service": service.name, "address": service.address, "url": service.url, "was_up": bool(remark)}
    answer(f"{service.name} {service.address}{remark}", as_json=as_json, **facts)
    if service.url.partition("://")[2] != service.address:
        typer.echo(f"  {service.url}", err=True)


def _checked(names: Sequence[str] | None) -> tuple[str, ...]:
    for name in names or ():
        _check(name)
    return tuple(dict.fromkeys(names or NAMES))


def _check(name: str) -> None:
    if name not in NAMES:
        raise BadArgument("service", name, f"these can be started: {', '.join(NAMES)}")


def _refuse_unwanted(wanted: Sequence[str], configured: Sequence[str]) -> None:
    for name in configured:
        if name not in wanted:
            rule = f"this command starts only {', '.join(wanted)}; leave the option out, or name {name} too"
            raise BadArgument("the service of an option", name, rule)


def _ports(options: Sequence[str]) -> dict[str, dict[str, int]]:
    ports: dict[str, dict[str, int]] = {}
    for option in options:
        place, _, number = option.partition("=")
        if not number.isdigit():
            raise BadArgument("--port", option, "it must be written NAME=PORT or NAME.ROLE=PORT, such as kafka=9092")
        name, _, role = place.partition(".")
        _check(name)
        ports.setdefault(name, {})[role or name] = int(number)
    return ports


def _properties(options: Sequence[str]) -> dict[str, dict[str, str]]:
    properties: dict[str, dict[str, str]] = {}
    for option in options:
        place, is_set, value = option.partition("=")
        name, _, key = place.partition(".")
        if not is_set or not key:
            raise BadArgument("--set", option, "it must be written NAME.KEY=VALUE, such as kafka.num.io.threads=2")
        _check(name)
        properties.setdefault(name, {})[key] = value
    return properties


def _nodes_named(name: str, data: Path | None) -> list[ServerNode]:
    known = Detached(data).known()
    nodes = [node for service in known for node in service.nodes if name in (service.name, node.name)]
    if nodes:
        return nodes
    names = [node.name for service in known for node in service.nodes]
    if not names:
        raise NoServer("was started from here", name)
    raise BadArgument("name", name, f"these were started from here: {', '.join(names)}")


def _row(service: RunningService, node: ServerNode) -> dict[str, Any]:
    started_at_s = node.started_at_s
    return {
        "service": service.name,
        "name": node.name,
        "state": "up" if node.is_ready else "not answering" if node.is_running else "down",
        "address": node.address,
        "url": node.url,
        "pid": node.pid,
        "uptime_s": round(time.time() - started_at_s) if started_at_s else None,
        "data": str(node.plan.data),
    }


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table("name", "state", "address", "pid", "up for", box=None)
    table.add_column("data", overflow="fold")
    for row in rows:
        up_for = f"{row['uptime_s']} s" if row["uptime_s"] is not None else ""
        table.add_row(row["name"], row["state"], row["address"], str(row["pid"] or ""), up_for, row["data"])
    plain_console().print(table)
