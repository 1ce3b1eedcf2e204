"""The processes of servers: launched through the keeper, attached to their starter or detached, and found again.

A server is known by its pid and start time, so that a pid which is used again is never taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.errors import MissingExtra, ServiceFailed
from headrace.services import keeper
from headrace.services.ports import Command, NodePlan

try:
    import psutil
except ImportError:
    psutil = None  # type: ignore[assignment]

__all__ = ["Ending", "Lifeline", "ServerProcess", "launch_attached", "launch_detached", "log_tail"]

KILL_S = 10.0
STOP_S = 10.0
TAIL_LINES = 25
LAUNCH_S = 30.0


@dataclass(frozen=True)
class ServerProcess:
    """A server's process; signals are never sent to a later process with the same pid."""

    pid: int
    started_at_s: float

    def __post_init__(self) -> None:
        _need_psutil()

    @classmethod
    def of(cls, pid: int) -> ServerProcess | None:
        """Return a running process; None if it is gone already."""
        _need_psutil()
        with contextlib.suppress(psutil.NoSuchProcess):
            return cls(pid, psutil.Process(pid).create_time())
        return None

    @classmethod
    def noted(cls, path: Path) -> ServerProcess | None:
        """Read the file written by `note`; None if it is missing or incomplete."""
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def note(self, path: Path) -> None:
        """Write the pid and the start time to a file, atomically."""
        half = path.with_suffix(".half")
        half.write_text(json.dumps({"pid": self.pid, "started_at_s": self.started_at_s}))
        half.replace(path)

    @cached_property
    def _process(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_at_s) < 0.05:
                return process
        return None

    @property
    def is_running(self) -> bool:
        """Return True if it runs; a zombie does not."""
        process = self._process
        with contextlib.suppress(psutil.NoSuchProcess):
            return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    def stop(self, number: signal.Signals, *, grace_s: float) -> None:
        """Ask it to end, wait, and kill what is still there then, its children included."""
        family = self._family()
        if not family:
            return
        self._send([family[0]], number)
        self._send(family, signal.SIGCONT)
        _, alive = psutil.wait_procs(family[:1], timeout=grace_s)
        if alive:
            self._send(family, signal.SIGKILL)
        psutil.wait_procs(family, timeout=KILL_S)

    def kill(self) -> None:
        """End it and its children without warning, and wait until they are gone."""
        family = self._family()
        self._send(family, signal.SIGKILL)
        psutil.wait_procs(family, timeout=KILL_S)

    def pause(self) -> None:
        """Freeze it and its children, and wait until they have stopped, which is later than the signal."""
        family = self._family()
        self._send(family, signal.SIGSTOP)
        until = time.monotonic() + STOP_S
        while any(map(_is_moving, family)) and time.monotonic() < until:
            time.sleep(0.005)

    def resume(self) -> None:
        """Resume it and its children."""
        self._send(self._family(), signal.SIGCONT)

    def _family(self) -> list[psutil.Process]:
        process = self._process
        if process is None or not self.is_running:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [process, *process.children(recursive=True)]
        return []

    @staticmethod
    def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
        for process in processes:
            # psutil looks at the start time before it sends.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _is_moving(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return False


def _need_psutil() -> None:
    if psutil is None:
        raise MissingExtra("psutil", "services")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a server is ended if its starter dies: asked first, killed after `grace_s`, its folder removed or not."""

    stop_signal: signal.Signals
    grace_s: float
    throws_away: bool


@dataclass(slots=True)
class Lifeline:
    """The keeper of an attached server. The server lives until `let_go`."""

    keeper: subprocess.Popen[str]

    def let_go(self, *, timeout_s: float) -> None:
        """End the keeper, and the server if it still runs."""
        if self.keeper.stdin:
            self.keeper.stdin.close()
        try:
            self.keeper.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()


def launch_attached(node: NodePlan, command: Command, ending: Ending) -> tuple[ServerProcess, Lifeline]:
    """Start a server that dies with this process, kill -9 included."""
    process = _run_keeper(node, command, ending)
    lifeline = Lifeline(process)
    try:
        return _note_server(node, process), lifeline
    except BaseException:
        lifeline.let_go(timeout_s=ending.grace_s + LAUNCH_S)
        raise


def launch_detached(node: NodePlan, command: Command) -> ServerProcess:
    """Start a server that outlives this process."""
    process = _run_keeper(node, command, None)
    try:
        return _note_server(node, process)
    finally:
        Lifeline(process).let_go(timeout_s=LAUNCH_S)


def log_tail(node: NodePlan, lines: int = TAIL_LINES) -> str:
    """The last lines the server printed."""
    if not node.log.exists():
        return ""
    return "\n".join(node.log.read_text(errors="replace").splitlines()[-lines:])


def _run_keeper(node: NodePlan, command: Command, ending: Ending | None) -> subprocess.Popen[str]:
    uid, gid = _user_ids(command.user)
    plan = {
        "argv": [str(part) for part in command.argv],
        "env": dict(command.env),  # through the environment, because every user can read a command line
        "cwd": str(node.folder),
        "log": str(node.log),
        "uid": uid,
        "gid": gid,
        "starter": os.getpid(),
        "has_lifeline": ending is not None,
        "stop_signal": int(ending.stop_signal) if ending else None,
        "grace_s": ending.grace_s if ending else None,
        "throw_away": str(node.folder) if ending and ending.throws_away else None,
    }
    with node.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(keeper.__file__)), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _user_ids(user: str | None) -> tuple[int | None, int | None]:
    """Return the ids of the user and its group; nothing without a user."""
    if user is None:
        return None, None
    import pwd

    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid


def _note_server(node: NodePlan, process: subprocess.Popen[str]) -> ServerProcess:
    if process.stdout is None:
        raise ServiceFailed(node.name, "its keeper has no output", "")
    with process.stdout as output:
        pid = output.readline().strip()
    server = ServerProcess.of(int(pid)) if pid.isdigit() else None
    if server is None:
        raise ServiceFailed(node.name, "it could not be started", log_tail(node))
    server.note(node.folder / "pid.json")
    return server
