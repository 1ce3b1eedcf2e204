"""One look at the file for all followers: each commit wakes only those whose partitions have something new."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from headrace.sqlite import ChangeWatch, Readers

__all__ = ["PartitionEnds"]

_ENDS = "SELECT id, start_offset, next_offset FROM partitions WHERE id IN (SELECT value FROM json_each(?))"


class _Place(NamedTuple):
    """Where a follower is: at the end of its partition, as it was when it looked."""

    partition_id: int
    position: int


class PartitionEnds:
    """Waits for followers that have reached the ends of their partitions.

    A file has many partitions, and most commits are to few of them. A follower that read its own partition after each
    commit would find nothing most of the time, and each read changes the thread twice.
    """

    def __init__(self, readers: Readers, changes: ChangeWatch) -> None:
        self._readers = readers
        self._changes = changes
        self._waiting: dict[asyncio.Future[None], _Place] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def wait(self, partition_id: int, position: int, *, since: int) -> None:
        """Return when a partition no longer ends at a position, as it did at a version of the file; or a little before.

        It no longer does so either if the topic is gone, or if the partition begins behind the position.
        """
        if self._changes.version != since:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = _Place(partition_id, position)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(since), name="headrace-log-ends")
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def close(self) -> None:
        """Stop looking."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher

    async def _watch(self, version: int) -> None:
        """Look after each commit, while somebody waits. Who waits knows the file as of `version`, or a later one."""
        try:
            while self._waiting:
                await self._changes.wait(since=version)
                version = self._changes.version
                asked = dict(self._waiting)
                ids = {place.partition_id for place in asked.values()}
                ends = await self._readers.run(partial(_ends_of, ids=ids))
                for waiter, place in asked.items():
                    if not waiter.done() and ends.get(place.partition_id) != place.position:
                        waiter.set_result(None)
                        self._waiting.pop(waiter, None)
        except Exception as error:  # a reader of the partition would get it, too
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(error)


def _ends_of(db: sqlite3.Connection, ids: Iterable[int]) -> Mapping[int, int | None]:
    """Return the ends of partitions by id; None for one that begins behind its end."""
    rows = db.execute(_ENDS, (msgspec.json.encode(sorted(ids)).decode(),))
    return {partition_id: end if start <= end else None for partition_id, start, end in rows}
