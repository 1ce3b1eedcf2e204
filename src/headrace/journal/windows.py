"""The un-replicated window of one key: its actions between what the store has and the barrier.

From the head cache where that knows; else from one pass over the log, which keeps what it saw of the key, so that
the events need no second one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from headrace.errors import HeadraceError, OffsetOutOfRange, RecordsLost, TimedOut
from headrace.journal.folding import Entry
from headrace.journal.head import HeadKind
from headrace.journal.head_cache import HeadCache
from headrace.journal.metrics import HEAD_ANSWERS
from headrace.journal.partition_batch import entry_of
from headrace.log import Log
from headrace.model import Record, TopicPartition

__all__ = ["Window", "Windows"]

_KEEP_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Window:
    """A key's actions, in order. `records` are the values that the pass over the log could keep, by offset."""

    entries: list[Entry]
    records: dict[int, Record] = field(default_factory=dict)
    is_behind: bool = False


class Windows:
    """Finds windows and reads records out of them."""

    def __init__(self, log: Log, cache: HeadCache | None, *, timeout_s: float) -> None:
        self._log = log
        self._cache = cache
        self._timeout_s = timeout_s

    async def find(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window:
        """Return the key's actions in (after, up_to]."""
        try:
            answer = await self._ask(at, generation, id_, after=after, up_to=up_to)
        except OffsetOutOfRange as error:
            raise _lost(at, error) from error
        return answer or await self.scan(at, generation, id_, after=after, up_to=up_to)

    async def scan(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window:
        """Return the same from the log itself."""
        try:
            return await self._scan(at, generation, id_, after=after, up_to=up_to)
        except OffsetOutOfRange as error:
            raise _lost(at, error) from error

    async def records(self, at: TopicPartition, window: Window, offsets: list[int]) -> AsyncIterator[Record]:
        """Yield the records at these offsets, which rise; what the window kept is not read again."""
        kept = [offset for offset in offsets if offset in window.records]
        for offset in kept:
            yield window.records[offset]
        wanted = offsets[len(kept) :]
        if not wanted:
            return
        missing = iter(wanted)
        following: int | None = next(missing)
        async for batch in self._log.read(at, wanted[0], wanted[-1] + 1, timeout_s=self._timeout_s):
            for record in batch.records:
                if record.offset == following:
                    yield record
                    following = next(missing, None)

    async def _ask(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window | None:
        if self._cache is None:
            return None
        try:
            answer = await self._cache.ask(at, generation, id_, after=after, up_to=up_to, timeout_s=self._timeout_s / 2)
        except TimedOut:
            HEAD_ANSWERS.labels(at.topic, "timed_out").inc()
            return None
        if answer.kind is HeadKind.UNKNOWN:
            return None
        return Window(list(answer.entries), is_behind=answer.kind is HeadKind.BEHIND)

    async def _scan(self, at: TopicPartition, generation: int, id_: str, *, after: int, up_to: int) -> Window:
        """Pass over the log once; records of other keys are looked at by their key alone."""
        window, key, size_bytes = Window([]), id_.encode(), 0
        is_keeping = True
        seen = after
        async for batch in self._log.read(at, after + 1, up_to + 1, timeout_s=self._timeout_s):
            for record in batch.records:
                if record.key != key or record.offset <= seen:
                    continue
                seen = record.offset
                entry = entry_of(record, generation)
                if entry is None:
                    continue
                window.entries.append(entry)
                size_bytes += len(record.value or b"")
                is_keeping = is_keeping and size_bytes <= _KEEP_BYTES
                if is_keeping:
                    window.records[record.offset] = record
        return window


def _lost(at: TopicPartition, error: OffsetOutOfRange) -> HeadraceError:
    """Below the log's start lies what the store never got; above its end, what only a lost log could explain."""
    return RecordsLost(at.topic, at.partition, error.offset, error.start - 1) if error.offset < error.start else error
