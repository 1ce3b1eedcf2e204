"""Followers of partitions: each partition is read once for all its listeners in a process.

A followed partition has one *feed*: the position it was read up to and the last records before it. Each listener has
a position of its own. A listener whose position is among the records of the feed is served from there. One that is
behind them reads the log in slices until it has caught up, and so slows down no other. A feed waits for the listener
that is furthest, so a process that does not take its events stops reading more of them. Memory grows neither with the
number of listeners nor with how slow they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from headrace.errors import Closed, OffsetOutOfRange, TimedOut, UnknownTopic
from headrace.log.metrics import FEEDS, LISTENERS
from headrace.model import Batch, Bounds, Record, TopicPartition

__all__ = ["Feed", "Following", "Source"]

_MOST_RECORDS = 10_000
_MOST_BYTES = 8 * 1024 * 1024
_ALL_BYTES = 64 * 1024 * 1024  # if all feeds together have more, each keeps _LEAST_BYTES
_LEAST_BYTES = 512 * 1024
_RECORD_BYTES = 500
# A listener this many records ahead of a feed waits for it; for one further ahead the feed jumps.
_NEAR = 1000
_SLICE_RECORDS = 5000
_SLICE_BYTES = 4 * 1024 * 1024
_SLICES_AT_ONCE = 2
_SLICE_PATIENCE_S = 2.0

_turns = itertools.count(1)


class Source(Protocol):
    """Reads records for feeds, from their position on, and calls `Feed.take` with them or `Feed.fail` with an error."""

    def start(self, feed: Feed) -> None:
        """Start reading at the feed's position."""
        ...

    def stop(self, feed: Feed) -> None:
        """Stop reading for now."""
        ...

    def end(self, feed: Feed) -> None:
        """Forget the feed."""
        ...


class BoundedRead(Protocol):
    """Reads a part of a partition."""

    def __call__(self, at: TopicPartition, start: int, end: int, *, timeout_s: float) -> AsyncGenerator[Batch, None]:
        """Yield batches from `start` up to `end`."""
        ...


class _Chunk(NamedTuple):
    """Records of the offsets from `start` up to `end` (exclusive)."""

    start: int
    records: Sequence[Record]
    end: int
    size_bytes: int


class FeedMemory:
    """The memory that the records of all feeds take."""

    def __init__(self) -> None:
        self.used_bytes = 0

    @property
    def most_bytes(self) -> int:
        """The most that one feed may keep."""
        return _MOST_BYTES if self.used_bytes <= _ALL_BYTES else _LEAST_BYTES


class FeedListener:
    """A listener of a feed, and its position."""

    def __init__(self, position: int) -> None:
        self.position = position


