"""A log that holds a script, for readers: `end` says how far it has been written, and moves as a writer would."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headrace.errors import OffsetOutOfRange, TimedOut
from headrace.model import Batch, Bounds, NewRecord, Position, Record, Topic, TopicConfig, TopicPartition
from headrace.testing.conformance.log_on_top import ReadCall, Readings

__all__ = ["ScriptLog"]


class ScriptLog(Readings):
    """Serves `Log.read`, `bounds` and `admin.describe` out of a list of records, in batches of random size."""

    def __init__(self, topic: str, records: Sequence[Record], rng: random.Random) -> None:
        self.topic = topic
        self.records = records
        self.start = 0
        self.end = 0
        self._rng = rng
        self._moved = asyncio.Condition()

    @property
    def admin(self) -> Any:
        return self

    @property
    def retention(self) -> Any:
        raise NotImplementedError

    @property
    def groups(self) -> Any:
        raise NotImplementedError

    async def describe(self, topic: str) -> Topic:
        return Topic(name=topic, topic_id="script", partitions=1, config=TopicConfig())

    async def move(self, end: int) -> None:
        """Let the log end at this offset; waiting readers go on."""
        async with self._moved:
            self.end = max(self.end, end)
            self._moved.notify_all()

    async def bounds(self, at: TopicPartition) -> Bounds:
        await asyncio.sleep(0)
        return Bounds(self.start, self.end, self.end)

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        """Yield what is there, in batches of random size, and wait for more."""
        at, start, end = reading.at, reading.start, reading.end
        position = start
        while end is None or position < end:
            await asyncio.sleep(0)
            if not self.start <= position <= self.end:
                raise OffsetOutOfRange(at.topic, at.partition, position, self.start, self.end)
            if position == self.end:
                await self._wait(position, reading.timeout_s if end is not None else None)
            limit = min(self.end, end if end is not None else self.end)
            found = [record for record in self.records if position <= record.offset < limit][: self._rng.randint(1, 6)]
            reached = found[-1].offset + 1 if found and self._rng.random() < 0.8 else limit
            found = [record for record in found if record.offset < reached]
            if reached == limit:
                found = [record for record in self.records if position <= record.offset < limit]
            position = reached
            yield Batch(found, reached)

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        raise NotImplementedError

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        raise NotImplementedError

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        return None

    async def _wait(self, position: int, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(lambda: self.end > position)
        except TimeoutError as error:
            raise TimedOut(f"reading from {position}", timeout_s or 0.0) from error
