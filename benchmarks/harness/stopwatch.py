"""A stopwatch, and medians."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter

__all__ = ["Stopwatch", "p50", "p99", "stopwatch"]


class Stopwatch:
    """The seconds between entering and leaving `stopwatch()`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def rate(self, count: int) -> float:
        """Return how many a second, for `count` of them."""
        return count / self.seconds


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the block."""
    watch = Stopwatch()
    started = perf_counter()
    try:
        yield watch
    finally:
        watch.seconds = perf_counter() - started


def p50(seconds: Sequence[float]) -> float:
    """Return the median in milliseconds."""
    return median(seconds) * 1000


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1000
