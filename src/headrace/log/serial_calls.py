"""Serial calls: one at a time, each run to its end even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["SerialCalls"]

P = ParamSpec("P")
T = TypeVar("T")


class SerialCalls:
    """Runs one call at a time, each in a task of its own, so that a cancelled caller leaves no half-done call."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """True if no call runs or waits: then what need not wait may be done without one."""
        return not self._running

    async def run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call and return what it returns."""
        return await asyncio.shield(self.start(call, *args, **kwargs))

    def start(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> asyncio.Task[T]:
        """Start a call; the caller need not await the returned task."""

        async def in_turn() -> T:
            async with self._lock:
                return await call(*args, **kwargs)

        task = asyncio.ensure_future(in_turn())
        self._running.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it when the caller is gone
