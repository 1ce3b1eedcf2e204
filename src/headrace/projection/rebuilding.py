"""Rebuilding a projection: its work is reset, and all events, or those from a place on, are handled again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headrace.errors import SlotsMoved
from headrace.observe import SILENT, Progress, Step
from headrace.projection.definitions import Projection
from headrace.projection.ports import Offsets, Target
from headrace.projection.running import ProjectionRunner
from headrace.projection.slots import check_not_ahead
from headrace.runtime import SYSTEM_CLOCK
from headrace.tags import After, TaggedEvent, TagOffset, TagQueries, after_of

__all__ = ["Rebuilt", "rebuild"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did, or would do: `events` it handled, and `by_workers` that ran beside it."""

    events: int
    took_s: float
    by_workers: int = 0

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

    Workers may run meanwhile: they are overtaken when the work is reset, and then help with what is to be done.
    """
    after, started_s = after_of(start), time.perf_counter()
    check_not_ahead(projection.name, {0: after}, SYSTEM_CLOCK.now_ms())
    with progress.step(f"counting the events under {projection.source}", unit="events") as step:
        total = await _count(queries, projection.sources, after, step)
    if dry_run:
        return Rebuilt(total, time.perf_counter() - started_s)
    await target.begin_again(after)
    started_s = time.perf_counter()
    with progress.step(f"rebuilding {projection.name}", total=total, unit="events") as step:
        shown = _Shown(target, step)
        await _catch_up(ProjectionRunner(projection, queries, shown))
    return Rebuilt(shown.count, time.perf_counter() - started_s, by_workers=max(0, total - shown.count))


async def _catch_up(runner: ProjectionRunner) -> None:
    """Catch up, together with the workers: whenever one of them was quicker, from where it is now."""
    while True:
        try:
            await runner.catch_up()
            return
        except SlotsMoved:
            continue


async def _count(queries: TagQueries, tags: Sequence[str], after: TagOffset | None, step: Step) -> int:
    count = 0
    async with aclosing(queries.events(tags, after=after)) as events:
        async for _ in events:
            count += 1
            step.advance()
    return count


class _Shown:
    """A target whose work is shown and counted."""

    def __init__(self, target: Target, step: Step) -> None:
        self._target = target
        self._step = step
        self.count = 0
        self.is_transactional = target.is_transactional
        self.letters = target.letters
        self.load = target.load
        self.bury = target.bury
        self.begin_again = target.begin_again
        self.put = target.put
        self.close = target.close

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset, *, attempt: int = 1) -> None:
        """Handle events and show how many."""
        await self._target.handle(events, known, to, attempt=attempt)
        self.count += len(events)
        self._step.advance(len(events))
