"""Logs and stores that do, on top of a real one, what only happens on bad days; they know nothing but the ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from headrace.errors import TimedOut
from headrace.log import Log
from headrace.model import Batch, NewRecord, Position, TopicPartition
from headrace.store import EventRow, HeadShare, JournalMeta, ReplicatedOffset, Store, StoreReader
from headrace.testing.conformance.log_on_top import LogOnTop, ReadCall

__all__ = [
    "ReaderOnTop",
    "RepeatingLog",
    "StoreOnTop",
    "StuckLog",
    "UncertainLog",
    "WatchedLog",
    "WatchedReader",
]


class RepeatingLog(LogOnTop):
    """Delivers every record twice, and after each batch the one before it again."""

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        async for batch in super().batches(reading):
            yield Batch([record for record in batch.records for _ in range(2)], batch.next_offset)
            yield batch


class WatchedLog(LogOnTop):
    """Remembers what was asked of it. `before_append` is awaited before each append."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.readings: list[ReadCall] = []
        self.delivered = 0
        self.appended: list[NewRecord] = []
        self.before_append: Callable[[], Any] | None = None

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        if self.before_append is not None:
            await self.before_append()
        self.appended += records
        return await self.log.append(records)

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        self.readings.append(reading)
        async for batch in super().batches(reading):
            self.delivered += len(batch.records)
            yield batch


class StuckLog(LogOnTop):
    """Its reads wait in vain, as on a broker that is gone, while `is_stuck`."""

    is_stuck = True

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        while self.is_stuck:
            await asyncio.sleep(0.05 if reading.end is None else min(reading.timeout_s, 0.3))
            if reading.end is not None:
                raise TimedOut(f"reading {reading.at} from {reading.start}", reading.timeout_s)
        async for batch in super().batches(reading):
            yield batch


class UncertainLog(LogOnTop):
    """The next appends time out with an unknown outcome: each was written, or was not."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.outcomes: list[bool] = []

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        if not self.outcomes:
            return await self.log.append(records)
        if self.outcomes.pop(0):
            await self.log.append(records)
        raise TimedOut("appending", 1.0, outcome_known=False)


class ReaderOnTop:
    """A StoreReader that passes everything on."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        return await self.reader.replicated(at)

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        return await self.reader.meta(topic, id_)

    async def metas_of(self, topic: str, ids: Sequence[str]) -> Mapping[str, JournalMeta]:
        return await self.reader.metas_of(topic, ids)

    def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        return self.reader.rows(topic, id_, segment_size=segment_size, first=first, last=last, page_size=page_size)

    async def topics(self) -> Sequence[str]:
        return await self.reader.topics()

    def metas(
        self, topic: str, *, partition: int | None = None, share: HeadShare | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        return self.reader.metas(topic, partition=partition, share=share, page_size=page_size)


class WatchedReader(ReaderOnTop):
    """Says when it is asked, reads rows in small pages, and calls `between` after each page."""

    def __init__(self, reader: StoreReader, *, page_size: int = 500) -> None:
        super().__init__(reader)
        self.asked = asyncio.Event()
        self.pages = 0
        self.between: Callable[[int], Any] | None = None
        self._page_size = page_size

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        self.asked.set()
        return await self.reader.replicated(at)

    async def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        size = min(page_size, self._page_size)
        pages = self.reader.rows(topic, id_, segment_size=segment_size, first=first, last=last, page_size=size)
        async for page in pages:
            self.pages += 1
            if self.between is not None:
                await self.between(self.pages)
            yield page


class StoreOnTop:
    """A store with another reader."""

    def __init__(self, store: Store, reader: StoreReader) -> None:
        self.reader = reader
        self.writer = store.writer
        self.snapshots = store.snapshots
        self.settings = store.settings
        self.tags = store.tags
        self._store = store

    async def close(self) -> None:
        await self._store.close()
