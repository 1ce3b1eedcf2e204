"""The command line's options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Options", "parse"]

HOME = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one call."""

    names: list[str]
    lists: bool
    rounds: int
    scale: float
    repeats: int
    timeout_s: float
    scratch: Path
    results: Path | None
    huge: bool

    @property
    def stored_in(self) -> Path | None:
        """The folder for results. A run at another scale must not replace the real figures, so it needs an option."""
        return self.results or (HOME if self.scale == 1 else None)


def parse(arguments: Sequence[str]) -> Options:
    """Read the options; a mistake ends the program with code 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Headrace beside its bounds.")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="benches to run (default: all)")
    add("--list", action="store_true", dest="lists", help="list the benches and stop")
    add("--rounds", type=_count, default=5, metavar="N", help="rounds to take the median of (default: 5)")
    add("--scale", type=_positive, default=1.0, metavar="X", help="size of the work; 0.1 is a tenth (default: 1)")
    add("--repeats", type=_count, default=100, metavar="N", help="fail-overs of each kind (default: 100)")
    add("--timeout-s", type=_positive, default=1800.0, metavar="S", help="give up on a bench after S (default: 1800)")
    add("--scratch", type=Path, default=HOME.parent / "build" / "benchmarks", help="folder for data, on a real disk")
    add("--results", type=Path, metavar="DIR", help="folder for the results (default: benchmarks/, at scale 1 only)")
    add("--huge", action="store_true", help="also measure what takes up to an hour: 10⁷ events of audit-growth")
    return Options(**vars(parser.parse_args(arguments)))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
