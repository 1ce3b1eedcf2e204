"""Deciding who listens where, and keeping that beside the data so that a restart finds its place again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.errors import BadArgument
from headrace.services.addresses import check_free, free_port
from headrace.services.ports import Layout, NodePlan, Service

__all__ = ["kept_layout", "new_layout", "save_layout"]


def new_layout(
    service: Service, folder: Path, *, nodes: int, ports: Mapping[str, int], properties: Mapping[str, str]
) -> Layout:
    """Lay out a service in an empty folder.

    `ports` gives numbers by role or, for the first role, by the service's name; the n-th node gets the
    number plus n-1 where nodes share an address. Other ports are chosen freely.
    """
    if not 1 <= nodes <= service.most_nodes:
        raise BadArgument("nodes", nodes, f"{service.name} runs on 1 to {service.most_nodes}")
    hosts = [service.host(number) for number in range(1, nodes + 1)]
    names = [service.name] if nodes == 1 else [f"{service.name}-{number}" for number in range(1, nodes + 1)]
    numbers = _ports(service, hosts, _by_role(service, ports))
    rows = enumerate(zip(names, hosts, numbers, strict=True), start=1)
    plans = tuple(NodePlan(number, name, host, chosen, folder / name) for number, (name, host, chosen) in rows)
    for plan in plans:
        for port in plan.ports.values():
            check_free(plan.name, plan.host, port)
    return Layout(service.name, str(uuid.uuid4()), plans, dict(properties))


def _by_role(service: Service, ports: Mapping[str, int]) -> dict[str, int]:
    named = {service.roles[0] if role == service.name else role: port for role, port in ports.items()}
    for role in named:
        if role not in service.roles:
            rule = f"{service.name} has the ports {', '.join((service.name, *service.roles))}"
            raise BadArgument("port", role, rule)
    return named


def _ports(service: Service, hosts: Sequence[str], given: Mapping[str, int]) -> list[dict[str, int]]:
    """Choose the ports of every node; nodes with addresses of their own all use the same numbers."""
    if len(set(hosts)) > 1:
        return [_choose(service, hosts, given, set())] * len(hosts)
    taken: set[int] = set()
    rows = [{role: port + step for role, port in given.items()} for step in range(len(hosts))]
    taken.update(port for row in rows for port in row.values())
    return [_choose(service, hosts[:1], row, taken) for row in rows]


def _choose(service: Service, hosts: Sequence[str], given: Mapping[str, int], taken: set[int]) -> dict[str, int]:
    return {role: given[role] if role in given else free_port(hosts, taken=taken) for role in service.roles}


def save_layout(layout: Layout, folder: Path) -> None:
    """Write the layout to the service's folder."""
    nodes = [{"name": one.name, "host": one.host, "ports": dict(one.ports)} for one in layout.nodes]
    kept = {"identity": layout.identity, "nodes": nodes, "properties": dict(layout.properties)}
    (folder / "layout.json").write_text(json.dumps(kept, indent=2))


def kept_layout(service: Service, folder: Path) -> Layout | None:
    """Read the layout a folder was written with; None if it is new."""
    path = folder / "layout.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    nodes = tuple(
        NodePlan(number, one["name"], one["host"], one["ports"], folder / one["name"])
        for number, one in enumerate(kept["nodes"], start=1)
    )
    return Layout(service.name, kept["identity"], nodes, kept["properties"])


def with_properties(layout: Layout, properties: Mapping[str, str]) -> Layout:
    """The same layout with the caller's properties in place of those kept."""
    return replace(layout, properties=dict(properties))
