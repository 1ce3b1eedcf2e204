"""The write side of the embedded store."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.runtime import Clock
from headrace.sqlite import GroupCommit
from headrace.store.embedded.commits import (
    DeleteRows,
    MoveReplicated,
    StoreCall,
    StoreWork,
    WriteJournals,
    WriteMeta,
    WriteRows,
)
from headrace.store.embedded.snapshots import drop_all
from headrace.store.metrics import ROWS_WRITTEN
from headrace.store.rows import (
    EventRow,
    JournalMeta,
    JournalWrite,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
)

__all__ = ["EmbeddedWriter"]


class EmbeddedWriter:
    """The embedded store's StoreWriter."""

    def __init__(self, commits: GroupCommit[StoreWork], clock: Clock, *, marker_ttl_s: float) -> None:
        self._commits = commits
        self._clock = clock
        self._marker_ttl_ms = int(marker_ttl_s * 1000)
        self._rows_written = ROWS_WRITTEN.labels("embedded")

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        """Write rows of one journal."""
        await self._commits.submit(WriteRows(topic, id_, rows))
        self._rows_written.inc(len(rows))

    async def write_gaps(self, topic: str, id_: str, gaps: Sequence[SegmentGap]) -> None:
        """Do nothing: the table's index finds the next segment."""

    async def write_meta(self, meta: JournalMeta) -> None:
        """Write a head or a purge marker."""
        expires_ms = self._clock.now_ms() + self._marker_ttl_ms if meta.is_purged else None
        await self._commits.submit(WriteMeta(meta, expires_ms))

    async def write_journals(self, journals: Sequence[JournalWrite]) -> None:
        """Write rows and heads of many journals, in one transaction."""
        await self._commits.submit(WriteJournals(journals, self._clock.now_ms() + self._marker_ttl_ms))
        self._rows_written.inc(sum(len(rows) for _, rows in journals))

    async def delete_rows(self, topic: str, id_: str, deletions: Sequence[RowDeletion], *, at: Place) -> None:
        """Remove rows of one journal."""
        await self._commits.submit(DeleteRows(topic, id_, deletions, at, self._clock.now_ms()))

    async def delete_snapshots(self, topic: str, id_: str, *, at: Place) -> None:
        """Remove the snapshots at or below the place."""
        now_ms = self._clock.now_ms()
        await self._commits.submit(StoreCall(lambda db, journals: drop_all(db, journals, topic, id_, at, now_ms)))

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        """Move a partition's replicated offset forward."""
        await self._commits.submit(MoveReplicated(offset))
