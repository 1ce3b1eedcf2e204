"""Plots of a query's rows: which columns make one, and the plot as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from headrace.observe import line_chart

__all__ = ["PlotColumns", "plot_columns", "plot_of"]

_TIMES = ("timestamp", "timestamp_ntz", "date")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_MOST_LINES = 4


class PlotColumns(NamedTuple):
    """The columns of a plot: a time, the numbers over it, and maybe a text that says which line a number belongs to."""

    time: str
    numbers: tuple[str, ...]
    line: str | None = None


def plot_columns(columns: Sequence[tuple[str, str]]) -> PlotColumns | None:
    """Return the columns to plot, of names and types; None unless there are one time, and numbers, and little else.

    The columns are a time and up to four numbers, or a time, a number and a text.
    """
    times = [name for name, kind in columns if kind in _TIMES]
    numbers = [name for name, kind in columns if kind.partition("(")[0] in _NUMBERS]
    others = [(name, kind) for name, kind in columns if name not in times and name not in numbers]
    if len(times) != 1 or not 1 <= len(numbers) <= _MOST_LINES:
        return None
    if not others:
        return PlotColumns(times[0], tuple(numbers))
    is_line = len(others) == 1 and others[0][1] == "string" and len(numbers) == 1
    return PlotColumns(times[0], tuple(numbers), others[0][0]) if is_line else None


def plot_of(columns: PlotColumns, rows: Sequence[Any]) -> str | None:
    """Return the plot of rows, which have their values by name; None if there are too few points or too many lines."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for number in columns.numbers:
            name = number if columns.line is None else str(row[columns.line])
            if row[columns.time] is not None and row[number] is not None:
                lines.setdefault(name, []).append((_seconds(row[columns.time]), float(row[number])))
    points = [point for line in lines.values() for point in line]
    if len({x for x, _ in points}) <= 1 or len(lines) > _MOST_LINES:
        return None
    title = ", ".join(columns.numbers)
    ordered = {name: sorted(line) for name, line in lines.items()}
    return line_chart(ordered, title=title, x_label=f"{columns.time} (UTC)", is_time=True)


def _seconds(value: date | datetime) -> float:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
