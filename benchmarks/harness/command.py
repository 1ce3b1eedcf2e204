"""The command: lists benches, or runs them and prints their figures last."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import catalog
from benchmarks.harness.bench import Stage
from benchmarks.harness.figures import BenchFailed, Figure, line_of
from benchmarks.harness.machine import this_run
from benchmarks.harness.options import Options, parse
from benchmarks.harness.progress import Progress
from benchmarks.harness.report import PLOTS, store
from benchmarks.harness.rounds import play

__all__ = ["main"]


def main(arguments: Sequence[str], *, package: str = "benchmarks") -> int:
    """Run the command; return 0 if every bench ran, 1 if one failed, 2 if the arguments were wrong."""
    options = parse(arguments)
    progress = Progress(sys.stdout)
    if options.lists:
        return _list(progress, package)
    wrong = catalog.unknown(options.names, package)
    if wrong:
        known = "\n  ".join(catalog.names(package))
        progress.say(f"no bench is called {', '.join(map(repr, wrong))}; there are:\n  {known}")
        return 2
    return _run(options, progress, package)


def _list(progress: Progress, package: str) -> int:
    is_sound = True
    for name in catalog.names(package):
        try:
            bench = catalog.load(name, package)
        except Exception as error:
            is_sound = False
            progress.say(f"{name}: can't be loaded: {type(error).__name__}: {error}")
            continue
        progress.say(f"{name}: {bench.work}")
        for measure in bench.measures:
            beside = f"against {measure.against}, {measure.target or 'no target'}" if measure.against else "by itself"
            progress.say(f"    {measure.metric}: {beside}")
    return 0 if is_sound else 1


def _run(options: Options, progress: Progress, package: str) -> int:
    run = this_run()
    figures: list[Figure] = []
    failures: list[str] = []
    for name in options.names or catalog.names(package):
        try:
            fresh = _measure(name, options, progress, package)
            figures += fresh
            store(fresh, options.stored_in, run)
        except Exception as error:
            progress.say(traceback.format_exc().rstrip())
            failures.append(f"{name} failed: {type(error).__name__}: {error}")
    progress.say(f"results: {options.stored_in or 'not stored, the scale is not 1; --results DIR stores them there'}")
    for failure in failures:
        progress.say(failure)
    for figure in figures:
        print(line_of(figure), flush=True)
    return 1 if failures else 0


def _measure(name: str, options: Options, progress: Progress, package: str) -> list[Figure]:
    options.scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.scratch))
    try:
        with progress.bench(name) as tell:
            plots = options.stored_in / PLOTS if options.stored_in is not None else None
            stage = Stage(folder, options.scale, tell, options.repeats, plots, options.huge)
            return asyncio.run(_play(name, package, stage, options))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _play(name: str, package: str, stage: Stage, options: Options) -> list[Figure]:
    bench = catalog.load(name, package)
    try:
        async with asyncio.timeout(options.timeout_s) as deadline:
            return await play(bench, stage, rounds=options.rounds)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise BenchFailed(f"{name} took longer than {options.timeout_s:g} s; see --timeout-s") from error
