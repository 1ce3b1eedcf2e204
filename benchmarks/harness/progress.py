"""Progress on the terminal: lines, with a spinner below them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from benchmarks.harness.bench import Tell

__all__ = ["Progress"]


class Progress:
    """Prints to `out`, and never after the figures have begun."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, soft_wrap=True, highlight=False)

    def say(self, message: str) -> None:
        """Print one line."""
        self._console.print(Text(message))

    @contextmanager
    def bench(self, name: str) -> Iterator[Tell]:
        """Follow one bench: every step is a line, and on a terminal a spinner turns below them."""
        with self._console.status(escape(name)) if self._console.is_terminal else nullcontext():
            yield lambda step: self.say(f"{name}: {step}")
