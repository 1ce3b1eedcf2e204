"""A log whose reads can be slowed down and whose answers can be changed, for histories that no test could wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from headrace.log import Log
from headrace.model import Batch, Bounds, TopicPartition

__all__ = ["ScriptedLog"]


class ScriptedLog:
    """A real log; reads yield `max_records` at a time and call `between` before each batch but the first.

    `before_answer` is called when the bounds are known and the answer is on its way.
    """

    def __init__(self, log: Log, *, max_records: int = 1000) -> None:
        self._log = log
        self.max_records = max_records
        self.between: Callable[[], Awaitable[None]] | None = None
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self.change_bounds: Callable[[Bounds], Bounds] = lambda bounds: bounds
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def bounds(self, at: TopicPartition) -> Bounds:
        self.asked += 1
        found = await self._log.bounds(at)
        if self.before_answer is not None:
            await self.before_answer()
        return self.change_bounds(found)

    async def read(
        self, at: TopicPartition, start: int, end: int | None = None, **options: Any
    ) -> AsyncIterator[Batch]:
        is_first = True
        async for batch in self._log.read(at, start, end, **{**options, "max_records": self.max_records}):
            if not is_first and self.between is not None:
                await self.between()
            is_first = False
            yield batch
