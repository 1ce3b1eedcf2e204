"""What goes on beside the sending of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from headrace.outbox.rows import RowBatch

__all__ = ["Flow"]

# About what it takes to hand a full batch to a producer.
_PRODUCING_S = 0.003


class Flow:
    """What goes on beside the sending: the next batch is read, the last one is deleted."""

    def __init__(self) -> None:
        self.reading: asyncio.Task[RowBatch] | None = None
        self._settling: asyncio.Task[None] | None = None

    def read_ahead(self, read: Callable[[], Awaitable[RowBatch]]) -> None:
        """Begin to read, once the batch in hand is with the log's producer.

        Until then both would fight for the interpreter; afterwards this one waits for the network anyway.
        """

        async def read_then() -> RowBatch:
            await asyncio.sleep(_PRODUCING_S)
            return await read()

        self.reading = asyncio.create_task(read_then())

    async def next_batch(self) -> RowBatch | None:
        """Return what was read ahead, once; None if nothing was."""
        reading, self.reading = self.reading, None
        return None if reading is None else await reading

    def settle(self, settle: Coroutine[object, object, None]) -> None:
        """Begin to delete."""
        self._settling = asyncio.create_task(settle)

    async def settled(self) -> None:
        """Wait for the last delete, and raise what it raised."""
        settling, self._settling = self._settling, None
        if settling is not None:
            await settling

    async def end(self) -> None:
        """Leave nothing behind."""
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.gather(self.reading, return_exceptions=True)
        await self.settled()
