"""The process between a starter and a server, run by its file name with nothing but the standard library.

With a lifeline it stays, and the server dies when the starter does, however that happens: the starter holds
the writing end of the keeper's standard input, and is its parent. If the keeper itself is killed, the kernel
kills the server. Without a lifeline it starts the server in a session of its own, prints its pid and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.5
"""How often the parent is looked at, for the case that a fork of the starter still holds the pipe."""


def main() -> int:
    """Start the server of the plan and, with a lifeline, stay with it."""
    plan = json.loads(sys.argv[1])
    with open(plan["log"], "ab", buffering=0) as log:  # noqa: PTH123 - starts in a tenth of the time without pathlib
        server = _start(plan, log)
    print(server.pid, flush=True)
    if not plan["has_lifeline"]:
        return 0
    return _keep(server, plan)


def _start(plan: dict[str, Any], log: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - a raw file
    keeper = os.getpid()
    is_kept = plan["has_lifeline"]
    if is_kept:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def before_exec() -> None:
        # After the change of user, which would clear it.
        if is_kept:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)

    return subprocess.Popen(
        plan["argv"],
        env=os.environ | plan["env"],
        cwd=plan["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        user=plan["uid"],
        group=plan["gid"],
        extra_groups=None if plan["gid"] is None else [],
        preexec_fn=before_exec,  # noqa: PLW1509 - the keeper has one thread
    )


def _keep(server: subprocess.Popen[bytes], plan: dict[str, Any]) -> int:
    if _wait_for_end(server, plan["starter"]):
        _stop(server, plan)
    code = server.wait()
    _reap_orphans(server.pid)
    if _is_orphaned(plan["starter"]):
        _throw_away(plan["throw_away"])
    return code if code >= 0 else 128 - code


def _wait_for_end(server: subprocess.Popen[bytes], starter: int) -> bool:
    """Wait until the server has ended (False) or must be ended (True)."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: signals.append(number))
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin, woken], [], [], LOOK_S)
        if sys.stdin in readable or signals or _is_orphaned(starter):
            return True
        if woken in readable:
            os.read(woken, 4096)
    return False


def _is_orphaned(starter: int) -> bool:
    return os.getppid() != starter


def _stop(server: subprocess.Popen[bytes], plan: dict[str, Any]) -> None:
    server.send_signal(plan["stop_signal"])
    server.send_signal(signal.SIGCONT)
    try:
        server.wait(plan["grace_s"])
    except subprocess.TimeoutExpired:
        server.kill()


def _reap_orphans(group: int, *, patience_s: float = 5.0) -> None:
    """Reap the server's own children; the keeper is their subreaper, and so their parent now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
    impatient_at = time.monotonic() + patience_s
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                continue
            if time.monotonic() > impatient_at:
                _kill_children()
            time.sleep(0.02)


def _kill_children() -> None:
    me = os.getpid()
    for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _throw_away(folder: str | None) -> None:
    """Remove the node's folder, and its parent folders that are ours and empty now."""
    if folder is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    service = Path(folder).parent
    with contextlib.suppress(OSError):
        (service / "layout.json").unlink(missing_ok=True)
        service.rmdir()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
