"""Transactions of any log: the `with` block, and serial calls, which run one at a time and to their end.

Both backends run the calls of a transactional producer serially, so that a cancelled caller leaves no half-done one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from headrace.errors import HeadraceError
from headrace.log.ports import Member, TransactionalProducer
from headrace.model import NewRecord, Position, TopicPartition
from headrace.observe import get_logger

__all__ = ["SerialCalls", "Transaction", "transaction"]

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


P = ParamSpec("P")
T = TypeVar("T")


class SerialCalls:
    """Runs one call at a time, each in a task of its own, so that a cancelled caller leaves no half-done call."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """True if no call runs or waits: then what need not wait may be done without one."""
        return not self._running

    async def run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call and return what it returns."""
        return await asyncio.shield(self.start(call, *args, **kwargs))

    def start(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> asyncio.Task[T]:
        """Start a call; the caller need not await the returned task."""

        async def in_turn() -> T:
            async with self._lock:
                return await call(*args, **kwargs)

        task = asyncio.ensure_future(in_turn())
        self._running.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it when the caller is gone
