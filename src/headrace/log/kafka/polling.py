"""Polling for a producer's deliveries: by a thread while few are expected, by the event loop while many are.

The driver takes the interpreter's lock for each delivery. A thread gets it at once while the loop sleeps, so one append
at a time is answered as soon as the broker answers. While the loop is busy, the thread would wait up to 5 ms for the
lock at each delivery; so then the loop polls every millisecond, without waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.log.kafka.faults import FATAL_RAISED, whole

__all__ = ["Landed", "Poller"]

_POLL_S = 0.1
_LOOK_EVERY_S = 0.001
_MANY = 64


class Landed(deque[Any]):
    """Appends whose deliveries are complete, until they are settled. Each is taken once."""

    def take(self) -> list[Any]:
        """Return all and remove them."""
        taken: list[Any] = []
        add, pop = taken.append, self.popleft
        with contextlib.suppress(IndexError):  # the other thread may take the last one meanwhile
            while True:
                add(pop())
        return taken


class Poller:
    """Polls a producer and calls `settle` on the loop with what has landed.

    `settle` is also called with nothing while an append `waits_for_room`: a delivery may have made room.
    """

    def __init__(
        self,
        producer: Any,  # noqa: ANN401
        landed: Landed,
        settle: Callable[[list[Any]], None],
        *,
        waits_for_room: Callable[[], bool],
        on_fatal: Callable[[], None],
    ) -> None:
        self._producer = producer
        self._landed = landed
        self._settle = settle
        self._waits_for_room = waits_for_room
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._is_stopped = False
        self._thread_polls = threading.Event()
        self._thread_polls.set()
        self._thread = threading.Thread(target=self._poll_on, name="headrace-kafka-poller", daemon=True)
        self._thread.start()

    def expect(self, count: int) -> None:
        """Note that this number of further appends is on its way."""
        self._in_flight += count
        if self._in_flight >= _MANY and self._thread_polls.is_set():
            self._thread_polls.clear()
            self._loop.call_later(_LOOK_EVERY_S, self._look)

    def stop(self) -> None:
        """Stop polling. The thread ends soon; `join` waits for it."""
        self._is_stopped = True
        self._thread_polls.set()

    def join(self) -> None:
        """Wait for the thread, and release the producer. Blocks."""
        self._thread.join()
        self._producer = None

    def hand_over(self) -> None:
        """Settle what has landed, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(self._settle_all, self._landed.take())

    def _settle_all(self, landed: list[Any]) -> None:
        self._in_flight -= len(landed)
        self._settle(landed)

    def _poll_on(self) -> None:
        while not self._is_stopped:
            # Only complete appends wake the loop: waking it costs as much as some ten deliveries.
            if self._poll(_POLL_S) and (self._landed or self._waits_for_room()):
                self.hand_over()
            self._thread_polls.wait()

    def _poll(self, wait_s: float) -> int:
        """Poll. A fatal error is raised once; polling goes on after it, because the failed deliveries come later."""
        try:
            return int(whole(self._producer.poll, wait_s))
        except FATAL_RAISED:
            self._on_fatal()
            return 1

    def _look(self) -> None:
        """Serve deliveries on the loop; schedule the next poll, or leave the last few to the thread."""
        if self._is_stopped:
            return
        self._poll(0)
        self._settle_all(self._landed.take())
        if self._in_flight >= _MANY:
            self._loop.call_later(_LOOK_EVERY_S, self._look)
        else:
            self._thread_polls.set()
