"""Projections in an application's process: `async with hr.project(balances)`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from headrace.errors import TagTrimmed, Unavailable
from headrace.observe import Health
from headrace.projection import (
    Attendance,
    Control,
    Lag,
    Offsets,
    Pause,
    Projection,
    ProjectionRunner,
    SlotShare,
    Target,
    WorkerReport,
    check_not_ahead,
    earliest,
    lag_of,
    open_target,
    wait_until_handled,
    wait_until_passed,
)
from headrace.runtime import SYSTEM_CLOCK
from headrace.store import Store
from headrace.tags import TagOffset, TagQueries

__all__ = ["ProjectionHandle", "ProjectionStatus", "opened_projection", "running_projection", "share_of_arguments"]


@dataclass(frozen=True)
class ProjectionStatus:
    """The status of a projection: its lag, the offset of its slowest slot, its workers and dead letters.

    `missed` says that events were removed from the views before they were handled; the lag does not count these.
    """

    name: str
    tag: str
    slots: int
    slots_begun: int
    offset: TagOffset | None
    lag: Lag
    pause: Pause | None
    dead_letters: int
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    missed: str | None = None


class ProjectionHandle:
    """The handle of a projection: waits for it, pauses it and shows its status, wherever its workers run."""

    def __init__(self, projection: Projection, queries: TagQueries, store: Store, target: Target) -> None:
        self.projection = projection
        self.health = Health(f"projection {projection.name}")
        self.target = target
        self.control = Control(store.settings, projection.name)
        self._queries = queries

    async def handled(self, topic: str, id_: str, *, seq_nr: int | None = None, timeout_s: float = 30.0) -> None:
        """Wait until what was written to a journal before the call, or up to a seq_nr, is handled. Raises TimedOut."""
        await wait_until_handled(
            self.projection, self._queries, self.target, topic=topic, id_=id_, seq_nr=seq_nr, timeout_s=timeout_s
        )

    async def caught_up(self, *, timeout_s: float = 30.0) -> None:
        """Wait until everything written before the call is handled. Raises TimedOut."""
        await wait_until_handled(self.projection, self._queries, self.target, timeout_s=timeout_s)

    async def wait_for(self, token: str, *, timeout_s: float = 30.0) -> None:
        """Wait until what a consistency token names is handled: after this, what the handler wrote shows it.

        Raises TimedOut, BadToken, TokenOfOtherTopic, TokenAhead.
        """
        await wait_until_passed(self.projection, self._queries, self.target, token, timeout_s=timeout_s)

    async def pause(self, reason: str = "") -> bool:
        """Pause all workers, also those that start later, until `resume`; False if they are paused already."""
        return await self.control.pause(Pause(SYSTEM_CLOCK.now_ms(), reason))

    async def resume(self) -> bool:
        """Let the workers go on; False if there was no pause."""
        return await self.control.resume()

    async def status(self, *, count_up_to: int = 100_000) -> ProjectionStatus:
        """Return the status; the lag is counted by reading the events that wait."""
        offsets = await self.target.load()
        lag, missed = await self._lag(offsets, count_up_to)
        return ProjectionStatus(
            self.projection.name,
            self.projection.source,
            len(offsets),
            sum(place is not None for place in offsets.values()),
            earliest(offsets),
            lag,
            await self.control.paused(),
            len(await self.target.letters.all()),
            dict(await self.control.workers()),
            missed,
        )

    async def _lag(self, offsets: Offsets, limit: int) -> tuple[Lag, str | None]:
        try:
            return await lag_of(self.projection, self._queries, offsets, limit=limit), None
        except TagTrimmed as error:
            left = await lag_of(self.projection, self._queries, offsets, limit=limit, skip_trimmed=True)
            return left, str(error)


async def _check(handle: ProjectionHandle) -> None:
    """Raise errors that no retry would change, such as other tags or slots, before anything runs in the background."""
    try:
        check_not_ahead(handle.projection.name, await handle.target.load(), SYSTEM_CLOCK.now_ms())
    except Unavailable as error:  # the worker will try again and log it
        handle.health.down(str(error))


def share_of_arguments(worker: int | None, workers: int | None) -> SlotShare | None:
    """Return the fixed share that the arguments ask for; None if the workers divide the slots themselves."""
    if worker is None and workers is None:
        return None
    return SlotShare(worker or 0, 1 if workers is None else workers)


@contextlib.asynccontextmanager
async def opened_projection(
    projection: Projection, queries: TagQueries, store: Store
) -> AsyncIterator[ProjectionHandle]:
    """Open the target of the projection without running it."""
    target = open_target(projection, store.settings)
    try:
        yield ProjectionHandle(projection, queries, store, target)
    finally:
        await target.close()


@contextlib.asynccontextmanager
async def running_projection(
    projection: Projection, queries: TagQueries, store: Store, share: SlotShare | None
) -> AsyncIterator[ProjectionHandle]:
    """Run a worker of the projection while the block runs."""
    async with opened_projection(projection, queries, store) as handle:
        await _check(handle)
        attendance = Attendance(handle.control, projection, share, SYSTEM_CLOCK)
        runner = ProjectionRunner(projection, queries, handle.target, health=handle.health, attendance=attendance)
        running = asyncio.create_task(runner.run(), name=f"headrace-projection-{projection.name}")
        try:
            yield handle
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled() and (error := running.exception()) is not None:
                raise error  # not a failure of the handler: those are tried again and never end the worker
