"""The order of one caller's requests for one key: while one is being repeated, those after it wait."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Self

__all__ = ["RequestLanes", "Ticket"]


class Ticket:
    """One request's place in the lane of its key, while the block runs."""

    __slots__ = ("_before", "_done", "_is_done", "_key", "_lane", "_lanes", "is_repeated")

    def __init__(self, lanes: dict[Hashable, list[Ticket]], key: Hashable) -> None:
        self._lanes = lanes
        self._key = key
        lane = lanes.get(key)
        self._before: Sequence[Ticket] = ()
        if lane is None:
            lane = lanes[key] = [self]
        else:
            self._before = tuple(lane)
            lane.append(self)
        self._lane = lane
        self._is_done = False
        self._done: asyncio.Event | None = None
        self.is_repeated = False

    @property
    def must_wait(self) -> bool:
        """True if an earlier request of the key is being repeated."""
        return bool(self._before) and any(ticket.is_repeated for ticket in self._before)

    async def wait_to_send(self) -> None:
        """Return when no earlier request of the key is being repeated."""
        for ticket in self._before:
            if ticket.is_repeated:
                await ticket.ended()

    async def wait_to_repeat(self) -> None:
        """Return when all earlier requests of the key have ended: they may have to be repeated, too."""
        self.is_repeated = True
        for ticket in self._before:
            await ticket.ended()

    async def ended(self) -> None:
        """Return when the request has ended."""
        if not self._is_done:
            self._done = self._done or asyncio.Event()
            await self._done.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_done = True
        self._before = ()  # those behind hold this one; else they would hold all that ever were before it
        if self._done is not None:
            self._done.set()
        if len(self._lane) == 1:
            del self._lanes[self._key]
        else:
            self._lane.remove(self)


class RequestLanes:
    """The lanes of all keys that have requests under way."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, list[Ticket]] = {}

    def ticket(self, key: Hashable) -> Ticket:
        """Take a place behind the requests of the key that are under way; it is left at the end of the block."""
        return Ticket(self._lanes, key)
