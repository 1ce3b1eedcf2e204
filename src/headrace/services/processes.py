"""Servers as processes: known by pid and start time, so that a re-used pid is never taken for a server."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.errors import MissingExtra

try:
    import psutil
except ImportError:
    psutil = None  # type: ignore[assignment]

__all__ = ["ServerProcess", "user_ids"]

KILL_S = 10.0
STOP_S = 10.0


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


def user_ids(user: str | None) -> tuple[int | None, int | None]:
    """Return the ids of the user and its group; nothing without a user."""
    if user is None:
        return None, None
    import pwd

    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid
