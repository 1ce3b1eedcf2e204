"""Layouts: the addresses and folders of a service's nodes, stored with the data so that a restart uses them again.

New addresses are on loopback, with ports that are free.
"""

from __future__ import annotations

import json
import random
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.errors import BadArgument, ServiceFailed
from headrace.services.ports import NodePlan, Service, ServiceLayout

__all__ = ["LAYOUT", "StartOptions", "check_free", "free_port", "kept_layout", "lay_out"]

LAYOUT = "layout.json"

# Below the range of ephemeral ports: while a server is down, a client that keeps connecting to a port in that range
# may be given the same port for its own end and connect to itself.
PORT_RANGE = range(20_000, 32_000)
PORT_TRIES = 200


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What the caller asks for; everything else is taken from the folder, or chosen.

    `ports` gives numbers by role or, for the first role, by the service's name; where nodes share an address
    the second gets the number plus one, and so on. `properties` go into the server's own configuration.
    """

    nodes: int | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def lay_out(service: Service, folder: Path, options: StartOptions) -> ServiceLayout:
    """Return the service's layout, new or that of the folder with the options applied; it is stored in the folder."""
    kept = kept_layout(service, folder)
    layout = _adapted(service, kept, options) if kept else _new(service, folder, options)
    _save(layout, folder)
    return layout


def _new(service: Service, folder: Path, options: StartOptions) -> ServiceLayout:
    nodes = 1 if options.nodes is None else options.nodes
    if not 1 <= nodes <= service.most_nodes:
        raise BadArgument("nodes", nodes, f"{service.name} runs on 1 to {service.most_nodes}")
    numbers = range(1, nodes + 1)
    names = [service.name] if nodes == 1 else [f"{service.name}-{number}" for number in numbers]
    hosts = [service.host(number) for number in numbers]
    rows = zip(numbers, names, hosts, _ports(service, hosts, _by_role(service, options.ports)), strict=True)
    plans = tuple(NodePlan(number, name, host, ports, folder / name) for number, name, host, ports in rows)
    _check_given(plans, _by_role(service, options.ports))
    return ServiceLayout(service.name, str(uuid.uuid4()), plans, dict(options.properties))


def _adapted(service: Service, kept: ServiceLayout, options: StartOptions) -> ServiceLayout:
    if options.nodes not in (None, len(kept.nodes)):
        rule = f"the data belongs to {len(kept.nodes)} nodes; run: headrace services down {service.name} --purge"
        raise BadArgument("nodes", options.nodes, rule)
    given = _by_role(service, options.ports)
    shares_address = len({node.host for node in kept.nodes}) == 1
    nodes = tuple(
        replace(node, ports={**node.ports, **_stepped(given, node.number - 1 if shares_address else 0)})
        for node in kept.nodes
    )
    return replace(kept, nodes=nodes, properties={**kept.properties, **options.properties})


def _by_role(service: Service, ports: Mapping[str, int]) -> dict[str, int]:
    named = {service.roles[0] if role == service.name else role: port for role, port in ports.items()}
    for role in named:
        if role not in service.roles:
            rule = f"{service.name} has the ports {', '.join((service.name, *service.roles))}"
            raise BadArgument("port", role, rule)
    return named


def _ports(service: Service, hosts: Sequence[str], given: Mapping[str, int]) -> list[dict[str, int]]:
    """Choose the ports of every node; nodes that have addresses of their own all use the same numbers."""
    if len(set(hosts)) > 1:
        return [_choose(service, hosts, given, set())] * len(hosts)
    rows = [_stepped(given, step) for step in range(len(hosts))]
    taken = {port for row in rows for port in row.values()}
    return [_choose(service, hosts[:1], row, taken) for row in rows]


def _stepped(given: Mapping[str, int], step: int) -> dict[str, int]:
    return {role: port + step for role, port in given.items()}


def _choose(service: Service, hosts: Sequence[str], given: Mapping[str, int], taken: set[int]) -> dict[str, int]:
    return {role: given[role] if role in given else free_port(hosts, taken=taken) for role in service.roles}


def _check_given(plans: Sequence[NodePlan], given: Mapping[str, int]) -> None:
    for plan in plans:
        for role in given:
            check_free(plan.name, plan.host, plan.ports[role])


def _save(layout: ServiceLayout, folder: Path) -> None:
    nodes = [{"name": one.name, "host": one.host, "ports": dict(one.ports)} for one in layout.nodes]
    kept = {"identity": layout.identity, "nodes": nodes, "properties": dict(layout.properties)}
    half = folder / f"{LAYOUT}.half"
    half.write_text(json.dumps(kept, indent=2))
    half.replace(folder / LAYOUT)


def kept_layout(service: Service, folder: Path) -> ServiceLayout | None:
    """Read the layout a folder was written with; None if it is new."""
    path = folder / LAYOUT
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    nodes = tuple(
        NodePlan(number, one["name"], one["host"], one["ports"], folder / one["name"])
        for number, one in enumerate(kept["nodes"], start=1)
    )
    return ServiceLayout(service.name, kept["identity"], nodes, kept["properties"])


def free_port(hosts: Sequence[str], *, taken: set[int]) -> int:
    """Choose a port that is free on all of the hosts and not in `taken`, and add it to `taken`."""
    for port in random.sample(PORT_RANGE, PORT_TRIES):
        if port not in taken and all(is_free(host, port) for host in hosts):
            taken.add(port)
            return port
    raise ServiceFailed("services", f"no free port found on {hosts[0]} in {PORT_RANGE.start}–{PORT_RANGE.stop - 1}", "")


def check_free(name: str, host: str, port: int) -> None:
    """Raise BadArgument unless a server of that name could listen there."""
    if not 0 < port < 65_536:
        raise BadArgument(f"port of {name}", port, "ports go from 1 to 65535")
    if not is_free(host, port):
        rule = f"{host}:{port} is in use; stop the process that listens there, or choose another port"
        raise BadArgument(f"port of {name}", port, rule)


def is_free(host: str, port: int) -> bool:
    """Return True if a server could listen there now."""
    with socket.socket() as probe:
        # The servers do this too: remains of a closed connection do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
