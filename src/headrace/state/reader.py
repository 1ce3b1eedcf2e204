"""Reading a changelog into a copy: once up to the end, or for as long as the copy lives."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import NoReturn

from headrace.errors import OffsetOutOfRange, UnknownTopic, WrongStateTopic
from headrace.log import Log
from headrace.state.progress import Opening
from headrace.state.replica import StartOver, StateReplica

__all__ = ["ChangelogReader"]

# The topic's settings bound how long a copy may be away; they are read again after this many asks.
_TOPIC_LOOKS = 60
# Records are applied in one go, and everything else in the process waits for that long.
_BATCH = 500
# How often in a row a copy may come too late before an error says that it never will be in time.
_LATE_READS = 10


class ChangelogReader:
    """Keeps one copy up to date. It starts over whenever the copy could have missed a deletion."""

    def __init__(self, log: Log, replica: StateReplica, *, ask_every_s: float = 1.0) -> None:
        self._log = log
        self._replica = replica
        self._ask_every_s = ask_every_s
        self._is_opened = False
        self._late_reads = 0

    async def open(self) -> None:
        """Open the copy, once: from where to read on. Raises StateAhead."""
        if not self._is_opened:
            await self._replica.open()
            self._is_opened = True

    async def catch_up(self, *, timeout_s: float = 70.0) -> None:
        """Read up to the high watermark as it is now.

        Raises TimedOut if an open transaction is in the way, and WrongStateTopic if reading always takes too long.
        """
        while True:
            try:
                await self.open()
                if await self._read_to_end(timeout_s):
                    return
            except StartOver as error:
                await self._start_over(error.why)
            except OffsetOutOfRange as error:
                await self._overtaken(error)
            except UnknownTopic:
                await self._reopen()

    async def follow(self) -> NoReturn:
        """Read forever. Raises StateAhead, UnknownTopic, and what the log or the store raise; it can be repeated."""
        while True:
            await self.open()
            error = await self._follow_until_error()
            if isinstance(error, StartOver):
                await self._start_over(error.why)
            elif isinstance(error, OffsetOutOfRange):
                await self._overtaken(error)
            elif isinstance(error, UnknownTopic):
                await self._reopen()
            else:
                raise error

    async def _reopen(self) -> None:
        """Look at the topic again: it was deleted, and perhaps made again. Raises UnknownTopic if it is gone."""
        self._is_opened = False
        await self.open()

    async def _overtaken(self, error: OffsetOutOfRange) -> None:
        """Start over if the log's start has passed this copy; raise what can't be helped."""
        if error.offset >= error.start:
            raise error
        await self._start_over(Opening.BELOW_START)

    async def _start_over(self, why: Opening) -> None:
        """Wipe the copy; if that fails, it is opened again before anything is read into it.

        Raises WrongStateTopic if the copy was too old again and again before it had read everything once.
        """
        self._late_reads = self._late_reads + 1 if why is Opening.TOO_OLD and not self._replica.is_online else 0
        if self._late_reads >= _LATE_READS:
            self._late_reads = 0
            kept_ms = self._replica.topic.config.tombstone_retention_ms
            problem = f"reading it takes longer than three quarters of its delete.retention.ms, which is {kept_ms}"
            raise WrongStateTopic(self._replica.spec.topic, problem, "raise it: an hour at least, a day is usual")
        self._is_opened = False
        await self._replica.start_over(why)
        self._is_opened = True

    async def _read_to_end(self, timeout_s: float) -> bool:
        """Read up to a high watermark; return True if it was asked for in this call, and not by an earlier one."""
        replica = self._replica
        is_new = replica.progress.target is None
        await replica.ask()
        target = replica.progress.target
        if target is not None:
            batches = self._log.read(
                replica.at, replica.progress.position, target.offset, max_records=_BATCH, timeout_s=timeout_s
            )
            async with contextlib.aclosing(batches):  # type: ignore[type-var]
                async for batch in batches:
                    await replica.take(batch)
        return is_new and replica.progress.target is None

    async def _follow_until_error(self) -> BaseException:
        """Ask and read at the same time until one of them fails; return the first failure."""
        tasks = [asyncio.create_task(self._ask_regularly()), asyncio.create_task(self._read_on())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return next(error for task in done if (error := task.exception()) is not None)

    async def _read_on(self) -> None:
        batches = self._log.read(self._replica.at, self._replica.progress.position, max_records=_BATCH)
        async with contextlib.aclosing(batches):  # type: ignore[type-var]
            async for batch in batches:
                await self._replica.take(batch)

    async def _ask_regularly(self) -> None:
        for turn in itertools.count(1):
            await self._replica.ask()
            if turn % _TOPIC_LOOKS == 0:
                await self._replica.look_at_topic()
            await asyncio.sleep(self._ask_every_s)
