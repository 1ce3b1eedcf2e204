"""Looking for topics that were announced, once for all queries of a process.

A query looks after it has read its events and before it delivers them: a topic that is announced later begins above all
that was in the log by then. So a look that one query asks for serves all others, up to the highest place that any
partition had been read to when the look began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headrace.store import TagTime
from headrace.tags.registry import Registry
from headrace.tags.shared_looks import SharedLook

__all__ = ["Announcements", "Look"]


class Look(NamedTuple):
    """The facts as a look found them, the place that it serves up to, and when it began (on the event loop's clock)."""

    registry: Registry
    up_to: TagTime
    began_s: float


class Announcements:
    """The looks of one process. `ask` reads the facts, `read_up_to` says how far partitions have been read."""

    def __init__(self, ask: Callable[[], Awaitable[Registry]], read_up_to: Callable[[], TagTime]) -> None:
        self._ask = ask
        self._read_up_to = read_up_to
        self._looks = SharedLook(self._look)
        self._latest: Look | None = None
        self._up_to: TagTime | None = None
        self._began_s = 0.0

    def begin(self, place: TagTime, *, since_s: float) -> None:
        """Let a look begin that serves events up to a place, if there is none; `covering` returns it later."""
        if self._known(place, since_s) is None and not self._is_asking(place, since_s):
            self._looks.begin()

    async def covering(self, place: TagTime, *, since_s: float) -> Look:
        """Return a look that serves events up to a place which were read by now, and began after a moment."""
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
