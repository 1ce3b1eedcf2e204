"""Progress of long work, shown on a terminal or as lines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBars

__all__ = ["SILENT", "BarProgress", "LineProgress", "Progress", "ProgressStep", "SilentProgress", "progress_on"]


class ProgressStep(Protocol):
    """One piece of work that is being shown."""

    def advance(self, amount: float = 1) -> None:
        """Count further work as done; any thread may call it."""
        ...

    def expect(self, total: float) -> None:
        """Set the total once it is known."""
        ...


class Progress(Protocol):
    """A display of progress. Several steps may be open at once."""

    def step(self, what: str, *, total: float | None = None, unit: str = "") -> AbstractContextManager[ProgressStep]:
        """Show a piece of work while the block runs. The unit "bytes" is shown as MB."""
        ...


class SilentProgress:
    """Shows nothing: the default everywhere outside the command line."""

    @contextmanager
    def step(self, what: str, *, total: float | None = None, unit: str = "") -> Iterator[ProgressStep]:
        """Take the numbers and show nothing."""
        yield _SilentStep()


class BarProgress:
    """Bars with rate and time left, for terminals."""

    def __init__(self, console: Console) -> None:
        self._bars = RichBars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._open_steps = 0
        self._lock = threading.Lock()

    @contextmanager
    def step(self, what: str, *, total: float | None = None, unit: str = "") -> Iterator[ProgressStep]:
        """Show a bar."""
        self._count(+1)
        task = self._bars.add_task(what, total=total, amount="")
        try:
            yield _BarStep(self._bars, task, unit)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        # A terminal has room for one live display, so all steps share it: it is on while any is open.
        with self._lock:
            if self._open_steps == 0:
                self._bars.start()
            self._open_steps += change
            if self._open_steps == 0:
                self._bars.stop()


class LineProgress:
    """Plain lines at an interval, for files, pipes and CI."""

    def __init__(self, stream: TextIO, *, every_s: float = 5.0) -> None:
        self._stream = stream
        self._every_s = every_s

    @contextmanager
    def step(self, what: str, *, total: float | None = None, unit: str = "") -> Iterator[ProgressStep]:
        """Print a line at the start, every `every_s` while the work advances, and at the end."""
        step = _LineStep(self._stream, what, total, unit, self._every_s)
        self._stream.write(f"{what} ...\n")
        try:
            yield step
        except BaseException:
            step.show("failed")
            raise
        step.show("done")


def progress_on(stream: TextIO | None = None) -> Progress:
    """Return the display that fits the stream (stderr): bars on a terminal, lines elsewhere."""
    stream = stream or sys.stderr
    console = Console(file=stream)
    return BarProgress(console) if console.is_terminal else LineProgress(stream)


class _SilentStep:
    def advance(self, amount: float = 1) -> None:
        pass

    def expect(self, total: float) -> None:
        pass


class _BarStep:
    def __init__(self, bars: RichBars, task: TaskID, unit: str) -> None:
        self._bars, self._task, self._unit = bars, task, unit
        self._done = 0.0
        self._total: float | None = bars.tasks[bars.task_ids.index(task)].total
        self._began_s = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self._done += amount
            shown = _amount(self._done, self._total, self._unit, time.monotonic() - self._began_s)
        self._bars.update(self._task, advance=amount, amount=shown)

    def expect(self, total: float) -> None:
        self._total = total
        self._bars.update(self._task, total=total)


class _LineStep:
    def __init__(self, stream: TextIO, what: str, total: float | None, unit: str, every_s: float) -> None:
        self._stream, self._what, self._total, self._unit, self._every_s = stream, what, total, unit, every_s
        self._done = 0.0
        self._began_s = self._shown_s = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self._done += amount
            is_due = time.monotonic() - self._shown_s >= self._every_s
            if is_due:
                self._shown_s = time.monotonic()
        if is_due:
            self.show("")

    def expect(self, total: float) -> None:
        self._total = total

    def show(self, word: str) -> None:
        took_s = time.monotonic() - self._began_s
        parts = [_amount(self._done, self._total, self._unit, took_s) if self._done else "", word]
        self._stream.write(f"{self._what}: {' '.join(filter(None, parts))} ({took_s:.1f} s)\n")
        self._stream.flush()


def _amount(done: float, total: float | None, unit: str, took_s: float) -> str:
    scale, name = (1e6, "MB") if unit == "bytes" else (1, unit)
    numbers = f"{done / scale:.1f}" if scale > 1 else f"{done:g}"
    if total:
        numbers += f"/{total / scale:.1f} ({done / total:.0%})" if scale > 1 else f"/{total:g} ({done / total:.0%})"
    rate = f", {done / scale / took_s:.1f} {name}/s".replace(" /s", "/s") if took_s > 0 else ""
    return f"{numbers} {name}".rstrip() + rate


SILENT = SilentProgress()
