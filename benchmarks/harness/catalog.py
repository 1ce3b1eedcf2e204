"""The catalog of benches."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

from benchmarks.harness.bench import Bench
from benchmarks.harness.figures import BenchFailed

__all__ = ["load", "names", "unknown"]


def names(package: str = "benchmarks") -> list[str]:
    """Return the names of all benches: one for each module of the package."""
    folder = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(folder) if not module.ispkg)
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def unknown(asked: Sequence[str], package: str = "benchmarks") -> list[str]:
    """Return the names in `asked` that are no bench."""
    known = set(names(package))
    return [name for name in asked if name not in known]


def load(name: str, package: str = "benchmarks") -> Bench:
    """Import a bench. Raises BenchFailed if its module has no BENCH."""
    module = f"{package}.{name.replace('-', '_')}"
    bench = getattr(importlib.import_module(module), "BENCH", None)
    if not isinstance(bench, Bench) or bench.name != name:
        raise BenchFailed(f"{module} must hold BENCH, a Bench named {name!r}")
    return bench
