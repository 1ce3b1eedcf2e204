"""Processes of this machine by a name that no other process ever has, and whether one of them has ended."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from headrace.runtime.clock import SYSTEM_CLOCK

__all__ = ["has_ended", "process_name"]

_PROC = Path("/proc")
_ENDED_STATES = ("Z", "X")  # a zombie runs no more: it waits for its parent to ask for its exit code


def process_name(pid: int | None = None) -> str:
    """Return the name of a process, by default of this one: boot, namespace of process ids, id, and when it began.

    Empty where the kernel does not tell (it has no /proc), or if there is no such process.
    """
    pid = os.getpid() if pid is None else pid
    began = _began(pid)
    return f"{_here()}/{pid}/{began}" if began is not None and _here() else ""


def has_ended(name: str) -> bool:
    """Return True if that process certainly runs no more.

    False if it runs, and also if nobody can tell from here: it is of another machine, boot or container.
    """
    place, _, process = name.rpartition("/")
    place, _, pid = place.rpartition("/")
    return bool(place) and place == _here() and pid.isdecimal() and _began(int(pid)) != process


def _began(pid: int) -> str | None:
    """Return when a process began, in ticks since the boot; None if there is none with this id, or it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # the name before may contain anything
    return None if state in _ENDED_STATES else fields[18]


@cache
def _here() -> str:
    """Return where process ids mean the same as in this process; empty if the kernel does not tell."""
    try:
        namespace = (_PROC / "self" / "ns" / "pid").readlink().name
    except OSError:
        return ""
    return f"{SYSTEM_CLOCK.boot_time().boot_id}/{namespace}"
