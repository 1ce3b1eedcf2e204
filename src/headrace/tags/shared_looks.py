"""One question for all who want to know the same at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

__all__ = ["SharedLook"]

T = TypeVar("T")


class SharedLook(Generic[T]):
    """Asks for many. Nobody is given the answer to a question that was put before he came, unless he says so."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._answer: tuple[float, T] | None = None

    async def now(self) -> T:
        """Return the answer to a question that is put from now on."""
        return await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[T]:
        """Put a question, or join those who wait for the next one. It goes on if nobody waits for the answer."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._put(self._asking), name="headrace-shared-look")
            self._next.add_done_callback(_look)
        return self._next

    async def current(self) -> T:
        """Return the answer to the question that is being asked; to a new one if none is."""
        if self._asking is not None and not self._asking.done():
            return await asyncio.shield(self._asking)
        return await self.now()

    async def lately(self, max_age_s: float) -> T:
        """Return an answer that is not older than that."""
        known = self._answer
        if known is not None and time.monotonic() - known[0] <= max_age_s:
            return known[1]
        return await self.current()

    async def _put(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._asking, self._next = self._next, None
        asked_s = time.monotonic()
        answer = await self._ask()
        self._answer = (asked_s, answer)
        return answer


def _look(task: asyncio.Task[Any]) -> None:
    """Look at the error of a question whose askers are all gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
