"""Starting a server through the keeper: bound to its starter, or on its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ServiceFailed
from headrace.services import keeper
from headrace.services.ports import Command, NodePlan
from headrace.services.processes import ServerProcess, user_ids

__all__ = ["Lifeline", "launch_attached", "launch_detached", "log_tail"]

TAIL_LINES = 25
LAUNCH_S = 30.0


@dataclass(slots=True)
class Lifeline:
    """The keeper of an attached server. While it is held the server lives; letting go ends the server."""

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


def launch_attached(node: NodePlan, command: Command, *, throw_away: bool) -> tuple[ServerProcess, Lifeline]:
    """Start a server that dies with this process, kill -9 included."""
    process = _run_keeper(node, command, has_lifeline=True, throw_away=throw_away)
    lifeline = Lifeline(process)
    try:
        return _note_server(node, process), lifeline
    except BaseException:
        lifeline.let_go(timeout_s=command.grace_s + 10)
        raise


def launch_detached(node: NodePlan, command: Command) -> ServerProcess:
    """Start a server that outlives this process."""
    process = _run_keeper(node, command, has_lifeline=False, throw_away=False)
    try:
        return _note_server(node, process)
    finally:
        Lifeline(process).let_go(timeout_s=LAUNCH_S)


def log_tail(node: NodePlan, lines: int = TAIL_LINES) -> str:
    """The last lines the server printed."""
    if not node.log.exists():
        return ""
    return "\n".join(node.log.read_text(errors="replace").splitlines()[-lines:])


def _run_keeper(node: NodePlan, command: Command, *, has_lifeline: bool, throw_away: bool) -> subprocess.Popen[str]:
    uid, gid = user_ids(command.user)
    plan = {
        "argv": [str(part) for part in command.argv],
        "env": dict(os.environ) | dict(command.env),
        "cwd": str(node.folder),
        "log": str(node.log),
        "uid": uid,
        "gid": gid,
        "stop_signal": int(command.stop_signal),
        "grace_s": command.grace_s,
        "starter": os.getpid(),
        "has_lifeline": has_lifeline,
        "throw_away": str(node.folder) if throw_away else None,
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
    with process.stdout as told:
        pid = told.readline().strip()
    server = ServerProcess.of(int(pid)) if pid.isdigit() else None
    if server is None:
        raise ServiceFailed(node.name, "it could not be started", log_tail(node))
    server.note(node.folder / "pid.json")
    return server
