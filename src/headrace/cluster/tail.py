"""Following a partition, with the time at which each record arrived here; the clock and the tasks of who follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from headrace.errors import OffsetOutOfRange, Unavailable
from headrace.log import Log
from headrace.model import Batch, Record, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff, Clock

__all__ = ["CLOCK_STEP_S", "Sink", "Tail", "seconds", "sleep_until", "together"]

Sink: TypeAlias = Callable[[Record, float], None]

_logger = get_logger(__name__)
# The clock has no finer steps: who waits for less only asks it again and again.
CLOCK_STEP_S = 0.001
_BACKOFF = Backoff(first_s=0.05, limit_s=1.0)


def seconds(clock: Clock) -> float:
    """Return the time since the machine's start, also of a suspended one: what leases and waits are measured with."""
    return clock.boot_time().ms / 1000


async def sleep_until(clock: Clock, moment_s: float) -> None:
    """Sleep until a moment on this clock, which a suspended machine may have passed long ago."""
    while (left_s := moment_s - seconds(clock)) > 0:  # noqa: ASYNC110 - the clock is what counts, not the sleep
        await asyncio.sleep(max(left_s, CLOCK_STEP_S))


class Tail:
    """One partition, read once from `start` on; each record goes to the sink with the time of its arrival.

    Promises: the sink gets every committed record once, in order. A time of arrival is never before the commit.
    """

    def __init__(self, log: Log, at: TopicPartition, *, start: int, clock: Clock, sink: Sink) -> None:
        self.at = at
        self.position = start
        self._log = log
        self._clock = clock
        self._sink = sink

    async def follow(self) -> None:
        """Follow the partition until cancelled; while the log is away, ask again and again."""
        failures = 0
        while True:
            try:
                async for batch in self._log.read(self.at, self.position):
                    failures = 0
                    self._take(batch)
            except OffsetOutOfRange as error:
                self._skip_to(error)
            except Unavailable as error:
                failures += 1
                delay_s = _BACKOFF.delay_s(failures)
                _logger.warning("following failed", at=str(self.at), error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    async def read_committed(self, *, timeout_s: float) -> bool:
        """Read all that can be read now; returns False if an open transaction hides what comes after it."""
        bounds = await self._log.bounds(self.at)
        await self._read(bounds.end, timeout_s)
        return bounds.end == bounds.high_watermark

    async def read_to_end(self, *, timeout_s: float) -> None:
        """Read all that the partition holds now, records of transactions that are being committed included.

        The end is the high watermark: a commit is answered before its records lie below the last stable offset. So
        this is for those who have taken the id of whoever writes here; what that writer had open is aborted then.
        Raises TimedOut when another writer's open transaction is in the way for so long.
        """
        await self._read((await self._log.bounds(self.at)).high_watermark, timeout_s)

    async def _read(self, end: int, timeout_s: float) -> None:
        while self.position < end:
            try:
                async for batch in self._log.read(self.at, self.position, end, timeout_s=timeout_s):
                    self._take(batch)
            except OffsetOutOfRange as error:
                self._skip_to(error)

    def _take(self, batch: Batch) -> None:
        """Hand over what is new: `follow` and `read_to_end` may bring the same records."""
        now_s = seconds(self._clock)
        for record in batch.records:
            if record.offset >= self.position:
                self._sink(record, now_s)
                self.position = record.offset + 1
        self.position = max(self.position, batch.next_offset)

    def _skip_to(self, error: OffsetOutOfRange) -> None:
        """Go on at the log's start if retention removed what comes next; anything else is an error."""
        if self.position >= error.start:
            raise error
        self.position = error.start


async def together(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all to their ends. When one fails, or the caller is cancelled, the others are cancelled and waited for."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
