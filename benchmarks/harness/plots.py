"""A plot of all ratios beside their targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["histogram", "plot", "rank_of"]

KINDS = ("#2a6f97", "#c0392b", "#7f8c8d")
COLOURS = {True: "#2a7f62", False: "#c0392b", None: "#7f8c8d"}


def plot(figures: Iterable[Figure], path: Path) -> bool:
    """Draw the figures that have a ratio; returns False, and draws nothing, if none has."""
    rated = [(figure, figure.ratio) for figure in figures if figure.ratio is not None]
    if not rated:
        return False
    with _drawing(path, height=1.2 + 0.4 * len(rated)) as axes:
        _draw(axes, rated)
    return True


def histogram(samples: Mapping[str, Sequence[float]], path: Path, *, title: str, unit: str, limit: float) -> None:
    """Draw how samples of several kinds are spread, each with its median and its 99th percentile, and a limit."""
    with _drawing(path, height=4.5) as axes:
        most = max(limit, *(max(each) for each in samples.values()))
        for colour, (name, each) in zip(KINDS, sorted(samples.items()), strict=False):
            ordered = sorted(each)
            p50, p99 = (ordered[rank_of(len(ordered), share)] for share in (0.5, 0.99))
            label = f"{name}: p50 {p50:.0f}, p99 {p99:.0f}, worst {ordered[-1]:.0f} {unit}, {len(ordered)} times"
            axes.hist(ordered, bins=40, range=(0, most), color=colour, alpha=0.6, label=label)
            axes.axvline(p99, color=colour, linestyle="--", linewidth=1)
        axes.axvline(limit, color="black", linewidth=2)
        axes.set_title(title)
        axes.set_xlabel(f"{unit} (dashed: the 99th percentile, black: the limit of that)")
        axes.legend()


def rank_of(count: int, share: float) -> int:
    """Return the index of the smallest of `count` ordered samples that so large a share of them does not exceed."""
    return min(count - 1, max(0, math.ceil(count * share) - 1))


@contextmanager
def _drawing(path: Path, *, height: float) -> Iterator[Axes]:
    """Draw a plot in the block, and write it to a file."""
    # Chosen before pyplot can look for a display; the salt keeps equal plots equal files.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    try:
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    finally:
        pyplot.close(figure)


def _draw(axes: Axes, rated: list[tuple[Figure, float]]) -> None:
    labels = [f"{figure.bench}  {figure.metric}" for figure, _ in rated]
    ratios = [ratio for _, ratio in rated]
    axes.barh(labels, ratios, color=[COLOURS[figure.reached] for figure, _ in rated], height=0.6)
    for row, (figure, ratio) in enumerate(rated):
        note = f"{ratio:.3g}" + (f"  ({figure.target})" if figure.target else "")
        axes.text(1.01, row, note, va="center", transform=axes.get_yaxis_transform())
        if figure.target:
            goal = float(figure.target.split()[1])
            axes.plot([goal, goal], [row - 0.4, row + 0.4], color="black", linewidth=2)
    axes.invert_yaxis()
    axes.margins(x=0.05)
    axes.axvline(1.0, color="#bbbbbb", linestyle=":", zorder=0)
    axes.set_xlabel("figure / bound (black: the ratio to reach, dotted: the bound)")
