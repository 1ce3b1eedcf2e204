"""The embedded log, assembled from its parts over one file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from headrace.config import EmbeddedLogSettings
from headrace.errors import Closed, HeadraceError
from headrace.log import checks
from headrace.log.embedded import read as reading
from headrace.log.embedded.admin import EmbeddedAdmin
from headrace.log.embedded.append import AppendWork, LogCall, LogWork, RecordWriter
from headrace.log.embedded.follower import EmbeddedSource
from headrace.log.embedded.groups import EmbeddedGroups, GroupTables
from headrace.log.embedded.retention import EmbeddedRetention
from headrace.log.embedded.schema import FORMAT, TABLES, UPGRADES
from headrace.log.embedded.transactions import EmbeddedTransactions, take_over
from headrace.log.follower import Following
from headrace.log.metrics import APPEND_SECONDS
from headrace.log.ports import Admin, Groups, Retention, TransactionalProducer
from headrace.model import Batch, Bounds, NewRecord, Position, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Clock, crash_point
from headrace.sqlite import ChangeWatch, GroupCommit, Leases, Readers, prepare_file

__all__ = ["EmbeddedLog"]

_logger = get_logger(__name__)

FILE_NAME = "log.db"


class EmbeddedLog:
    """A log in one folder, for as many processes as one machine holds.

    Crash-safe, and durable at commit unless fsync is switched off. Not a distributed system.
    """

    def __init__(self, folder: Path, settings: EmbeddedLogSettings, clock: Clock) -> None:
        path = folder / FILE_NAME
        self._path = path
        self._clock = clock
        self._append_seconds = APPEND_SECONDS.labels("embedded")
        self._writer = RecordWriter(clock)
        self._readers = Readers(path)
        self._changes = ChangeWatch(path, interval_s=settings.poll_interval_ms / 1000)
        self._commits: GroupCommit[LogWork] = GroupCommit(
            path,
            self._writer.apply,
            forget=self._writer.catalog.forget,
            committed=self._append_seconds.observe,
            changed=self._changes.announce,
            passing=crash_point,
            fsync=settings.fsync,
            max_group=settings.group_commit_max_records,
        )
        self._admin = EmbeddedAdmin(self._commits, self._readers)
        self._retention = EmbeddedRetention(self._commits, self._readers, clock)
        self._groups = EmbeddedGroups(GroupTables(self._commits, self._readers, self._changes, clock))
        self._source = EmbeddedSource(self._readers, self._changes)
        self._following = Following(self._source, self._source.part, self.bounds, name=f"the log in {folder}")
        self._housekeeping = asyncio.create_task(
            self._run_housekeeping(settings.housekeeping_interval_s), name="headrace-log-housekeeping"
        )
        self._is_closed = False

    @classmethod
    async def open(cls, folder: Path, settings: EmbeddedLogSettings, clock: Clock) -> EmbeddedLog:
        """Open the folder's log, creating both if need be."""
        path = folder / FILE_NAME
        await asyncio.to_thread(prepare_file, path, TABLES, file_format=FORMAT, upgrades=UPGRADES, fsync=settings.fsync)
        return cls(folder, settings, clock)

    @property
    def admin(self) -> Admin:
        """Topics."""
        return self._admin

    @property
    def retention(self) -> Retention:
        """What may be thrown away."""
        return self._retention

    @property
    def groups(self) -> Groups:
        """Consumer groups."""
        return self._groups

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write records, all of them or none."""
        checked = checks.check_records(records)
        if not checked:
            return []
        positions: Sequence[Position] = await self._commits.submit(AppendWork(checked))
        return positions

    async def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        headers_only: bool = False,
        max_records: int = 1000,
        timeout_s: float = 70.0,
    ) -> AsyncIterator[Batch]:
        """Yield batches from `start` on."""
        checks.check_place(at)
        checks.check_read(start, end, headers_only=headers_only, max_records=max_records, timeout_s=timeout_s)
        if self._is_closed:
            raise Closed(f"the log in {self._path.parent}")
        if end is None:
            batches = self._following.follow(at, start, headers_only=headers_only, max_records=max_records)
        else:
            reader = reading.PartitionReader(self._readers, self._changes, at, start)
            batches = reader.batches(end, headers_only=headers_only, max_records=max_records, timeout_s=timeout_s)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                yield batch

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Return what the partition holds now."""
        checks.check_place(at)
        return await self._readers.run(lambda db: reading.find_bounds(db, at))

    async def offset_at(self, at: TopicPartition, *, timestamp_ms: int) -> int | None:
        """Return the first offset stamped at or after the time."""
        checks.check_place(at)
        checks.check_timestamp(timestamp_ms)
        return await self._readers.run(lambda db: reading.find_offset_at(db, at, timestamp_ms))

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        """Take over the id."""
        checks.check_transactional(transactional_id, timeout_s)
        owner = await self._commits.submit(LogCall(lambda db: take_over(db, transactional_id)))
        return EmbeddedTransactions(self._commits, self._clock, owner, timeout_s)

    async def close(self) -> None:
        """Write what was submitted, wake waiting readers, close the file."""
        if self._is_closed:
            return
        self._is_closed = True
        self._housekeeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._housekeeping
        await self._following.close()
        await self._source.close()
        await self._groups.close()
        await self._commits.close()
        await self._changes.close()
        await asyncio.to_thread(self._readers.close)

    def _acquire(self, db: sqlite3.Connection, owner: str, ttl_ms: int) -> object:
        boot_id, now_ms = self._clock.boot_time()
        return Leases.acquire(db, "housekeeping", owner, boot_id=boot_id, now_ms=now_ms, ttl_ms=ttl_ms)

    async def _run_housekeeping(self, interval_s: float) -> None:
        """Apply retention at an interval, in one of the processes that share the file."""
        owner = str(uuid.uuid4())
        ttl_ms = int(interval_s * 2000)
        while True:
            await asyncio.sleep(interval_s)
            try:
                if await self._commits.submit(LogCall(lambda db: self._acquire(db, owner, ttl_ms))) is not None:
                    await self._retention.enforce()
            except HeadraceError as error:
                _logger.warning("housekeeping failed, will try again", error=str(error), retry_in_s=interval_s)
