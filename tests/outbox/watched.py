"""A real log with somebody standing at the door: who counts appends, holds them up, or fails them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.log import Log
from headrace.model import NewRecord, Position


class WatchedLog:
    """Passes everything on to the log behind it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.appends: list[Sequence[NewRecord]] = []
        self.failures: list[Exception] = []
        self.entered = asyncio.Event()
        self.may_pass = asyncio.Event()
        self.may_pass.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Append, if it may."""
        self.appends.append(records)
        self.entered.set()
        await self.may_pass.wait()
        if self.failures:
            raise self.failures.pop(0)
        return await self._log.append(records)

    @property
    def batches(self) -> list[tuple[str, int]]:
        """Topic and size of each append, in order."""
        return [(records[0].topic, len(records)) for records in self.appends]
