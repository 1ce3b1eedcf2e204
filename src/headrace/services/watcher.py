"""Watchers of slow steps: one shows them on a terminal, one shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from headrace.services.packages import Package

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Quiet", "Terminal", "Watcher"]


class Watcher(Protocol):
    """Gets the slow steps while they happen; called from several threads."""

    def step(self, text: str) -> None:
        """Take the step that runs now."""
        ...

    def fetching(self, service: str, packages: Sequence[Package]) -> AbstractContextManager[Callable[[int], None]]:
        """Watch a fetch; the yielded function is called with the number of bytes that arrived."""
        ...


class Quiet:
    """Shows nothing."""

    def step(self, text: str) -> None:
        """Show nothing."""

    @contextmanager
    def fetching(self, service: str, packages: Sequence[Package]) -> Iterator[Callable[[int], None]]:
        """Count nothing."""
        yield lambda _size: None


class Terminal:
    """Shows steps as lines and fetches as a bar of bytes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, text: str) -> None:
        """Print the step."""
        self._console.print(text, highlight=False, markup=False)

    @contextmanager
    def fetching(self, service: str, packages: Sequence[Package]) -> Iterator[Callable[[int], None]]:
        """Show a bar with the bytes fetched so far, the total and the time left."""
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._console) as bars:
            count = f"{len(packages)} file{'s' if len(packages) != 1 else ''}"
            bar = bars.add_task(f"fetching {service} ({count})", total=sum(one.size_bytes for one in packages))
            yield lambda size_bytes: bars.advance(bar, size_bytes)
