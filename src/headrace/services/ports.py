"""The port of a service: how it is installed, configured, run and probed."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.services.packages import Cache
from headrace.services.watcher import Watcher

__all__ = ["Command", "NodePlan", "Service", "ServiceLayout"]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One server: where it listens and where its files are. `ports` has one number per role of the service."""

    number: int
    name: str
    host: str
    ports: Mapping[str, int]
    folder: Path

    @property
    def data(self) -> Path:
        """The folder of the server's own files."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """What the server prints."""
        return self.folder / "server.log"

    def at(self, role: str) -> str:
        """The address of one of its ports, as `host:port`."""
        return f"{self.host}:{self.ports[role]}"


@dataclass(frozen=True, slots=True)
class ServiceLayout:
    """All servers of one service, with the caller's properties."""

    service: str
    identity: str
    nodes: tuple[NodePlan, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a server: `env` is added to this process' environment; the user is ours unless one is given."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None


class Service(Protocol):
    """A kind of server that can be started from packages.

    Promises: a server for which `is_ready` returned True serves clients.
    Does not promise: that any method but `install` may be called while a server runs on the folder.
    """

    name: str
    roles: Sequence[str]
    """Names of the ports; clients use the first."""
    most_nodes: int
    timeout_s: float
    """How long a start may take on a slow machine."""
    is_seeded: bool
    """The first node must serve before the others are started."""
    stop_signal: signal.Signals
    """What asks the server to end cleanly."""
    grace_s: float
    """How long it may take to do so before it is killed."""

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch what is needed; returns the files `command` uses. Raises FetchFailed, UnsupportedPlatform."""
        ...

    def host(self, number: int) -> str:
        """Choose the loopback address of the node; numbers start at 1."""
        ...

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Write the configuration, and what a first start needs; existing data stays."""
        ...

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Return the command that runs the server."""
        ...

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Ask the server, in its own protocol, whether it serves. An OSError means no."""
        ...

    def url(self, node: NodePlan) -> str:
        """Return the URL for clients."""
        ...
