"""Processes: what a program sets for its own, and whether another one of this machine has ended.

A program that serves answers signals, raises its limit of open files, and collects garbage rarely. A library does none
of this for the application that it is part of.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

from headrace.runtime.clock import SYSTEM_CLOCK

__all__ = ["has_ended", "process_name", "raise_open_files", "rare_collections", "shutdown_on_signals"]

_PROC = Path("/proc")
_ENDED_STATES = ("Z", "X")  # a zombie runs no more: it waits for its parent to ask for its exit code
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
_OPEN_FILES = 1_048_576
# Python's own are 700, 10 and 10: with thousands of requests in flight it would look at all of them many times.
_COLLECTION_THRESHOLDS = (20_000, 20, 20)


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


@asynccontextmanager
async def shutdown_on_signals(signals: Sequence[signal.Signals] = STOP_SIGNALS) -> AsyncIterator[asyncio.Event]:
    """Set the event at the first signal; at the second, end the process with 128 + its number.

    Only the main thread can receive signals, so this is for programs, not for libraries. The handlers that
    were there before come back at the end.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    # A plain handler and not loop.add_signal_handler: that one waits for the loop's next turn, and the second
    # signal is for the case where the loop hangs.
    def handle(number: int, frame: FrameType | None) -> None:
        if stop_asked:
            _exit_now(number)
        stop_asked.append(number)
        loop.call_soon_threadsafe(stop.set)

    stop_asked: list[int] = []
    before = {each: signal.signal(each, handle) for each in signals}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            # None means a handler that was not set from Python; the default is the nearest there is.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _exit_now(number: int) -> NoReturn:
    os.write(2, f"second signal ({signal.Signals(number).name}): exiting at once\n".encode())
    os._exit(128 + number)


def raise_open_files() -> int:
    """Raise the soft limit of open files as far as the system lets this process, and return what it is now.

    Shells give 1024, or less; a node has some ten files open for each partition of each state, and a gateway one for
    each client. It is for programs of their own: a library does not change this for the application that it is part of.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_FILES
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if wanted > soft:
        with contextlib.suppress(OSError, ValueError):  # a system may refuse what it shows as the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage less often while the block runs, and leave out all that exists now.

    A node's commands leave hardly any cycles, and a fifth of its time went into looking for them. It is for programs of
    their own: a library does not change this for the application that it is part of.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
