"""Workers of a projection: the pause, the list of workers, and the share of each.

A claim counts as long as its number keeps rising. A process that waits watches it by its own clock, so that clocks of
different machines are never compared.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from headrace.errors import Unavailable
from headrace.observe import get_logger
from headrace.projection.projection import Projection
from headrace.projection.slots import owned
from headrace.runtime import Clock
from headrace.store import SharedSettings

__all__ = [
    "Attendance",
    "BeatWatch",
    "Claim",
    "ClaimWatch",
    "Control",
    "Pause",
    "SharedValue",
    "SlotShare",
    "WorkerPlan",
    "WorkerReport",
    "share_of",
]

_LOOKS_PER_LEASE = 4


class BeatWatch:
    """The beats of other processes as one process has seen them.

    Time counts only while this process is running: a long gap between two looks, in which it was suspended, shows
    nothing about others.
    """

    def __init__(self, lease_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._now_s = now_s
        self._looked_s = now_s()
        self._silent_s: dict[str, tuple[int, float]] = {}

    def living(self, beats: Mapping[str, int]) -> set[str]:
        """Return the names whose beat has changed within a lease; a name that is new counts as alive."""
        now_s = self._now_s()
        passed_s = min(now_s - self._looked_s, self._lease_s / _LOOKS_PER_LEASE)
        self._looked_s = now_s
        before, self._silent_s = self._silent_s, {}
        for name, beat in beats.items():
            known, silent_s = before.get(name, (None, 0.0))
            self._silent_s[name] = (beat, silent_s + passed_s if beat == known else 0.0)
        return {name for name, (_, silent_s) in self._silent_s.items() if silent_s < self._lease_s}


class Claim(msgspec.Struct, frozen=True):
    """The slots that a worker is working on; `beat` rises while it is alive."""

    slots: tuple[int, ...]
    beat: int = 0


class ClaimWatch:
    """The claims of other workers as a worker that waits for slots has seen them."""

    def __init__(self, lease_s: float) -> None:
        self._beats = BeatWatch(lease_s)

    def living(self, claims: Mapping[str, Claim], slots: Iterable[int]) -> set[str]:
        """Return the workers that claim some of these slots and whose claim has changed within a lease."""
        wanted = set(slots)
        alive = self._beats.living({worker: claim.beat for worker, claim in claims.items()})
        return {worker for worker in alive if wanted.intersection(claims[worker].slots)}


T = TypeVar("T", bound=msgspec.Struct)


class SharedValue(Generic[T]):
    """A struct under one key of the settings. Changes are atomic, also between processes."""

    def __init__(self, settings: SharedSettings, key: str, empty: T) -> None:
        self._settings = settings
        self._key = key
        self._empty = empty
        self._decode = msgspec.json.Decoder(type(empty)).decode

    async def get(self) -> T:
        """Return the value."""
        text = await self._settings.get(self._key)
        return self._empty if text is None else self._decode(text)

    async def change(self, edit: Callable[[T], T]) -> T:
        """Change the value. `edit` is called again if another process was faster; what it raises ends the change."""
        while True:
            text = await self._settings.get(self._key)
            old = self._empty if text is None else self._decode(text)
            new = edit(old)
            if new == old and text is not None:
                return new
            if await self._settings.put(self._key, msgspec.json.encode(new).decode(), expected=text):
                return new


class Pause(msgspec.Struct, frozen=True):
    """A request that a projection pauses."""

    since_ms: int
    reason: str = ""


class WorkerReport(msgspec.Struct, frozen=True):
    """The report of a worker. `beat` rises while it is alive; `at_ms` is its own clock."""

    host: str
    pid: int
    slots: tuple[int, ...]
    state: str
    beat: int
    at_ms: int
    error: str | None = None


class _Pauses(msgspec.Struct, frozen=True):
    pause: Pause | None = None


class _Workers(msgspec.Struct, frozen=True):
    workers: dict[str, WorkerReport] = {}


class Control:
    """The pause and the workers of one projection, stored for all processes; they survive restarts."""

    def __init__(self, settings: SharedSettings, name: str) -> None:
        self._pauses = SharedValue(settings, f"projection-pause/{name}", _Pauses())
        self._workers = SharedValue(settings, f"projection-workers/{name}", _Workers())

    async def paused(self) -> Pause | None:
        """Return the pause, if there is one."""
        return (await self._pauses.get()).pause

    async def pause(self, pause: Pause) -> bool:
        """Pause all workers until `resume`; False if they were paused before."""
        was_paused = await self.paused() is not None
        await self._pauses.change(lambda stored: stored if stored.pause is not None else _Pauses(pause))
        return not was_paused

    async def resume(self) -> bool:
        """Let the workers go on; False if there was no pause."""
        was_paused = await self.paused() is not None
        await self._pauses.change(lambda _: _Pauses())
        return was_paused

    async def workers(self) -> Mapping[str, WorkerReport]:
        """Return the last report of each worker, also of those that died a short time ago."""
        return (await self._workers.get()).workers

    async def report(self, worker: str, report: WorkerReport, *, dead: frozenset[str] = frozenset()) -> None:
        """Store the report of a worker, and remove dead workers."""

        def edit(stored: _Workers) -> _Workers:
            others = {name: other for name, other in stored.workers.items() if name not in dead and name != worker}
            return _Workers({**others, worker: report})

        await self._workers.change(edit)

    async def leave(self, worker: str) -> None:
        """Remove a worker that has stopped."""
        await self._workers.change(
            lambda stored: _Workers({name: each for name, each in stored.workers.items() if name != worker})
        )


_logger = get_logger(__name__)

_BEATS_PER_LEASE = 4
_LOOK_S = 1.0  # a pause is noticed within this


@dataclass(frozen=True)
class SlotShare:
    """A fixed share of the work: number `worker`, from 0, of `workers`."""

    worker: int
    workers: int


@dataclass(frozen=True)
class WorkerPlan:
    """The current plan of a worker: which slots it has, and if it is paused."""

    slots: tuple[int, ...]
    is_paused: bool = False


def share_of(worker: str, living: Iterable[str], slots: int) -> tuple[int, ...]:
    """Return the slots of one of the workers that are alive. Workers that see the same list agree."""
    ranked = sorted({worker, *living})[:slots]  # if there are more workers than slots, the last ones wait
    return tuple(owned(ranked.index(worker), len(ranked), slots)) if worker in ranked else ()


class Attendance:
    """Keeps a worker's `plan` up to date while it is open; `changed` is set when the plan has changed.

    With a share the slots are fixed; otherwise the workers that are alive divide the slots among themselves. Two
    workers may have the same slot for a moment: the offsets, not the shares, keep events from being handled twice.
    """

    def __init__(self, control: Control, projection: Projection, share: SlotShare | None, clock: Clock) -> None:
        self.name = uuid.uuid4().hex
        self.plan = WorkerPlan(())
        self.changed = asyncio.Event()
        self._control = control
        self._projection = projection
        self._fixed = None if share is None else tuple(owned(share.worker, share.workers, projection.slots))
        self._clock = clock
        self._watch = BeatWatch(projection.lease_s)
        self._beat = 0
        self._beat_s = projection.lease_s / _BEATS_PER_LEASE
        self._reported: tuple[float, WorkerPlan, str | None] | None = None

    @asynccontextmanager
    async def open(self, error: Callable[[], str | None]) -> AsyncIterator[None]:
        """Report and update the plan while the block runs; `error` returns the worker's current failure."""
        self._reported = None
        try:
            await self._attend(error())
        except asyncio.CancelledError:  # others may have seen the report, and would leave slots to nobody for a lease
            await self._leave()
            raise
        attending = asyncio.create_task(self._attend_on(error), name="headrace-projection-attendance")
        try:
            yield
        finally:
            attending.cancel()
            try:
                await asyncio.gather(attending, return_exceptions=True)
            finally:
                await self._leave()

    async def pause(self, reason: str) -> None:
        """Pause all workers, and follow that at once."""
        await self._control.pause(Pause(self._clock.now_ms(), reason))
        self._follow(WorkerPlan(self.plan.slots, is_paused=True))

    async def _attend_on(self, error: Callable[[], str | None]) -> None:
        is_reachable = True
        while True:
            await asyncio.sleep(min(_LOOK_S, self._beat_s))
            try:
                await self._attend(error())
                is_reachable = True
            except Unavailable as failure:  # the last plan stays: at worst some work is done twice
                if is_reachable:
                    _logger.warning("a projection's worker can't report", error=str(failure))
                is_reachable = False

    async def _attend(self, error: str | None) -> None:
        reports = await self._control.workers()
        others = {name: report.beat for name, report in reports.items() if name != self.name}
        living = self._watch.living(others)
        is_paused = await self._control.paused() is not None
        slots = self._fixed if self._fixed is not None else share_of(self.name, living, self._projection.slots)
        self._follow(WorkerPlan(slots, is_paused))
        if self._is_due(error):
            self._beat += 1
            await self._control.report(self.name, self._report(error), dead=frozenset(others.keys() - living))
            self._reported = (self._clock.monotonic_s(), self.plan, error)

    def _is_due(self, error: str | None) -> bool:
        """Return True if it is time for a report: at intervals, and when something has changed."""
        if self._reported is None or self._reported[1:] != (self.plan, error):
            return True
        return self._clock.monotonic_s() - self._reported[0] >= self._beat_s

    def _follow(self, plan: WorkerPlan) -> None:
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
