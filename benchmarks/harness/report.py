"""Storing figures: into results.json, and from it the table and the plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import Run, environment
from benchmarks.harness.plots import plot
from benchmarks.harness.results import Result, load_results, merge, save_results
from benchmarks.harness.table import render

__all__ = ["PLOTS", "store"]

PLOTS = "plots"
RATIOS = "ratios.svg"


def store(figures: Sequence[Figure], folder: Path | None, run: Run) -> None:
    """Merge the figures into the stored ones and write table and plot again; without a folder, do nothing."""
    if folder is None:
        return
    here = environment()
    results = merge(load_results(folder), [Result(figure, run, here) for figure in figures])
    save_results(folder, results)
    plot([result.figure for result in results], folder / PLOTS / RATIOS)
    own = sorted(path.name for path in (folder / PLOTS).glob("*.svg") if path.name != RATIOS)
    (folder / "RESULTS.md").write_text(render(results, plots=own))
