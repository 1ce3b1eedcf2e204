"""A plot of all ratios beside their targets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.figures import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]

COLOURS = {True: "#2a7f62", False: "#c0392b", None: "#7f8c8d"}


def plot(figures: Iterable[Figure], path: Path) -> bool:
    """Draw the figures that have a ratio; returns False, and draws nothing, if none has."""
    rated = [(figure, figure.ratio) for figure in figures if figure.ratio is not None]
    if not rated:
        return False
    # Chosen before pyplot can look for a display; the salt keeps equal plots equal files.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(rated)), layout="constrained")
    try:
        _draw(axes, rated)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    finally:
        pyplot.close(figure)
    return True


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
