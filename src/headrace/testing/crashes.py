"""Simulated crashes: the test stops at a crash point and the process lives on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import BadArgument
from headrace.runtime import watching

__all__ = ["SimulatedCrash", "crash_at", "recording"]


class SimulatedCrash(BaseException):
    """The process would have died here. Not an Exception: code that catches errors must not survive it."""

    def __init__(self, name: str, nth: int) -> None:
        super().__init__(name, nth)
        self.name = name
        self.nth = nth

    def __str__(self) -> str:
        return f"simulated crash at {self.name!r}, pass {self.nth}"


@contextmanager
def crash_at(name: str, nth: int = 1) -> Iterator[None]:
    """Raise SimulatedCrash at the n-th pass of the crash point, once, in whichever thread passes it."""
    if nth < 1:
        raise BadArgument("nth", nth, "passes are counted from 1")
    lock = threading.Lock()
    passes = 0

    def watch(passed: str) -> None:
        nonlocal passes
        if passed != name:
            return
        with lock:
            passes += 1
            is_due = passes == nth
        if is_due:
            raise SimulatedCrash(name, nth)

    with watching(watch):
        yield


@contextmanager
def recording() -> Iterator[list[str]]:
    """Gather the names of all crash points passed, in order, so that a test can crash at each in turn."""
    names: list[str] = []
    with watching(names.append):
        yield names
