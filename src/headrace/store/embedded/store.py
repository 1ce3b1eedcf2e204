"""The embedded store, assembled from its parts over one file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.config import StoreSettings
from headrace.runtime import Clock, crash_point
from headrace.sqlite import GroupCommit, prepare_file
from headrace.store.embedded.housekeeping import Housekeeping
from headrace.store.embedded.reader import Access, EmbeddedReader
from headrace.store.embedded.schema import FORMAT, TABLES
from headrace.store.embedded.shared_settings import EmbeddedSettings
from headrace.store.embedded.snapshots import EmbeddedSnapshots
from headrace.store.embedded.tags import EmbeddedTags
from headrace.store.embedded.writer import EmbeddedWriter, EventWriter, StoreWork
from headrace.store.metrics import REQUEST_SECONDS

__all__ = ["EmbeddedStore"]

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
