"""One server of a service: start, wait until it answers, stop, kill, freeze, and follow what it prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from headrace.errors import ServiceFailed
from headrace.services.layouts import check_free
from headrace.services.packages import Cache
from headrace.services.ports import NodePlan, Service, ServiceLayout
from headrace.services.processes import Ending, Lifeline, ServerProcess, launch_attached, launch_detached, log_tail
from headrace.services.watcher import Quiet

__all__ = ["ServerNode", "follow"]

ASK_EVERY_S = 0.1
HASTY_S = 2.0
FOLLOW_EVERY_S = 0.2


class ServerNode:
    """One server of a running service.

    Promises: after `start` it serves; after `stop` or `kill` its processes are gone.
    Does not promise: that others of the cluster notice at once.
    """

    def __init__(self, plan: NodePlan, *, service: Service, layout: ServiceLayout, files: Sequence[Path]) -> None:
        self.plan = plan
        self.is_attached = False
        self.throws_away = False
        self._service = service
        self._layout = layout
        self._files = files
        self._server = ServerProcess.noted(plan.folder / "pid.json")
        self._lifeline: Lifeline | None = None

    @property
    def name(self) -> str:
        """The node's name, such as `kafka-2`."""
        return self.plan.name

    @property
    def address(self) -> str:
        """Where clients connect, as `host:port`."""
        return self.plan.at(self._service.roles[0])

    @property
    def url(self) -> str:
        """The URL for clients."""
        return self._service.url(self.plan)

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it is down."""
        return self._server.pid if self._server and self._server.is_running else None

    @property
    def started_at_s(self) -> float | None:
        """When the server was started, in seconds of the system's clock; None while it is down."""
        return self._server.started_at_s if self._server and self._server.is_running else None

    @property
    def is_running(self) -> bool:
        """Return True if the process runs."""
        return self.pid is not None

    @property
    def is_ready(self) -> bool:
        """Ask the server whether it serves."""
        try:
            return self.is_running and self._service.is_ready(self.plan, self._layout)
        except OSError:
            return False

    def log_tail(self, lines: int = 25) -> str:
        """The last lines the server printed."""
        return log_tail(self.plan, lines)

    def start(self) -> None:
        """Start the server if it is down, and wait until it serves. Raises ServiceFailed."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the server without waiting."""
        if self.is_running:
            return
        self._let_go()
        for port in self.plan.ports.values():
            check_free(self.name, self.plan.host, port)
        # A service that this process did not start has not been installed yet.
        self._files = self._files or self._service.install(Cache(), Quiet())
        self.plan.data.mkdir(parents=True, exist_ok=True)
        self._service.prepare(self.plan, self._layout, self._files)
        command = self._service.command(self.plan, self._layout, self._files)
        if self.is_attached:
            self._server, self._lifeline = launch_attached(self.plan, command, self._ending())
        else:
            self._server = launch_detached(self.plan, command)

    def await_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the server serves. Raises ServiceFailed with the end of its log."""
        patience_s = self._service.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + patience_s
        while not self.is_ready:
            if not self.is_running:
                raise ServiceFailed(self.name, "it ended while starting", self.log_tail())
            if time.monotonic() > deadline:
                raise ServiceFailed(self.name, f"it did not answer within {patience_s:g} s", self.log_tail())
            time.sleep(ASK_EVERY_S)

    def stop(self) -> None:
        """Ask the server to end and wait; kill it if it does not. Does nothing if it is down."""
        if self._server:
            ending = self._ending()
            self._server.stop(ending.stop_signal, grace_s=ending.grace_s)
        self._let_go()

    def kill(self) -> None:
        """End the server at once, as kill -9 does."""
        if self._server:
            self._server.kill()
        self._let_go()

    def pause(self) -> None:
        """Freeze the server: its connections stay open, and nothing answers."""
        if self._server:
            self._server.pause()

    def resume(self) -> None:
        """Resume a frozen server."""
        if self._server:
            self._server.resume()

    def restart(self) -> None:
        """Stop the server and start it again on the same port and data."""
        self.stop()
        self.start()

    def _ending(self) -> Ending:
        # Data that is removed anyway need not be written out first.
        grace_s = HASTY_S if self.throws_away else self._service.grace_s
        return Ending(self._service.stop_signal, grace_s, self.throws_away)

    def _let_go(self) -> None:
        if self._lifeline:
            self._lifeline.let_go(timeout_s=30)
            self._lifeline = None


def follow(nodes: Sequence[ServerNode]) -> Iterator[tuple[ServerNode, str]]:
    """Yield every line that the servers print from now on, with its node; ends when no server runs any more."""
    with ExitStack() as open_files:
        files = [(node, open_files.enter_context(_at_end(node))) for node in nodes if node.plan.log.exists()]
        while True:
            is_last = not any(node.is_running for node in nodes)
            for node, file in files:
                yield from ((node, line.rstrip("\n")) for line in _new_lines(file))
            if is_last:
                return
            time.sleep(FOLLOW_EVERY_S)


def _at_end(node: ServerNode) -> TextIO:
    file = node.plan.log.open(errors="replace")
    file.seek(0, 2)
    return file


def _new_lines(file: TextIO) -> Iterator[str]:
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(at)  # half a line: wait for the rest
            return
        yield line
