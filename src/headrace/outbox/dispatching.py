"""Who does what next: one look at the table for all workers, and fair turns between places."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from headrace.outbox.leases import LeaseTimes
from headrace.outbox.messages import Lane
from headrace.outbox.places import Lanes, free_places, soonest_s

__all__ = ["Dispatcher"]

# After something happened more is likely to follow: the first looks come quickly, then ever more slowly.
_FIRST_LOOK_S = 0.005


class Dispatcher:
    """Looks for places with messages and hands them to workers, in turn.

    Promises: a place is in one worker's hand at a time; one with more messages queues up behind the others; an idle
    table is looked at once per `poll_interval_s`, however many workers there are.
    """

    def __init__(self, places: Lanes, *, poll_interval_s: float, times: LeaseTimes, owners: Iterable[str] = ()) -> None:
        self._places = places
        self._owners = frozenset(owners)
        self._poll_interval_s = poll_interval_s
        self._times = times
        self._queue: deque[Lane] = deque()
        self._in_hand: set[Lane] = set()
        self._something_new = asyncio.Event()
        self._work = asyncio.Condition()
        self._is_closed = False

    def wake(self) -> None:
        """Look now: something was committed. On the event loop only."""
        self._something_new.set()

    async def run(self) -> None:
        """Look, hand out, wait, for ever."""
        delay_s = _FIRST_LOOK_S
        while True:
            self._something_new.clear()
            waiting = await self._places.waiting()
            found = await self._hand_out(free_places(waiting, self._times, self._owners))
            delay_s = _FIRST_LOOK_S if found else min(delay_s * 2, self._poll_interval_s)
            if await self._wait(soonest_s(waiting, delay_s)):
                delay_s = _FIRST_LOOK_S

    async def next(self) -> Lane | None:
        """Return the next place to work on; None when it is time to stop."""
        async with self._work:
            await self._work.wait_for(lambda: self._queue or self._is_closed)
            return None if self._is_closed else self._queue.popleft()

    async def done(self, place: Lane, *, more: bool) -> None:
        """Say that a turn is over; with more to do the place queues up again."""
        async with self._work:
            if more and not self._is_closed:
                self._queue.append(place)
                self._work.notify()
                return
            self._in_hand.discard(place)
        self.wake()

    async def close(self) -> None:
        """Hand out nothing more."""
        async with self._work:
            self._is_closed = True
            self._work.notify_all()

    async def _hand_out(self, places: list[Lane]) -> bool:
        new = [place for place in places if place not in self._in_hand]
        async with self._work:
            self._in_hand.update(new)
            self._queue.extend(new)
            self._work.notify(len(new))
        return bool(new)

    async def _wait(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                return await self._something_new.wait()
        except TimeoutError:
            return False
