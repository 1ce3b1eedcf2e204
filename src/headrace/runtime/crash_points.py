"""Crash points: named places in the code where tests can kill the process, to prove what survives.

`crash_point("log.embedded.before-commit")` does nothing until it is armed: the environment variable
HEADRACE_CRASH_AT="name" or "name:n" kills the process with SIGKILL at the n-th pass; HEADRACE_CRASH_FILE names a file
that may hold the same at any later time, and the first process that comes by dies and takes the file along (for
processes that live long, as Spark's workers do); in-process watchers are for `headrace.testing.crashes`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from headrace.errors import InvalidSettings, SettingsProblem

__all__ = ["CRASH_AT_VARIABLE", "CRASH_FILE_VARIABLE", "Watch", "crash_point", "watching"]

CRASH_AT_VARIABLE = "HEADRACE_CRASH_AT"
CRASH_FILE_VARIABLE = "HEADRACE_CRASH_FILE"

Watch: TypeAlias = Callable[[str], None]


def crash_point(name: str) -> None:
    """Mark a place where a test may kill the process. Costs one read of a global unless something is armed."""
    if _watch is not None:
        _watch(name)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Call `watch` with the name of every crash point passed, in any thread of this process."""
    _read_environment_once()
    _change(lambda watches: (*watches, watch))
    try:
        yield
    finally:
        _change(lambda watches: tuple(kept for kept in watches if kept is not watch))


_watches: tuple[Watch, ...] = ()
_lock = threading.RLock()


def _change(edit: Callable[[tuple[Watch, ...]], tuple[Watch, ...]]) -> None:
    global _watch, _watches  # noqa: PLW0603 - a global is what makes an unarmed pass cheap
    with _lock:
        _watches = edit(_watches)
        _watch = _tell_all if _watches else None


def _tell_all(name: str) -> None:
    for watch in _watches:
        watch(name)


def _first_pass(name: str) -> None:
    _read_environment_once()
    crash_point(name)


# The environment is read at the first pass, not at import: Spark's workers import before they get theirs.
_watch: Watch | None = _first_pass


def _read_environment_once() -> None:
    with _lock:
        if _watch is _first_pass:
            armed = _armed(os.environ)
            _change(lambda _: armed)


def _armed(environ: Mapping[str, str]) -> tuple[Watch, ...]:
    watches: list[Watch] = []
    if path := environ.get(CRASH_FILE_VARIABLE, ""):
        watches.append(_FileWatch(Path(path)))
    if text := environ.get(CRASH_AT_VARIABLE, ""):
        watches.append(_killer(*_parse(text)))
    return tuple(watches)


def _parse(text: str) -> tuple[str, int]:
    name, _, nth = text.partition(":")
    if not name or (nth and not nth.isdecimal()) or nth == "0":
        problem = f"{text!r} is not a crash point; write name or name:n, n counted from 1"
        raise InvalidSettings((SettingsProblem("environment", CRASH_AT_VARIABLE, problem),))
    return name, int(nth or 1)


class _FileWatch:
    """Kills the process at the crash point that the file names. Only the process that moves the file away dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passes = 0

    def __call__(self, name: str) -> None:
        try:
            at, nth = _parse(self._path.read_text().strip())
        except FileNotFoundError:
            self._passes = 0
            return
        if name != at:
            return
        with _lock:
            self._passes += 1
            if self._passes < nth:
                return
            try:
                self._path.rename(self._path.with_suffix(".taken"))
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def _killer(at: str, nth: int) -> Watch:
    passes = iter(range(1, nth + 1))

    def watch(name: str) -> None:
        if name != at:
            return
        with _lock:
            if next(passes, nth) == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    return watch
