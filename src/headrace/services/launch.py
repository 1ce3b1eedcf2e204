"""The launch of a server through the keeper: attached to its starter, or detached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ServiceFailed
from headrace.services import keeper
from headrace.services.ports import Command, NodePlan
from headrace.services.processes import ServerProcess, user_ids

__all__ = ["Ending", "Lifeline", "launch_attached", "launch_detached", "log_tail"]

TAIL_LINES = 25
LAUNCH_S = 30.0


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
    uid, gid = user_ids(command.user)
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
