"""A transaction as a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from headrace.errors import HeadraceError
from headrace.log.ports import Member, TransactionalProducer
from headrace.model import NewRecord, Position, TopicPartition
from headrace.observe import get_logger

__all__ = ["Transaction", "transaction"]

_logger = get_logger(__name__)


class Transaction:
    """The open transaction of a producer. `positions` says where its records landed, once it is committed."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self.positions: Sequence[Position] = ()

    async def append(self, *records: NewRecord) -> None:
        """Add records."""
        await self._producer.append(records)

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets along."""
        await self._producer.commit_offsets(member, offsets)


@contextlib.asynccontextmanager
async def transaction(producer: TransactionalProducer) -> AsyncIterator[Transaction]:
    """Begin; commit when the block ends, abort when it raises."""
    await producer.begin()
    opened = Transaction(producer)
    try:
        yield opened
    except BaseException:
        await _abort_quietly(producer)
        raise
    opened.positions = await producer.commit()


async def _abort_quietly(producer: TransactionalProducer) -> None:
    """Abort without hiding the error that led here; if this fails, the log aborts after the time-out."""
    try:
        await producer.abort()
    except HeadraceError as error:
        _logger.warning("abort failed", transactional_id=producer.transactional_id, error=str(error))
