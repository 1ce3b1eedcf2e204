"""A running service: its nodes together or one at a time, and waiting for a signal or the end of a node.

Environment variables make a program use running services instead of its own folder.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from headrace.config import variable_for
from headrace.errors import ServiceFailed
from headrace.services.nodes import ServerNode
from headrace.services.ports import Service, ServiceLayout

__all__ = ["VARIABLES", "RunningService", "environment_of", "hold", "stop_signals"]

_LOG = variable_for(("log", "address"), "HEADRACE")
_STORE = variable_for(("store", "address"), "HEADRACE")
_CREATE_KEYSPACE = variable_for(("store", "cassandra", "create_keyspace"), "HEADRACE")
_REGISTRY = variable_for(("registry", "address"), "HEADRACE")
_DATABASE = variable_for(("outbox", "database"), "HEADRACE")

VARIABLES = (_LOG, _STORE, _CREATE_KEYSPACE, _REGISTRY, _DATABASE)


class RunningService:
    """A started service; a context manager that stops it.

    Promises: while it is not stopped, `address` and the data stay the same, whatever is killed and restarted.
    """

    def __init__(self, service: Service, layout: ServiceLayout, files: Sequence[Path], folder: Path) -> None:
        self.name = service.name
        self.folder = folder
        self.throws_away = False
        self.nodes = tuple(ServerNode(plan, service=service, layout=layout, files=files) for plan in layout.nodes)
        self._service = service

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Every node's `host:port`."""
        return tuple(node.address for node in self.nodes)

    @property
    def address(self) -> str:
        """All endpoints, joined by commas: what a client is given to start with."""
        return ",".join(self.endpoints)

    @property
    def host(self) -> str:
        """The first node's host."""
        return self.nodes[0].plan.host

    @property
    def port(self) -> int:
        """The first node's port for clients."""
        return self.nodes[0].plan.ports[self._service.roles[0]]

    @property
    def url(self) -> str:
        """The URL for clients, of the first node."""
        return self._service.url(self.nodes[0].plan)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the nodes that run."""
        return tuple(node.pid for node in self.nodes if node.pid is not None)

    @property
    def is_ready(self) -> bool:
        """Ask every node whether it serves."""
        return all(node.is_ready for node in self.nodes)

    def start(self) -> None:
        """Start the nodes that are down and wait until all serve. Raises ServiceFailed."""
        if self._service.is_seeded:
            self.nodes[0].start()
        self._each(ServerNode.launch)
        self._each(ServerNode.await_ready)

    def stop(self) -> None:
        """Stop all nodes; removes the data if it is temporary."""
        self._each(ServerNode.stop)
        if self.throws_away:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill all nodes as kill -9 does; the data stays for `start`."""
        self._each(ServerNode.kill)

    def pause(self) -> None:
        """Freeze all nodes."""
        self._each(ServerNode.pause)

    def resume(self) -> None:
        """Resume all nodes."""
        self._each(ServerNode.resume)

    def restart(self) -> None:
        """Stop all nodes and start them again, on the same ports and data."""
        self._each(ServerNode.stop)
        self.start()

    def _each(self, do: Callable[[ServerNode], None]) -> None:
        with ThreadPoolExecutor(len(self.nodes), thread_name_prefix=self.name) as threads:
            for _ in threads.map(do, self.nodes):
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


LOOK_EVERY_S = 0.5


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGHUP set, instead of their usual effect."""
    stop = threading.Event()

    def set_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, set_stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hold(services: Sequence[RunningService], stop: threading.Event) -> None:
    """Wait until the event is set. Raises ServiceFailed when a server dies first."""
    nodes = [node for service in services for node in service.nodes]
    while not stop.wait(LOOK_EVERY_S):
        for node in nodes:
            if not node.is_running:
                raise ServiceFailed(node.name, "it ended", node.log_tail())


def environment_of(services: Iterable[RunningService], *, keyspace: str) -> dict[str, str]:
    """Return the variables that name the services. The first database among them is for the outbox."""
    variables: dict[str, str] = {}
    for service in services:
        if service.name == "kafka":
            variables[_LOG] = f"kafka://{service.address}"
        elif service.name == "cassandra":
            variables[_STORE] = f"cassandra://{service.address}/{keyspace}"
            variables[_CREATE_KEYSPACE] = "true"  # commands create no keyspace unless this is set
        elif service.name == "registry":
            variables[_REGISTRY] = service.url
        elif service.name in ("postgres", "mariadb"):
            variables.setdefault(_DATABASE, service.url)
    return variables
