"""Child processes that tests talk to, kill, freeze and thaw, and that never outlive the test."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from headrace.errors import TimedOut, WorkerFailed

__all__ = ["ChildProcess", "running", "running_function"]

# Runs in the child, and then becomes the program. Popen's preexec_fn could do the same but is not safe with threads.
# The last check is for a parent that died before the first line: then nothing would end the child.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
parent, *argv = sys.argv[1:]
if os.getppid() != int(parent):
    os._exit(1)
os.execvp(argv[0], argv)
"""

_CALL = """
import importlib, json, sys
call = json.loads(sys.argv[1])
sys.path[:] = call["path"]
module, _, name = call["target"].partition(":")
getattr(importlib.import_module(module), name)(*call["args"])
"""

_children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


class ChildProcess:
    """A started process: its output line by line, its input, its signals.

    Promises: it leads a process group of its own, and `end` kills the whole group; it is killed when the test
    process dies, however that dies (on Linux; elsewhere at an orderly exit only).
    Does not promise: to live longer than the thread that started it; the kernel takes that for the parent.
    """

    def __init__(self, argv: Sequence[str], *, environ: Mapping[str, str] | None = None) -> None:
        self.argv = tuple(argv)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *self.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
            text=True,
            start_new_session=True,
        )
        self._output = threading.Condition()
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._searched_to = 0
        self._readers = [self._read("stdout", self._process.stdout), self._read("stderr", self._process.stderr)]
        _children.add(self)

    @property
    def pid(self) -> int:
        """The process id, which is also its group's."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """All that it has written to stdout so far."""
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        """All that it has written to stderr so far."""
        return self._text("stderr")

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when a signal ended it."""
        return self._process.poll()

    def wait_for_line(self, pattern: str, timeout_s: float = 10.0) -> re.Match[str]:
        """Return the match in the next line of stdout that has one; lines are looked at once, in order.

        Raises WorkerFailed when the process ends without it, TimedOut when the time is up.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._output:
            while True:
                if (match := self._search(re.compile(pattern))) is not None:
                    return match
                if not self._readers[0].is_alive():
                    raise WorkerFailed(self._name, f"its output ended without {pattern!r}; {self._story()}")
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimedOut(f"waiting for {pattern!r} from {self._name} ({self._story()})", timeout_s)
                self._output.wait(min(left_s, 0.1))

    def send_line(self, line: str) -> None:
        """Write a line to its input."""
        stdin = _open(self._process.stdin)
        stdin.write(f"{line}\n")
        stdin.flush()

    def close_input(self) -> None:
        """End its input."""
        _open(self._process.stdin).close()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to its group."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: it stays, and does nothing, until `resume`."""
        self.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: it goes on where it stood."""
        self.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 10.0) -> int:
        """Wait for its end and return the exit code; all its output is there then. Raises TimedOut."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"waiting for the end of {self._name} ({self._story()})", timeout_s) from error
        deadline_s = time.monotonic() + timeout_s
        for reader in self._readers:
            # A grandchild that inherited the pipe may keep it open; its output is not ours to wait for.
            reader.join(max(0.0, min(1.0, deadline_s - time.monotonic())))
        return code

    def end(self) -> None:
        """Kill what is left of the whole group, children of the child included, and close the pipes."""
        _kill_group(self.pid)
        self._process.wait()
        _close(self._process.stdin)
        for reader, pipe in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            # One that left the group may still hold the pipe; its reader is a daemon and waits on alone.
            reader.join(1.0)
            if not reader.is_alive():
                _close(pipe)
        _children.discard(self)

    @property
    def _name(self) -> str:
        return f"process {self.pid}"

    def _text(self, name: str) -> str:
        with self._output:
            return "".join(self._lines[name])

    def _search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        lines = self._lines["stdout"]
        while self._searched_to < len(lines):
            self._searched_to += 1
            if (match := pattern.search(lines[self._searched_to - 1].rstrip("\n"))) is not None:
                return match
        return None

    def _story(self) -> str:
        code = self.exit_code
        state = "still running" if code is None else f"exit code {code}"
        tail = "".join(self._lines["stdout"][-5:] + self._lines["stderr"][-15:]).rstrip()
        return f"{state}; it said:\n{tail}" if tail else f"{state}; it said nothing"

    def _read(self, name: str, pipe: IO[str] | None) -> threading.Thread:
        thread = threading.Thread(
            target=self._gather, args=(name, _open(pipe)), name=f"reader-{self.pid}-{name}", daemon=True
        )
        thread.start()
        return thread

    def _gather(self, name: str, pipe: IO[str]) -> None:
        for line in pipe:
            with self._output:
                self._lines[name].append(line)
                self._output.notify_all()


@contextmanager
def running(*arguments: str, environ: Mapping[str, str] | None = None) -> Iterator[ChildProcess]:
    """Run this Python with the arguments (a script, -m module, -c code) while the block runs; then kill it."""
    child = ChildProcess([sys.executable, "-u", *arguments], environ=environ)
    try:
        yield child
    finally:
        child.end()


@contextmanager
def running_function(target: str, *args: Any, environ: Mapping[str, str] | None = None) -> Iterator[ChildProcess]:  # noqa: ANN401
    """Run "module:function" with arguments that JSON can carry, in a child that has this process' sys.path."""
    call = {"target": target, "args": args, "path": sys.path}
    with running("-c", _CALL, json.dumps(call), environ=environ) as child:
        yield child


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _open(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise AssertionError("the process was started with all its pipes")
    return pipe


def _close(pipe: IO[str] | None) -> None:
    try:
        _open(pipe).close()
    except BrokenPipeError:
        return


@atexit.register
def _end_all() -> None:
    for child in list(_children):
        child.end()
