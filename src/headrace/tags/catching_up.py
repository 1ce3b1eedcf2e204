"""Bringing replication to a place without waiting for those whose work it is: two at once do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.config import TagSettings
from headrace.errors import OperationFailed, UnknownTopic
from headrace.journal import replicate_batch
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import Store
from headrace.tags.floors import read_layout
from headrace.tags.writing import TagWriter

__all__ = ["CatchingUp"]

_LOOK_AGAIN_S = 0.05
_RECORDS_AT_ONCE = 1000


class CatchingUp:
    """Replicates partitions up to given offsets, as far as they are not there yet."""

    def __init__(self, log: Log, store: Store, settings: TagSettings) -> None:
        self._log = log
        self._store = store
        self._writer = TagWriter(store, settings, log=log)

    async def wait(self, offsets: Mapping[TopicPartition, int], *, patience_s: float) -> None:
        """Let those whose work it is come to the offsets, as long as they move on: nothing of theirs is left then."""
        loop = asyncio.get_running_loop()
        before, since_s = -1, loop.time()
        while (left := await self.missing(offsets)) > 0 and loop.time() - since_s < patience_s:
            if left != before:
                before, since_s = left, loop.time()
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def reach(self, offsets: Mapping[TopicPartition, int], *, within_s: float = 60.0) -> None:
        """Return when all are replicated up to their offset (inclusive).

        Raises OperationFailed when nothing moves, OffsetOutOfRange if the log lost what the store never got.
        """
        loop = asyncio.get_running_loop()
        left, deadline_s = dict(offsets), loop.time() + within_s
        while left:
            before = dict(left)
            left = {at: offset for at, offset in before.items() if not await self._advance(at, offset)}
            if len(left) < len(before):
                deadline_s = loop.time() + within_s
            elif loop.time() > deadline_s:
                at, offset = next(iter(left.items()))
                raise OperationFailed(f"replicating {at} up to offset {offset}", "it is held up")
            elif left:
                await asyncio.sleep(_LOOK_AGAIN_S)  # some wait for others at the boundary of a growth

    async def missing(self, offsets: Mapping[TopicPartition, int]) -> int:
        """Return how many offsets lie between where replication is and where it should be."""
        return sum([max(0, offset + 1 - await self._next(at)) for at, offset in offsets.items()])

    async def _advance(self, at: TopicPartition, offset: int) -> bool:
        start = await self._next(at)
        if start > offset:
            return True
        layout = await read_layout(self._store, at.topic)
        if layout is None:
            raise UnknownTopic(at.topic)
        async for batch in self._log.read(at, start, offset + 1, max_records=_RECORDS_AT_ONCE):
            last = min(batch.next_offset - 1, offset)
            done = await replicate_batch(self._store, layout, at, batch.records, up_to=last, views=self._writer)
            if done.offset < last:
                return False
        return True

    async def _next(self, at: TopicPartition) -> int:
        """Return the first offset of a partition that is not replicated; none is of a topic that was made anew."""
        known = await self._store.reader.replicated(at)
        layout = await read_layout(self._store, at.topic)
        is_of_topic = known is not None and (
            layout is None or known.generation >= layout.first_generation(at.partition)
        )
        return known.offset + 1 if known is not None and is_of_topic else 0
