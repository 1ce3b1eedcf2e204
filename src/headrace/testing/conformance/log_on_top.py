"""Logs that wrap another log and change one method; the port's signatures are repeated here only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from headrace.log import Admin, Groups, Log, Retention, TransactionalProducer
from headrace.model import Batch, Bounds, NewRecord, Position, TopicPartition

__all__ = ["LogOnTop", "ReadCall", "Readings"]


class ReadCall(NamedTuple):
    """A call of `Log.read`."""

    at: TopicPartition
    start: int
    end: int | None
    headers_only: bool
    max_records: int
    timeout_s: float


class Readings:
    """Serves `Log.read` by `batches`, which takes the call as one value."""

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        """Yield batches, as the port says."""
        return self.batches(ReadCall(at, start, end, headers_only, max_records, timeout_s))

    def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        """Yield the batches of a reading."""
        raise NotImplementedError


class LogOnTop(Readings):
    """A log that passes all calls on to another one."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def admin(self) -> Admin:
        """Topics."""
        return self.log.admin

    @property
    def retention(self) -> Retention:
        """What may be thrown away."""
        return self.log.retention

    @property
    def groups(self) -> Groups:
        """Consumer groups."""
        return self.log.groups

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write records."""
        return await self.log.append(records)

    def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        """Yield the other log's batches."""
        return self.log.read(
            reading.at,
            reading.start,
            reading.end,
            headers_only=reading.headers_only,
            max_records=reading.max_records,
            timeout_s=reading.timeout_s,
        )

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Return what the partition holds."""
        return await self.log.bounds(at)

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        """Return the lowest offset of a time."""
        return await self.log.offset_at(at, timestamp_ms=timestamp_ms)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        """Take over an id."""
        return await self.log.transactional(transactional_id, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the other log."""
        await self.log.close()
