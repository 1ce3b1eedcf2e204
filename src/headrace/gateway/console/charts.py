"""Charts of the last hour: a bounded number of lines, each with a bounded number of points, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

__all__ = ["HOUR_S", "Buckets", "ChartBook", "ChartPoint", "grown_by", "quantile_of"]

HOUR_S = 3600.0

Buckets: TypeAlias = Mapping[float, float]
"""A histogram as Prometheus counts it: how many values were at most as large as each bound."""


class ChartPoint(NamedTuple):
    """A value at a time. None is a gap: nothing could be measured, which is not the same as 0."""

    at_ms: int
    value: float | None


class ChartBook:
    """Points by chart and line. A full line loses its oldest point; a line without points of its own time is dropped.

    A chart has at most `lines` lines: further ones are left out, so that nobody fills the memory with names.
    """

    def __init__(self, *, points: int, lines: int, kept_s: float = HOUR_S) -> None:
        self._points = points
        self._lines = lines
        self._kept_ms = kept_s * 1000
        self._charts: dict[str, dict[str, deque[ChartPoint]]] = {}

    def add(self, chart: str, at_ms: int, values: Mapping[str, float | None]) -> None:
        """Add a point to each line that has a value, and a gap to each other line of the chart."""
        lines = self._charts.setdefault(chart, {})
        self._forget(lines, at_ms)
        for name in values:
            if name not in lines and len(lines) < self._lines:
                lines[name] = deque(maxlen=self._points)
        for name, points in lines.items():
            points.append(ChartPoint(at_ms, values.get(name)))

    def lines(self, chart: str) -> Mapping[str, Sequence[ChartPoint]]:
        """Return the points of a chart by line, the oldest first."""
        return {name: tuple(points) for name, points in self._charts.get(chart, {}).items()}

    def last(self, chart: str, line: str) -> float | None:
        """Return the newest value of a line; None if it has none."""
        points = self._charts.get(chart, {}).get(line)
        return points[-1].value if points else None

    def _forget(self, lines: dict[str, deque[ChartPoint]], now_ms: int) -> None:
        for name, points in list(lines.items()):
            while points and points[0].at_ms < now_ms - self._kept_ms:
                points.popleft()
            if all(point.value is None for point in points):
                del lines[name]


def grown_by(before: Buckets, now: Buckets) -> dict[float, float]:
    """Return what was counted between two looks at a histogram."""
    return {bound: max(0.0, count - before.get(bound, 0.0)) for bound, count in now.items()}


def quantile_of(counted: Buckets, share: float) -> float | None:
    """Return the value that `share` of the counted ones don't exceed, as a line within its bucket; None without any.

    What lies above the last finite bound is given as that bound: more is not known.
    """
    bounds = sorted(counted)
    if not bounds or not counted[bounds[-1]]:
        return None
    wanted = share * counted[bounds[-1]]
    for lower, upper in pairwise(_with_zero(bounds)):
        below, up_to = counted.get(lower, 0.0), counted[upper]
        if up_to >= wanted and up_to > below:
            return lower if upper == float("inf") else lower + (upper - lower) * (wanted - below) / (up_to - below)
    return None


def _with_zero(bounds: Iterable[float]) -> list[float]:
    return [0.0, *bounds]
