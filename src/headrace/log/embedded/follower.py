"""The source of the embedded log's feeds: a task for each partition, woken by commits to the file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from headrace.log.embedded.read import PartitionEnds, PartitionReader
from headrace.log.follower import Feed
from headrace.model import Batch, TopicPartition
from headrace.sqlite import ChangeWatch, Readers

__all__ = ["EmbeddedSource"]


class EmbeddedSource:
    """Reads for feeds. A reader lives as long as its feed, so that it notices a topic that was created again."""

    def __init__(self, readers: Readers, changes: ChangeWatch) -> None:
        self._readers = readers
        self._changes = changes
        self._ends = PartitionEnds(readers, changes)
        self._open: dict[Feed, PartitionReader] = {}
        self._tasks: dict[Feed, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, feed: Feed) -> None:
        """Read from the feed's position on."""
        reader = self._open.get(feed)
        if reader is None:
            reader = self._open[feed] = self._reader(feed)
        reader.position = feed.position
        name = f"headrace-log-feed-{feed.at}"
        self._tasks[feed] = asyncio.create_task(self._read(feed, reader, feed.turn), name=name)

    def _reader(self, feed: Feed) -> PartitionReader:
        return PartitionReader(self._readers, self._changes, feed.at, feed.position, self._ends)

    def stop(self, feed: Feed) -> None:
        """Stop reading for now."""
        task = self._tasks.pop(feed, None)
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def end(self, feed: Feed) -> None:
        """Drop the reader."""
        self.stop(feed)
        self._open.pop(feed, None)

    def part(self, at: TopicPartition, start: int, end: int, *, timeout_s: float) -> AsyncGenerator[Batch, None]:
        """Yield a part of a followed partition. Raises UnknownTopic if its topic was created again since."""
        reader = PartitionReader(self._readers, self._changes, at, start)
        for feed, followed in self._open.items():
            if feed.at == at:
                reader.expect_same(followed)
        return reader.batches(end, headers_only=False, max_records=1000, timeout_s=timeout_s)

    async def close(self) -> None:
        """Wait for reads that were stopped: they use the file."""
        for feed in list(self._open):
            self.end(feed)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._ends.close()

    async def _read(self, feed: Feed, reader: PartitionReader, turn: int) -> None:
        try:
            async for batch in reader.batches(None, headers_only=False, max_records=1000, timeout_s=0):
                feed.take(batch, turn)
        except Exception as error:
            if feed.turn == turn:
                feed.fail(error)
