"""How far a read must look: to a Mark of its own, or to the end of the log as it was when the read began."""

from __future__ import annotations

import uuid
from typing import Protocol

from headrace.journal.actions import Mark
from headrace.journal.headers import encode_action
from headrace.log import Log
from headrace.model import NewRecord, TopicPartition

__all__ = ["Barrier", "MarkBarrier", "WatermarkBarrier", "write_mark"]


class Barrier(Protocol):
    """Says up to which offset (inclusive) a read that begins now must look; -1 for an empty partition."""

    async def place(self, at: TopicPartition, id_: str) -> int:
        """Return the offset."""
        ...


class MarkBarrier:
    """Writes a Mark: whatever was acknowledged before it lies below it."""

    def __init__(self, log: Log, origin: str | None) -> None:
        self._log = log
        self._origin = origin

    async def place(self, at: TopicPartition, id_: str) -> int:
        """Write the Mark and return the offset before it: the Mark itself has nothing to tell."""
        return await write_mark(self._log, at, id_, Mark(id=uuid.uuid4().hex, origin=self._origin)) - 1


class WatermarkBarrier:
    """Asks for the high watermark, open transactions included: for readers that may not write."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def place(self, at: TopicPartition, id_: str) -> int:
        """Return the last offset that anybody has written."""
        return (await self._log.bounds(at)).high_watermark - 1


async def write_mark(log: Log, at: TopicPartition, id_: str, mark: Mark) -> int:
    """Append a Mark with the journal's key and return its offset."""
    record = NewRecord(at.topic, id_.encode(), None, encode_action(mark), partition=at.partition)
    (position,) = await log.append([record])
    return position.offset
