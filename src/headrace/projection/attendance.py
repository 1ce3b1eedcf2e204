"""A worker's attendance: it says what it does, hears of pauses, and finds its share among the workers there are."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.errors import Unavailable
from headrace.observe import get_logger
from headrace.projection.claims import BeatWatch
from headrace.projection.control import Control, Pause, WorkerReport
from headrace.projection.definitions import Projection
from headrace.projection.slots import owned
from headrace.runtime import Clock

__all__ = ["Attendance", "Plan", "Share", "share_of"]

_logger = get_logger(__name__)

_BEATS_PER_LEASE = 4
_LOOK_S = 1.0  # a pause is noticed within this


@dataclass(frozen=True)
class Share:
    """A fixed share of the work: number `worker`, from 0, of `workers`."""

    worker: int
    workers: int


@dataclass(frozen=True)
class Plan:
    """What a worker should do now."""

    slots: tuple[int, ...]
    is_paused: bool = False


def share_of(worker: str, living: Iterable[str], slots: int) -> tuple[int, ...]:
    """Return the slots of one of the workers that are alive. All who see the same workers agree. Pure."""
    ranked = sorted({worker, *living})[:slots]  # who comes behind the last slot waits for one to be free
    return tuple(owned(ranked.index(worker), len(ranked), slots)) if worker in ranked else ()


class Attendance:
    """Keeps `plan` up to date while it is open; `changed` is set when the plan is another one.

    With a share the slots are fixed; without one the workers that are alive share the slots among themselves. Two
    workers may think for a moment that a slot is theirs: offsets, not shares, keep them apart.
    """

    def __init__(self, control: Control, projection: Projection, share: Share | None, clock: Clock) -> None:
        self.name = uuid.uuid4().hex
        self.plan = Plan(())
        self.changed = asyncio.Event()
        self._control = control
        self._projection = projection
        self._fixed = None if share is None else tuple(owned(share.worker, share.workers, projection.slots))
        self._clock = clock
        self._watch = BeatWatch(projection.lease_s)
        self._beat = 0
        self._beat_s = projection.lease_s / _BEATS_PER_LEASE
        self._reported: tuple[float, Plan, str | None] | None = None

    @asynccontextmanager
    async def open(self, error: Callable[[], str | None]) -> AsyncIterator[None]:
        """Attend while the block runs; `error` says what the worker fails at."""
        self._reported = None
        await self._attend(error())
        attending = asyncio.create_task(self._attend_on(error), name="headrace-projection-attendance")
        try:
            yield
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)
            await self._leave()

    async def pause(self, reason: str) -> None:
        """Let all workers stand still, and mind it at once."""
        await self._control.pause(Pause(self._clock.now_ms(), reason))
        self._follow(Plan(self.plan.slots, is_paused=True))

    async def _attend_on(self, error: Callable[[], str | None]) -> None:
        is_reachable = True
        while True:
            await asyncio.sleep(min(_LOOK_S, self._beat_s))
            try:
                await self._attend(error())
                is_reachable = True
            except Unavailable as failure:  # the last plan holds on: it costs work done twice at worst
                if is_reachable:
                    _logger.warning("a projection's worker can't report", error=str(failure))
                is_reachable = False

    async def _attend(self, error: str | None) -> None:
        reports = await self._control.workers()
        others = {name: report.beat for name, report in reports.items() if name != self.name}
        living = self._watch.living(others)
        is_paused = await self._control.paused() is not None
        slots = self._fixed if self._fixed is not None else share_of(self.name, living, self._projection.slots)
        self._follow(Plan(slots, is_paused))
        if self._is_due(error):
            self._beat += 1
            await self._control.report(self.name, self._report(error), dead=frozenset(others.keys() - living))
            self._reported = (self._clock.monotonic_s(), self.plan, error)

    def _is_due(self, error: str | None) -> bool:
        """Return True if others should hear from us: now and then, and when something has changed."""
        if self._reported is None or self._reported[1:] != (self.plan, error):
            return True
        return self._clock.monotonic_s() - self._reported[0] >= self._beat_s

    def _follow(self, plan: Plan) -> None:
        if plan != self.plan:
            self.plan = plan
            self.changed.set()

    def _report(self, error: str | None) -> WorkerReport:
        state = "paused" if self.plan.is_paused else "failing" if error else "running" if self.plan.slots else "waiting"
        return WorkerReport(
            socket.gethostname(), os.getpid(), self.plan.slots, state, self._beat, self._clock.now_ms(), error
        )

    async def _leave(self) -> None:
        try:
            await asyncio.shield(self._control.leave(self.name))
        except Unavailable as failure:
            _logger.warning("a projection's worker can't say that it stopped", error=str(failure))
