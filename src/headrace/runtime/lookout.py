"""Waiting for what can only be asked: of all who wait for it, one asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Lookout"]


class Lookout:
    """Lets any number of tasks wait for a condition that nobody tells them of.

    Promises: however many wait, the condition is asked once in `every_s`. If each asked for itself, a thousand requests
    that wait for a busy node would keep it from ever being ready.
    """

    def __init__(self, is_so: Callable[[], bool], *, every_s: float) -> None:
        self._is_so = is_so
        self._every_s = every_s
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, timeout_s: float) -> None:
        """Return when the condition held, or the time is up; it may hold no more by then, so look again."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="headrace-lookout")
        await asyncio.wait([self._asking], timeout=timeout_s)

    def close(self) -> None:
        """Let all go on."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        while not self._is_so():  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(self._every_s)
