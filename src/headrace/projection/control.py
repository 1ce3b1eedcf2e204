"""What operators and workers of a projection tell one another, in the store's settings: pauses, and who runs what."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.projection.shared_value import SharedValue
from headrace.store import Settings

__all__ = ["Control", "Pause", "WorkerReport"]


class Pause(msgspec.Struct, frozen=True):
    """A projection was asked to stand still."""

    since_ms: int
    reason: str = ""


class WorkerReport(msgspec.Struct, frozen=True):
    """What a worker says of itself. `beat` rises while it is alive; `at_ms` is by its own clock."""

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
    """The pause and the workers of one projection. They survive restarts and are the same for all processes."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._pauses = SharedValue(settings, f"projection-pause/{name}", _Pauses())
        self._workers = SharedValue(settings, f"projection-workers/{name}", _Workers())

    async def paused(self) -> Pause | None:
        """Return the pause, if there is one."""
        return (await self._pauses.get()).pause

    async def pause(self, pause: Pause) -> bool:
        """Ask all workers to stand still until `resume`; False if they were asked before."""
        was_paused = await self.paused() is not None
        await self._pauses.change(lambda stored: stored if stored.pause is not None else _Pauses(pause))
        return not was_paused

    async def resume(self) -> bool:
        """Let the workers go on; False if there was no pause."""
        was_paused = await self.paused() is not None
        await self._pauses.change(lambda _: _Pauses())
        return was_paused

    async def workers(self) -> Mapping[str, WorkerReport]:
        """Return what the workers said last, those that died a while ago included."""
        return (await self._workers.get()).workers

    async def report(self, worker: str, report: WorkerReport, *, dead: frozenset[str] = frozenset()) -> None:
        """Say what a worker does, and forget those that are dead."""

        def edit(stored: _Workers) -> _Workers:
            others = {name: other for name, other in stored.workers.items() if name not in dead and name != worker}
            return _Workers({**others, worker: report})

        await self._workers.change(edit)

    async def leave(self, worker: str) -> None:
        """Forget a worker that has stopped."""
        await self._workers.change(
            lambda stored: _Workers({name: each for name, each in stored.workers.items() if name != worker})
        )
