"""Displays of a running replication: the lag of each topic, the speed, and a plot of the last minutes.

On a terminal the display is redrawn in place; elsewhere it prints one line for each batch.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.observe import line_chart
from headrace.pipeline.replication.reports import BatchReport

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LineDisplay", "LiveDisplay", "display_on"]

_REMEMBERED = 120
_EVENTS_SHOWN = 3


def display_on(console: Console) -> LineDisplay | LiveDisplay:
    """Return the display that suits the console."""
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)


class LineDisplay:
    """One line a batch, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def batch(self, report: BatchReport) -> None:
        """Print what the batch did."""
        lag = sum(report.lag.values())
        speed = f"{report.records_per_s:,.0f} records/s"
        text = f"batch {report.batch}: {report.records:,} records, {report.rows:,} rows in {report.took_s:.2f} s"
        self._console.print(f"{text} ({speed}), lag {lag:,}", highlight=False, markup=False)

    def event(self, text: str) -> None:
        """Print the text."""
        self._console.print(text, highlight=False, markup=False)


class LiveDisplay:
    """A table by topic, a plot of records a second, and the last events."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._speeds: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._records: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._lag: Counter[str] = Counter()
        self._started = time.monotonic()

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def batch(self, report: BatchReport) -> None:
        """Add the batch and redraw."""
        self._speeds.append((time.monotonic() - self._started, report.records_per_s))
        for outcome in report.outcomes:
            self._records[outcome.topic] += outcome.records
            self._rows[outcome.topic] += outcome.rows
        lag: Counter[str] = Counter()
        for at, behind in report.lag.items():
            lag[at.topic] += behind
        self._lag = lag
        self._draw(report)

    def event(self, text: str) -> None:
        """Show the text below the plot."""
        self._events.append(text)
        self._live.refresh()

    def _draw(self, report: BatchReport) -> None:
        parts: list[RenderableType] = [self._table(), Text.from_ansi(plot(list(self._speeds)))]
        took = f"batch {report.batch}: {report.records:,} records in {report.took_s:.2f} s"
        parts.append(Text(f"{took}, {report.records_per_s:,.0f}/s; Ctrl-C stops replication after the batch"))
        parts += [Text(text, style="yellow") for text in self._events]
        self._live.update(Group(*parts), refresh=True)

    def _table(self) -> Table:
        table = Table("topic", box=None)
        for name in ("lag", "records", "rows"):
            table.add_column(name, justify="right")
        for topic in sorted(self._lag.keys() | self._records.keys()):
            numbers = (self._lag[topic], self._records[topic], self._rows[topic])
            table.add_row(topic, *(f"{number:,}" for number in numbers))
        return table


def plot(speeds: list[tuple[float, float]]) -> str:
    """Return a plot of records a second over time, in characters."""
    return line_chart({"records/s": speeds}, title="records/s", x_label="seconds")
