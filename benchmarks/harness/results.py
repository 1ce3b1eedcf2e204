"""The latest figure of every bench and metric, kept in one JSON file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks.harness.figures import BenchFailed, Figure
from benchmarks.harness.machine import Environment, Run

__all__ = ["Result", "load_results", "merge", "save_results"]

FILE = "results.json"


class Result(msgspec.Struct, frozen=True):
    """A figure, and when, where and of which code it was taken."""

    figure: Figure
    run: Run
    environment: Environment


def load_results(folder: Path) -> list[Result]:
    """Return what is stored in the folder; nothing if nothing is."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Result])
    except msgspec.DecodeError as error:
        raise BenchFailed(f"{path} can't be read ({error}); mend it, or remove it and run the benches again") from error


def merge(stored: Iterable[Result], fresh: Iterable[Result]) -> list[Result]:
    """Return all results, sorted; of two for the same bench and metric, the fresh one.

    If a bench ran again, stored metrics that it no longer has are removed.
    """
    fresh = list(fresh)
    ran = {result.figure.bench for result in fresh}
    kept = [result for result in stored if result.figure.bench not in ran]
    return sorted(kept + fresh, key=lambda result: (result.figure.bench, result.figure.metric))


def save_results(folder: Path, results: Iterable[Result]) -> None:
    """Store the results, all or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(msgspec.json.encode(result).decode() for result in results)
    written = folder / f"{FILE}.new"
    written.write_text(f"[\n{lines}\n]\n")
    written.replace(folder / FILE)
