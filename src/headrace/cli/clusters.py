"""`headrace cluster`: the nodes of a cluster, what each holds, and moving it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from headrace.cli.options import AsJson, answer, command_settings, plain_console, print_json
from headrace.cluster import ClusterView, Coordinator, MemberFacts, open_coordinator
from headrace.errors import TimedOut

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

T = TypeVar("T")

Address = Annotated[
    str | None,
    typer.Option("--coordinator", help="embedded:FOLDER, zookeeper://HOST:PORT or kafka://HOST:PORT; else settings."),
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait until it is done; 0: don't wait.")]


@app.command("status")
def status(coordinator: Address = None, as_json: AsJson = False) -> None:
    """Show the members of the cluster, and which of them has which partition.

    Example: headrace cluster status
    """
    view = _with_coordinator(coordinator, _first_view)
    if as_json:
        print_json(_as_json(view))
    else:
        _print(view)


@app.command("move")
def move(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group that shares the partitions.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="The partition's number, from 0.")],
    to: Annotated[str, typer.Option("--to", help="The member that shall own the partition.")],
    timeout_s: Timeout = 60.0,
    coordinator: Address = None,
    as_json: AsJson = False,
) -> None:
    """Make a member the owner of a partition, after it has caught up.

    Example: headrace cluster move accounts 3 --to node-2
    """

    async def use(opened: Coordinator) -> None:
        await opened.request_move(group, partition, to=to)
        await _until(
            opened, f"moving {group}[{partition}]", timeout_s, lambda view: _is_owner(view, group, partition, to)
        )

    _with_coordinator(coordinator, use)
    done = f"{to} owns {group}[{partition}]" if timeout_s else f"asked for {group}[{partition}] to move to {to}"
    answer(done, as_json=as_json, group=group, partition=partition, to=to, is_done=bool(timeout_s))


@app.command("drain")
def drain(
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="The member's id.")],
    timeout_s: Timeout = 60.0,
    coordinator: Address = None,
    as_json: AsJson = False,
) -> None:
    """Let a member hand over all it owns; it gets nothing more until it is started again.

    Example: headrace cluster drain node-2
    """

    async def use(opened: Coordinator) -> None:
        await opened.request_drain(member)
        await _until(opened, f"draining {member}", timeout_s, lambda view: _is_drained(view, member))

    _with_coordinator(coordinator, use)
    done = f"{member} owns nothing any more; it can be stopped" if timeout_s else f"asked {member} to drain"
    answer(done, as_json=as_json, member=member, is_done=bool(timeout_s))


def _with_coordinator(address: str | None, use: Callable[[Coordinator], Awaitable[T]]) -> T:
    async def run() -> T:
        opened = await open_coordinator(address, settings=command_settings())
        try:
            return await use(opened)
        finally:
            await opened.close()

    return asyncio.run(run())


async def _first_view(coordinator: Coordinator) -> ClusterView:
    return await coordinator.fresh_view()


async def _until(
    coordinator: Coordinator, operation: str, timeout_s: float, is_done: Callable[[ClusterView], bool]
) -> None:
    if not timeout_s:
        return
    try:
        async with asyncio.timeout(timeout_s):
            async for view in coordinator.views():
                if not view.is_old and is_done(view):
                    return
    except TimeoutError as error:
        raise TimedOut(f"{operation} was asked for, and goes on; it", timeout_s, outcome_known=False) from error


def _is_owner(view: ClusterView, group: str, partition: int, member: str) -> bool:
    owner = view.owners.get(group, {}).get(partition)
    return owner is not None and owner.member == member


def _is_drained(view: ClusterView, member: str) -> bool:
    """Return True if the member itself says that it serves nothing any more, or is gone."""
    if member not in view.members:
        return True
    return member in view.draining and not any(each.epoch for each in view.members[member].holdings)


def _owned(view: ClusterView, member: str) -> list[tuple[str, int]]:
    return [
        (group, partition)
        for group, owners in view.owners.items()
        for partition, owner in owners.items()
        if owner.member == member
    ]


def _as_json(view: ClusterView) -> dict[str, Any]:
    return {
        "leader": view.leader,
        "members": {name: _member_json(view, facts) for name, facts in view.members.items()},
        "groups": {
            group: [_partition_json(view, group, partition) for partition in range(spec.partitions)]
            for group, spec in view.groups.items()
        },
    }


def _member_json(view: ClusterView, facts: MemberFacts) -> dict[str, Any]:
    return {
        "address": facts.address,
        "weight": facts.weight,
        "draining": facts.id in view.draining,
        "owns": len(_owned(view, facts.id)),
        "holds": len(facts.holdings),
    }


def _partition_json(view: ClusterView, group: str, partition: int) -> dict[str, Any]:
    placement = view.placements[group][partition]
    owner = view.owners.get(group, {}).get(partition)
    online = {
        name
        for name in placement.replicas
        if name in view.members
        and any(
            each.is_online for each in view.members[name].holdings if (each.group, each.partition) == (group, partition)
        )
    }
    return {
        "partition": partition,
        "owner": owner.member if owner else None,
        "epoch": owner.epoch if owner else None,
        "replicas": list(placement.replicas),
        "online": sorted(online),
        "awaited": list(placement.awaited),
        "leaving": placement.leaving,
        "moves_to": view.moves.get(group, {}).get(partition),
    }


def _print(view: ClusterView) -> None:
    if not view.members:
        typer.echo("no members; start a node, or check --coordinator and cluster.name")
        return
    console = plain_console()
    members = Table("member", "address", "weight", "owns", "holds", "", box=None)
    for name, facts in view.members.items():
        shown = _member_json(view, facts)
        notes = [note for note, is_so in (("leads", name == view.leader), ("drains", shown["draining"])) if is_so]
        counts = (f"{facts.weight:g}", str(shown["owns"]), str(shown["holds"]))
        members.add_row(name, facts.address, *counts, ", ".join(notes))
    console.print(members)
    for group, spec in view.groups.items():
        console.print(f"\n{group}: {spec.partitions} partitions, replicas: {spec.replicas}")
        console.print(_partitions_table(view, group))


def _partitions_table(view: ClusterView, group: str) -> Table:
    table = Table("partition", "owner", "epoch", "replicas", "", box=None)
    for partition in range(view.groups[group].partitions):
        shown = _partition_json(view, group, partition)
        replicas = ", ".join(name if name in shown["online"] else f"{name} (catching up)" for name in shown["replicas"])
        notes = [f"{name} is awaited" for name in shown["awaited"]]
        notes += [f"{shown['leaving']} leaves"] if shown["leaving"] else []
        notes += [f"moves to {shown['moves_to']}"] if shown["moves_to"] else []
        table.add_row(str(partition), shown["owner"] or "none", str(shown["epoch"] or ""), replicas, ", ".join(notes))
    return table
