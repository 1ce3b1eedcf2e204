"""The order of one caller's requests for one key: while one is being repeated, those after it wait."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

__all__ = ["RequestLanes", "Ticket"]


class Ticket:
    """One request's place in the lane of its key."""

    def __init__(self, before: list[Ticket]) -> None:
        self._before = before
        self.done = asyncio.Event()
        self.is_repeated = False

    async def wait_to_send(self) -> None:
        """Return when no earlier request of the key is being repeated."""
        for ticket in self._before:
            if ticket.is_repeated:
                await ticket.done.wait()

    async def wait_to_repeat(self) -> None:
        """Return when all earlier requests of the key have ended: they may have to be repeated, too."""
        self.is_repeated = True
        for ticket in self._before:
            await ticket.done.wait()

    def end(self) -> None:
        """Let those behind go on."""
        self.done.set()


class RequestLanes:
    """The lanes of all keys that have requests under way."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, list[Ticket]] = {}

    @contextmanager
    def ticket(self, key: Hashable) -> Iterator[Ticket]:
        """Take a place behind the requests of the key that are under way."""
        lane = self._lanes.setdefault(key, [])
        ticket = Ticket(list(lane))
        lane.append(ticket)
        try:
            yield ticket
        finally:
            ticket.end()
            lane.remove(ticket)
            if not lane:
                del self._lanes[key]
