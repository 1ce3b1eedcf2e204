"""Figures: medians of both sides, their ratio, and whether it is good enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from benchmarks.harness.bench import Bench, Measure, Readings

__all__ = ["BenchFailed", "Figure", "figure_of", "line_of"]


class BenchFailed(Exception):
    """A bench did not measure what it promised; the message says which and why."""


class Figure(msgspec.Struct, frozen=True):
    """One figure, in the order of keys in which it is printed."""

    bench: str
    metric: str
    value: float
    against: str
    bound: float
    ratio: float | None
    unit: str
    target: str | None
    reached: bool | None
    rounds: int


def figure_of(bench: Bench, measure: Measure, work: Sequence[Readings], bound: Sequence[Readings]) -> Figure:
    """Return the figure of `measure`. The ratio is rounded first, so that the printed ratio is the one compared."""
    value = _median(bench, measure, work)
    if measure.against is None:
        against, limit, ratio = "itself", value, None
    else:
        against, limit = measure.against, _median(bench, measure, bound)
        ratio = round(value / limit, 3)
    reached = measure.target.is_reached(ratio) if measure.target and ratio is not None else None
    return Figure(
        bench=bench.name,
        metric=measure.metric,
        value=_significant(value),
        against=against,
        bound=_significant(limit),
        ratio=ratio,
        unit=measure.unit,
        target=str(measure.target) if measure.target else None,
        reached=reached,
        rounds=len(work),
    )


def line_of(figure: Figure) -> str:
    """Return the figure as one line of JSON."""
    return msgspec.json.encode(figure).decode()


def _median(bench: Bench, measure: Measure, readings: Sequence[Readings]) -> float:
    seen = [reading[measure.metric] for reading in readings if measure.metric in reading]
    if not seen or len(seen) < len(readings):
        raise BenchFailed(f"{bench.name} has {len(seen)} readings of {measure.metric} from {len(readings)} rounds")
    if not all(math.isfinite(reading) and reading > 0 for reading in seen):
        raise BenchFailed(f"{bench.name} read {measure.metric} as {seen}; nothing was measured")
    return median(seen)


def _significant(value: float, digits: int = 4) -> float:
    rounded = round(value, digits - 1 - math.floor(math.log10(value)))
    return int(rounded) if rounded == int(rounded) else rounded