class Feed:
    """One followed partition: its last records, and the position it was read up to.

    `turn` is a new number each time the source is started or stopped, also for the next feed of the same partition:
    records that the source read for an earlier turn are ignored.
    """

    def __init__(self, at: TopicPartition, start: int, source: Source, memory: FeedMemory) -> None:
        self.at = at
        self.first = start
        self.position = start
        self.turn = 0
        self.is_running = False
        self.error: BaseException | None = None
        self.listeners: set[FeedListener] = set()
        self._source = source
        self._memory = memory
        self._chunks: list[_Chunk] = []
        self._records = 0
        self._bytes = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def take(self, batch: Batch, turn: int) -> None:
        """Add the next records."""
        if turn != self.turn or self.error is not None or batch.next_offset <= self.position:
            return
        records = batch.records
        if records and records[0].offset < self.position:
            records = [record for record in records if record.offset >= self.position]
        if not records and self._chunks:
            self._chunks[-1] = self._chunks[-1]._replace(end=batch.next_offset)
        else:
            size_bytes = _size_of(records)
            self._chunks.append(_Chunk(self.position, records, batch.next_offset, size_bytes))
            self._count(len(records), size_bytes)
        self.position = batch.next_offset
        self.relax()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End the feed: listeners get the error after the records that came before it."""
        if self.error is None:
            self.error = error
            self._halt()
            self._wake()

    def run(self) -> None:
        """Start the source at the position."""
        self.turn = next(_turns)
        self.is_running = True
        self._source.start(self)

    def jump(self, position: int) -> None:
        """Continue at a later position: a listener is there already, and others can catch up."""
        self._halt()
        self.clear()
        self.first = self.position = position
        self.run()
        self._wake()

    def after(self, position: int, most: int) -> Batch | None:
        """Return records from a position on; None if the feed does not keep that position."""
        if not self.first <= position < self.position:
            return None
        records: list[Record] = []
        end = position
        for chunk in self._chunks[bisect_right(self._chunks, position, key=lambda chunk: chunk.start) - 1 :]:
            more = chunk.records if chunk.start >= position else [r for r in chunk.records if r.offset >= position]
            room = most - len(records)
            if len(more) > room:
                records += more[:room]
                return Batch(records, records[-1].offset + 1)
            records += more
            end = chunk.end
        return Batch(records, end)

    def relax(self) -> None:
        """Drop the oldest records if there are too many; stop the source if the furthest listener still needs them."""
        front = max((listener.position for listener in self.listeners), default=self.position)
        many = 0
        while many < len(self._chunks) and self._is_full() and self._chunks[many].end <= front:
            self._count(-len(self._chunks[many].records), -self._chunks[many].size_bytes)
            many += 1
        if many:
            self.first = self._chunks[many - 1].end
            del self._chunks[:many]
        if self.is_running and self._is_full():
            self._halt()
        elif not self.is_running and self.error is None and not self._is_full():
            self.run()

    async def wait(self) -> None:
        """Wait until records have come, or the feed has ended."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def clear(self) -> None:
        """Drop all records."""
        self._chunks.clear()
        self._count(-self._records, -self._bytes)

    def _count(self, records: int, size_bytes: int) -> None:
        self._records += records
        self._bytes += size_bytes
        self._memory.used_bytes += size_bytes

    def _is_full(self) -> bool:
        return self._records > _MOST_RECORDS or self._bytes > self._memory.most_bytes

    def _halt(self) -> None:
        if self.is_running:
            self.turn = next(_turns)
            self.is_running = False
            self._source.stop(self)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class Following:
    """The feeds of one log. A feed without listeners is kept for `linger_s`, because most listeners come back."""

    def __init__(
        self,
        source: Source,
        read: BoundedRead,
        bounds: Callable[[TopicPartition], Awaitable[Bounds]],
        *,
        name: str,
        linger_s: float = 0.0,
    ) -> None:
        self._source = source
        self._linger_s = linger_s
        self._read = read
        self._bounds = bounds
        self._name = name
        self._feeds: dict[TopicPartition, Feed] = {}
        self._memory = FeedMemory()
        self._slices = asyncio.Semaphore(_SLICES_AT_ONCE)
        self._is_closed = False

    @property
    def feeds(self) -> int:
        """The number of partitions that are followed."""
        return len(self._feeds)

    async def follow(
        self, at: TopicPartition, start: int, *, headers_only: bool = False, max_records: int = 1000
    ) -> AsyncGenerator[Batch, None]:
        """Yield batches from `start` on, forever. Raises OffsetOutOfRange, UnknownTopic, Closed."""
        listener = FeedListener(start)
        feed = await self._join(at, listener)
        try:
            while True:
                if self._is_closed:
                    raise Closed(self._name)
                batch = feed.after(listener.position, max_records)
                if batch is not None:
                    self._move(feed, listener, batch)
                    yield _bare(batch) if headers_only else batch
                elif listener.position < feed.first:
                    for late in await self._slice(feed, listener.position):
                        self._move(feed, listener, late)
                        yield _bare(late) if headers_only else late
                elif feed.error is not None:
                    raise feed.error
                else:
                    await feed.wait()
        finally:
            self._leave(feed, listener)

    async def close(self) -> None:
        """End all feeds; listeners get Closed."""
        self._is_closed = True
        for feed in list(self._feeds.values()):
            feed.fail(Closed(self._name))
            self._end(feed)

    async def _join(self, at: TopicPartition, listener: FeedListener) -> Feed:
        """Return the partition's feed, with the listener added."""
        if self._is_closed:
            raise Closed(self._name)
        feed = self._known(at)
        if feed is not None and listener.position > feed.position:
            bounds = await self._bounds(at)
            if listener.position > bounds.high_watermark:
                raise OffsetOutOfRange(at.topic, at.partition, listener.position, bounds.start, bounds.high_watermark)
            feed = self._known(at)
        is_new = feed is None
        if feed is None:
            feed = self._feeds[at] = Feed(at, listener.position, self._source, self._memory)
            FEEDS.inc()
        feed.listeners.add(listener)
        LISTENERS.inc()
        if is_new:
            feed.run()
        elif listener.position > feed.position + _NEAR or (listener.position > feed.position and not feed.is_running):
            feed.jump(listener.position)
        else:
            feed.relax()  # it may have waited for a listener that is behind
        return feed

    def _known(self, at: TopicPartition) -> Feed | None:
        """Return the feed of a partition; one that has ended is forgotten."""
        feed = self._feeds.get(at)
        if feed is not None and feed.error is not None:
            self._end(feed)
            return None
        return feed

    def _move(self, feed: Feed, listener: FeedListener, batch: Batch) -> None:
        listener.position = max(listener.position, batch.next_offset)
        feed.relax()

    async def _slice(self, feed: Feed, start: int) -> list[Batch]:
        """Return some records from before those of the feed; only a few of these reads run at once."""
        async with self._slices:
            end = min(feed.first, start + _SLICE_RECORDS)
            found: list[Batch] = []
            size_bytes = 0
            try:
                async with contextlib.aclosing(self._read(feed.at, start, end, timeout_s=_SLICE_PATIENCE_S)) as batches:
                    async for batch in batches:
                        found.append(batch)
                        size_bytes += _size_of(batch.records)
                        if size_bytes >= _SLICE_BYTES:
                            break
            except TimedOut:  # an open transaction is in the way, or the topic was replaced
                if feed.error is not None and not found:
                    raise feed.error from None
            if isinstance(feed.error, UnknownTopic):  # the records may be from another topic of the same name
                raise feed.error
            return found

    def _leave(self, feed: Feed, listener: FeedListener) -> None:
        feed.listeners.discard(listener)
        LISTENERS.dec()
        if feed.listeners:
            return
        if self._linger_s and feed.error is None:
            asyncio.get_running_loop().call_later(self._linger_s, self._end_idle, feed)
        else:
            self._end(feed)

    def _end_idle(self, feed: Feed) -> None:
        if not feed.listeners:
            self._end(feed)

    def _end(self, feed: Feed) -> None:
        if self._feeds.get(feed.at) is feed:
            del self._feeds[feed.at]
            FEEDS.dec()
            feed.fail(Closed(f"following {feed.at}"))
            self._source.end(feed)
        if not feed.listeners:
            feed.clear()


def _size_of(records: Sequence[Record]) -> int:
    content_bytes = sum([len(record.value or b"") + len(record.key or b"") for record in records])
    return _RECORD_BYTES * len(records) + content_bytes


def _bare(batch: Batch) -> Batch:
    return Batch([msgspec.structs.replace(record, value=None) for record in batch.records], batch.next_offset)
