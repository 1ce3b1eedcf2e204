"""Requests that queries share: one request serves all callers that ask the same at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.store import TagTime
from headrace.tags.registry import TagFacts

__all__ = ["Announcements", "Look", "SharedRequest"]

T = TypeVar("T")


class SharedRequest(Generic[T]):
    """A request that is made once for many callers. Only `current` and `recent` may use one from before the call."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._answer: tuple[float, T] | None = None

    async def now(self) -> T:
        """Return the answer to a request that starts after this call."""
        return await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[T]:
        """Start a request after the current one, if none waits for that yet. It goes on if no caller waits for it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._put(self._asking), name="headrace-shared-look")
            self._next.add_done_callback(_retrieve_error)
        return self._next

    async def current(self) -> T:
        """Return the answer to the request that is under way, or to a new one."""
        if self._asking is not None and not self._asking.done():
            return await asyncio.shield(self._asking)
        return await self.now()

    async def recent(self, max_age_s: float) -> T:
        """Return an answer that is at most this old."""
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


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a request whose callers are all gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


class Look(NamedTuple):
    """One look for announced topics: the facts it found, the place it covers up to, and when it began (loop time)."""

    facts: TagFacts
    up_to: TagTime
    began_s: float


class Announcements:
    """The looks of one process. `ask` reads the facts; `read_up_to` returns how far partitions have been read."""

    def __init__(self, ask: Callable[[], Awaitable[TagFacts]], read_up_to: Callable[[], TagTime]) -> None:
        self._ask = ask
        self._read_up_to = read_up_to
        self._looks = SharedRequest(self._look)
        self._latest: Look | None = None
        self._up_to: TagTime | None = None
        self._began_s = 0.0

    def begin(self, place: TagTime, *, since_s: float) -> None:
        """Begin a look that covers events up to a place, if there is none; `covering` returns it later."""
        if self._known(place, since_s) is None and not self._is_asking(place, since_s):
            self._looks.begin()

    async def covering(self, place: TagTime, *, since_s: float) -> Look:
        """Return a look that began after `since_s` and covers events up to a place; they must have been read by now."""
        known = self._known(place, since_s)
        if known is not None:
            return known
        if self._is_asking(place, since_s):
            return await self._looks.current()
        look = await self._looks.now()
        return look._replace(up_to=max(place, look.up_to))

    def _known(self, place: TagTime, since_s: float) -> Look | None:
        latest = self._latest
        return latest if latest is not None and place <= latest.up_to and latest.began_s >= since_s else None

    def _is_asking(self, place: TagTime, since_s: float) -> bool:
        return self._up_to is not None and place <= self._up_to and self._began_s >= since_s

    async def _look(self) -> Look:
        up_to, began_s = self._read_up_to(), asyncio.get_running_loop().time()
        self._up_to, self._began_s = up_to, began_s
        try:
            self._latest = Look(await self._ask(), up_to, began_s)
        finally:
            self._up_to = None
        return self._latest
