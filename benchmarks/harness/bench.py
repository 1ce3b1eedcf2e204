"""Benches: a name, the work, the bound, and the target of the ratio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Bench", "Contest", "Measure", "Readings", "Side", "Stage", "Target", "Tell", "at_least", "at_most"]

Readings: TypeAlias = Mapping[str, float]
"""What one round of one side saw, by metric."""

Side: TypeAlias = Callable[[], Awaitable[Readings]]
"""One side of a contest; it takes its own time, so that getting ready is not measured."""

Tell: TypeAlias = Callable[[str], None]
"""Somebody to tell of each step."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a ratio: a minimum or a maximum."""

    direction: Literal["≥", "≤"]
    ratio: float

    def is_reached(self, ratio: float) -> bool:
        """Whether `ratio` is good enough."""
        return ratio >= self.ratio if self.direction == "≥" else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{self.direction} {self.ratio:g}"


def at_least(ratio: float) -> Target:
    """More is better: rates."""
    return Target("≥", ratio)


def at_most(ratio: float) -> Target:
    """Less is better: latencies and costs."""
    return Target("≤", ratio)


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a bench. Without `against` it is a bound itself and has no ratio.

    One that `is_huge` takes so long that it is measured with `--huge` only.
    """

    metric: str
    unit: str
    against: str | None = None
    target: Target | None = None
    is_huge: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """The setting of a bench: a folder on a real disk, the scale of the work, and a function for progress lines.

    `repeats` is how often a bench of single happenings, such as fail-overs, lets each happen. `plots` is the folder for
    plots of its own; None if results are not stored. `is_huge` asks for what takes an hour, too.
    """

    folder: Path
    scale: float
    tell: Tell
    repeats: int = 100
    plots: Path | None = None
    is_huge: bool = False

    def count(self, full: int, *, least: int = 1) -> int:
        """Return `full` scaled, but never below `least`."""
        return max(least, round(full * self.scale))


@dataclass(frozen=True, slots=True)
class Contest:
    """A bench that is set up. Each round calls `work`, then `bound`, which may use results of the work."""

    work: Side
    bound: Side | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """One bench. `setup` prepares everything that is not measured, and cleans up afterwards.

    One that `is_one_round` repeats what it measures by itself: it has no warm-up, and no rounds to take a median of.
    One whose rounds take minutes has at most `most_rounds`.
    """

    name: str
    work: str
    measures: tuple[Measure, ...]
    setup: Callable[[Stage], AbstractAsyncContextManager[Contest]]
    is_one_round: bool = False
    most_rounds: int | None = None
