"""Loopback addresses, and whether they are free."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from headrace.errors import BadArgument, ServiceFailed

__all__ = ["check_free", "free_port"]

# Below the range of ephemeral ports: while a server is down, a client that keeps connecting to a port in that range
# may be given the same port for its own end and connect to itself.
CHOICE = range(20_000, 32_000)
TRIES = 200


def free_port(hosts: Sequence[str], *, taken: set[int]) -> int:
    """Choose a port that is free on all of the hosts and not in `taken`, and add it to `taken`."""
    for port in random.sample(CHOICE, TRIES):
        if port not in taken and all(is_free(host, port) for host in hosts):
            taken.add(port)
            return port
    raise ServiceFailed("services", f"no free port found on {hosts[0]} in {CHOICE.start}–{CHOICE.stop - 1}", "")


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
