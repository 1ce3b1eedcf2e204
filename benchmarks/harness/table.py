"""RESULTS.md: all stored figures as tables, one for each environment they were taken in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import Environment
from benchmarks.harness.results import Result

__all__ = ["render"]

HEAD = """# Results

Written by `python -m benchmarks` from results.json; don't edit. How to read it: docs/performance.md.
Each bound was measured in the same run as its figure, in turn with it; both are medians of the rounds.
"""
PLOT = "\n![Ratios and targets](plots/ratios.svg)\n"
COLUMNS = (
    "bench",
    "metric",
    "value",
    "against",
    "bound",
    "ratio",
    "target",
    "reached",
    "rounds",
    "date",
    "commit",
    "load",
)
VERDICTS = {True: "yes", False: "**no**", None: ""}


def render(results: Iterable[Result], *, plots: Sequence[str] = ()) -> str:
    """Return the whole file; `plots` are those that benches have drawn themselves."""
    ordered = sorted(results, key=lambda result: (repr(result.environment), result.figure.bench))
    groups = groupby(ordered, key=lambda result: result.environment)
    has_plot = any(result.figure.ratio is not None for result in ordered)
    sections = [_section(environment, list(members)) for environment, members in groups]
    own = [f"\n![{name.removesuffix('.svg')}](plots/{name})\n" for name in plots]
    return "".join([HEAD, PLOT if has_plot else "", *own, *sections])


def _section(environment: Environment, results: Sequence[Result]) -> str:
    machine = environment.machine
    title = f"\n## {machine.cores} cores, {machine.memory_gib} GiB, {machine.cpu}\n\n"
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(result) for result in results)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{title}{machine.system}; {versions}.\n\n{table}"


def _row(result: Result) -> tuple[str, ...]:
    figure = result.figure
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
    bound = "" if figure.ratio is None else _number(figure.bound, figure)
    judged = (ratio, figure.target or "", VERDICTS[figure.reached])
    named = (figure.bench, figure.metric, _number(figure.value, figure), figure.against, bound)
    return (*named, *judged, str(figure.rounds), result.run.date, result.run.commit, f"{result.run.load:g}")


def _number(value: float, figure: Figure) -> str:
    digits = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{digits.replace(',', ' ')} {figure.unit}"
