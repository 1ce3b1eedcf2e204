"""Commits: how many events are handled and stored together, and when an offset is stored without events.

With a database each batch is a transaction. Without one the offset is stored after every `save_every` events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from headrace.tags import TaggedEvent

__all__ = ["PassedEvents", "batches", "is_commit_due"]

# Events of other workers move the offset too, but need not be stored at once.
_PASSED_AT_MOST = 5000
# But they must be stored some time: events after a slot's offset may be trimmed, and would count as missed.
_STORE_PASSED_S = 10.0


async def batches(
    events: AsyncGenerator[TaggedEvent, None], *, size: int, queue: int = 2, idle_s: float | None = None
) -> AsyncGenerator[list[TaggedEvent], None]:
    """Yield the events in batches of up to `size` events; the next one is gathered while one is being handled.

    An empty batch means that nothing came for `idle_s`.
    """
    gathered: asyncio.Queue[TaggedEvent | None] = asyncio.Queue(size * queue)
    feeding = asyncio.create_task(_feed(events, gathered), name="headrace-projection-feed")
    try:
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    event = await gathered.get()
            except TimeoutError:
                yield []
                continue
            if event is None:
                break
            batch = [event]
            while len(batch) < size and not gathered.empty():
                more = gathered.get_nowait()
                if more is None:
                    yield batch
                    await feeding
                    return
                batch.append(more)
            yield batch
        await feeding
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _feed(events: AsyncGenerator[TaggedEvent, None], into: asyncio.Queue[TaggedEvent | None]) -> None:
    try:
        async with aclosing(events):
            async for event in events:
                await into.put(event)
    finally:
        if not _is_cancelled():
            await into.put(None)  # the end, or an error that the reader will raise


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_commit_due(handled: int, batch: int, *, save_every: int | None) -> bool:
    """Return True if the offset is stored in the middle of a batch, after `handled` of its events."""
    return save_every is not None and handled % save_every == 0 and handled < batch


class PassedEvents:
    """Counts the events that a worker has read since its offset was last stored, its own and those of others."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.store_after_s = _STORE_PASSED_S
        self._now_s = now_s
        self._count = 0
        self._stored_s = now_s()

    def add(self, count: int) -> None:
        """Note that events were read."""
        self._count += count

    def stored(self) -> None:
        """Note that the offset was stored."""
        self._count = 0
        self._stored_s = self._now_s()

    @property
    def is_any(self) -> bool:
        """True if the offset has moved since it was stored."""
        return self._count > 0

    @property
    def is_commit_due(self) -> bool:
        """True if it is time to store an offset that only events of other workers have moved."""
        has_waited = self._now_s() - self._stored_s >= self.store_after_s
        return self._count >= _PASSED_AT_MOST or (self._count > 0 and has_waited)
