"""Logs and stores that do, on top of a real one, what only happens on bad days; they know nothing but the ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from headrace.errors import TimedOut
from headrace.log import Admin, Groups, Log, Retention, TransactionalProducer
from headrace.model import Batch, Bounds, NewRecord, Position, TopicPartition
from headrace.store import EventRow, JournalMeta, ReplicatedOffset, Store, StoreReader

__all__ = [
    "LogOnTop",
    "ReaderOnTop",
    "RepeatingLog",
    "StoreOnTop",
    "StuckLog",
    "UncertainLog",
    "WatchedLog",
    "WatchedReader",
]


class LogOnTop:
    """Passes everything on."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def admin(self) -> Admin:
        return self.log.admin

    @property
    def retention(self) -> Retention:
        return self.log.retention

    @property
    def groups(self) -> Groups:
        return self.log.groups

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        return await self.log.append(records)

    async def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        batches = self.log.read(at, start, end, headers_only=headers_only, max_records=max_records, timeout_s=timeout_s)
        async for batch in batches:
            yield batch

    async def bounds(self, at: TopicPartition) -> Bounds:
        return await self.log.bounds(at)

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        return await self.log.offset_at(at, timestamp_ms=timestamp_ms)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        return await self.log.transactional(transactional_id, timeout_s=timeout_s)

    async def close(self) -> None:
        await self.log.close()


class RepeatingLog(LogOnTop):
    """Delivers every record twice, and after each batch the one before it again."""

    async def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        batches = self.log.read(at, start, end, headers_only=headers_only, max_records=max_records, timeout_s=timeout_s)
        async for batch in batches:
            yield Batch([record for record in batch.records for _ in range(2)], batch.next_offset)
            yield batch


class Reading(NamedTuple):
    """A call of `Log.read`."""

    start: int
    end: int | None
    headers_only: bool


class WatchedLog(LogOnTop):
    """Remembers what was asked of it. `before_append` is awaited before each append."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.readings: list[Reading] = []
        self.delivered = 0
        self.appended: list[NewRecord] = []
        self.before_append: Callable[[], Any] | None = None

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        if self.before_append is not None:
            await self.before_append()
        self.appended += records
        return await self.log.append(records)

    async def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        self.readings.append(Reading(start, end, headers_only))
        batches = self.log.read(at, start, end, headers_only=headers_only, max_records=max_records, timeout_s=timeout_s)
        async for batch in batches:
            self.delivered += len(batch.records)
            yield batch


class StuckLog(LogOnTop):
    """Its reads wait in vain, as on a broker that is gone, while `is_stuck`."""

    is_stuck = True

    async def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        while self.is_stuck:
            await asyncio.sleep(0.05 if end is None else min(timeout_s, 0.3))
            if end is not None:
                raise TimedOut(f"reading {at} from {start}", timeout_s)
        async for batch in super().read(
            at, start, end, headers_only=headers_only, max_records=max_records, timeout_s=timeout_s
        ):
            yield batch


class UncertainLog(LogOnTop):
    """The next appends time out, with an outcome that nobody knows: each did, or did not, make it."""

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

    def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        return self.reader.rows(topic, id_, segment_size=segment_size, first=first, last=last, page_size=page_size)

    async def topics(self) -> Sequence[str]:
        return await self.reader.topics()

    def metas(self, topic: str, *, page_size: int = 500) -> AsyncIterator[Sequence[JournalMeta]]:
        return self.reader.metas(topic, page_size=page_size)


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
        self._store = store

    async def close(self) -> None:
        await self._store.close()
