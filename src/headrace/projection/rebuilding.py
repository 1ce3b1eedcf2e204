"""Rebuilding a projection: its work is reset, and all events, or those from a place on, are handled again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headrace.observe import SILENT, Progress, Step
from headrace.projection.definitions import Projection
from headrace.projection.ports import Offsets, Target
from headrace.projection.running import ProjectionRunner
from headrace.tags import After, TaggedEvent, TagOffset, TagQueries, after_of

__all__ = ["Rebuilt", "rebuild"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did, or would do."""

    events: int
    took_s: float

    @property
    def events_per_s(self) -> float:
        """How fast it was."""
        return self.events / self.took_s if self.took_s else 0.0


async def rebuild(
    projection: Projection,
    queries: TagQueries,
    target: Target,
    *,
    start: After = None,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Rebuilt:
    """Reset the projection and handle the events after `start` again; a dry run only reads and counts them.

    Workers that run meanwhile are overtaken, and go on after it.
    """
    after, started_s = after_of(start), time.perf_counter()
    with progress.step(f"counting the events under {projection.tag}", unit="events") as step:
        total = await _count(queries, projection.tag, after, step)
    if dry_run:
        return Rebuilt(total, time.perf_counter() - started_s)
    await target.begin_again(after)
    started_s = time.perf_counter()
    with progress.step(f"rebuilding {projection.name}", total=total, unit="events") as step:
        runner = ProjectionRunner(projection, queries, _Shown(target, step))
        count = await runner.catch_up()
    return Rebuilt(count, time.perf_counter() - started_s)


async def _count(queries: TagQueries, tag: str, after: TagOffset | None, step: Step) -> int:
    count = 0
    async with aclosing(queries.events(tag, after=after)) as events:
        async for _ in events:
            count += 1
            step.advance()
    return count


class _Shown:
    """A target whose work is shown."""

    def __init__(self, target: Target, step: Step) -> None:
        self._target = target
        self._step = step
        self.load = target.load
        self.begin_again = target.begin_again
        self.close = target.close

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset) -> None:
        """Handle events and say how many."""
        await self._target.handle(events, known, to)
        self._step.advance(len(events))
