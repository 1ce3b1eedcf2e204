"""Running one bench: a warm-up, then rounds of work and bound in turn."""

from __future__ import annotations

import gc

from benchmarks.harness.bench import Bench, Readings, Side, Stage, Tell
from benchmarks.harness.figures import Figure, figure_of

__all__ = ["play"]


async def play(bench: Bench, stage: Stage, *, rounds: int) -> list[Figure]:
    """Run the bench and return its figures."""
    tell = stage.tell
    tell("setting up")
    first, rounds = (1, 1) if bench.is_one_round else (0, min(rounds, bench.most_rounds or rounds))
    work: list[Readings] = []
    bound: list[Readings] = []
    async with bench.setup(stage) as contest:
        for nr in range(first, rounds + 1):
            step = f"round {nr} of {rounds}" if nr else "warm-up"
            seen = await _take(contest.work, f"{step}: work", tell)
            limit = await _take(contest.bound, f"{step}: bound", tell) if contest.bound else {}
            if nr:
                work.append(seen)
                bound.append(limit)
        tell("taking down")
    return [
        figure_of(bench, measure, work, bound) for measure in bench.measures if stage.is_huge or not measure.is_huge
    ]


async def _take(side: Side, step: str, tell: Tell) -> Readings:
    # Collect garbage of the other side first, so that this side does not pay for it.
    gc.collect()
    readings = await side()
    tell(f"{step}: {', '.join(f'{metric} {_short(reading)}' for metric, reading in readings.items())}")
    return readings


def _short(reading: float) -> str:
    return f"{reading:,.0f}" if reading >= 1000 else f"{reading:.4g}"
