"""The embedded store, assembled from its parts over one file, and its housekeeping.

Housekeeping is the removal of old deletions, which Cassandra does itself; here one of the processes that share the file
does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headrace.config import StoreSettings
from headrace.errors import HeadraceError
from headrace.observe import get_logger
from headrace.runtime import Clock, crash_point
from headrace.sqlite import GroupCommit, Leases, prepare_file
from headrace.store.embedded.reader import Access, EmbeddedReader
from headrace.store.embedded.schema import FORMAT, TABLES
from headrace.store.embedded.shared_settings import EmbeddedSettings
from headrace.store.embedded.snapshots import EmbeddedSnapshots
from headrace.store.embedded.tags import EmbeddedTags
from headrace.store.embedded.writer import EmbeddedWriter, EventWriter, Journals, StoreCall, StoreWork
from headrace.store.metrics import REQUEST_SECONDS

__all__ = ["EmbeddedStore", "Housekeeping"]

T = TypeVar("T")
_logger = get_logger(__name__)

FILE_NAME = "store.db"


class EmbeddedStore:
    """A store in one folder, for as many processes as one machine holds.

    Crash-safe, and durable at commit unless fsync is switched off. Not a distributed system.
    """

    def __init__(self, folder: Path, settings: StoreSettings, clock: Clock) -> None:
        path = folder / FILE_NAME
        events = EventWriter()
        self._access = Access(path)
        self._commits: GroupCommit[StoreWork] = GroupCommit(
            path,
            events.apply,
            forget=events.journals.forget,
            committed=REQUEST_SECONDS.labels("embedded", "write").observe,
            passing=crash_point,
            fsync=settings.embedded.fsync,
        )
        self._reader = EmbeddedReader(self._access, clock)
        self._writer = EmbeddedWriter(self._commits, clock, marker_ttl_s=settings.marker_ttl_s)
        self._snapshots = EmbeddedSnapshots(self._commits, self._access, clock)
        self._settings = EmbeddedSettings(self._commits, self._access)
        self._tags = EmbeddedTags(self._commits, self._access)
        self.housekeeping = Housekeeping(
            self._commits,
            clock,
            gc_grace_s=settings.gc_grace_s,
            interval_s=settings.embedded.housekeeping_interval_s,
        )

    @classmethod
    async def open(cls, folder: Path, settings: StoreSettings, clock: Clock) -> EmbeddedStore:
        """Open the folder's store, creating both if need be."""
        path = folder / FILE_NAME
        await asyncio.to_thread(prepare_file, path, TABLES, file_format=FORMAT, fsync=settings.embedded.fsync)
        return cls(folder, settings, clock)

    @property
    def reader(self) -> EmbeddedReader:
        """The read side."""
        return self._reader

    @property
    def writer(self) -> EmbeddedWriter:
        """The write side."""
        return self._writer

    @property
    def snapshots(self) -> EmbeddedSnapshots:
        """Saved states."""
        return self._snapshots

    @property
    def settings(self) -> EmbeddedSettings:
        """Shared settings."""
        return self._settings

    @property
    def tags(self) -> EmbeddedTags:
        """Events by tag."""
        return self._tags

    async def close(self) -> None:
        """Write what was submitted, then close the file."""
        if self._access.is_closed:
            return
        self._access.is_closed = True
        await self.housekeeping.close()
        await self._commits.close()
        await asyncio.to_thread(self._access.close)


# Other processes wait for the write lock while a piece is removed.
_PIECE = 2000
_STEPS = (
    """DELETE FROM event_deletions WHERE (journal, segment, up_to) IN
    (SELECT journal, segment, up_to FROM event_deletions WHERE made_ms < ? LIMIT ?)""",
    """DELETE FROM snapshot_deletions WHERE (journal, slot) IN
    (SELECT journal, slot FROM snapshot_deletions WHERE made_ms < ? LIMIT ?)""",
    "DELETE FROM heads WHERE journal IN (SELECT journal FROM heads WHERE expires_ms < ? LIMIT ?)",
)
_UNUSED_JOURNALS = """
DELETE FROM journals WHERE number IN (
    SELECT number FROM journals AS j WHERE number > ? AND number <= ?
    AND NOT EXISTS (SELECT 1 FROM heads WHERE journal = j.number)
    AND NOT EXISTS (SELECT 1 FROM events WHERE journal = j.number)
    AND NOT EXISTS (SELECT 1 FROM event_deletions WHERE journal = j.number)
    AND NOT EXISTS (SELECT 1 FROM snapshots WHERE journal = j.number)
    AND NOT EXISTS (SELECT 1 FROM snapshot_deletions WHERE journal = j.number)
)
"""


class Housekeeping:
    """Removes deletions and purge markers that no late writer can need any more."""

    def __init__(self, commits: GroupCommit[StoreWork], clock: Clock, *, gc_grace_s: float, interval_s: float) -> None:
        self._commits = commits
        self._clock = clock
        self._gc_grace_ms = int(gc_grace_s * 1000)
        self._interval_s = interval_s
        self._owner = str(uuid.uuid4())
        self._task = asyncio.create_task(self._run(), name="headrace-store-housekeeping")

    async def clean(self) -> None:
        """Remove all that have expired, now."""
        before_ms = self._clock.now_ms() - self._gc_grace_ms
        for step in _STEPS:
            while await self._call(lambda db, step=step: db.execute(step, (before_ms, _PIECE)).rowcount) == _PIECE:  # type: ignore[misc]
                pass
        newest = await self._call(lambda db: int(db.execute("SELECT max(number) FROM journals").fetchone()[0] or 0))
        for number in range(0, newest, _PIECE):
            asked = (number, number + _PIECE)
            await self._call(lambda db, asked=asked: db.execute(_UNUSED_JOURNALS, asked).rowcount)  # type: ignore[misc]

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                if await self._call(self._acquire) is not None:
                    await self.clean()
            except HeadraceError as error:
                _logger.warning("housekeeping failed, will try again", error=str(error), retry_in_s=self._interval_s)

    async def _call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        result: T = await self._commits.submit(StoreCall(lambda db, journals: _then_forget(function, db, journals)))
        return result

    def _acquire(self, db: sqlite3.Connection) -> object:
        boot_id, now_ms = self._clock.boot_time()
        ttl_ms = int(self._interval_s * 2000)
        return Leases.acquire(db, "housekeeping", self._owner, boot_id=boot_id, now_ms=now_ms, ttl_ms=ttl_ms)


def _then_forget(function: Callable[[sqlite3.Connection], T], db: sqlite3.Connection, journals: Journals) -> T:
    """Forget the writer's cache: numbers of journals and deletions may have been removed."""
    try:
        return function(db)
    finally:
        journals.forget()
