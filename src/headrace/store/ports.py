"""The ports of an eventual store: what every backend promises, and the choice of the backend that serves an address.

A backend implements these protocols and passes `headrace.testing.conformance.store`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, cast

from headrace.config import StoreSettings
from headrace.model import TopicPartition
from headrace.runtime import load_backend
from headrace.store.rows import (
    EventRow,
    HeadShare,
    JournalMeta,
    JournalWrite,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
    SnapshotRow,
    TagNumber,
    TagRow,
    TagTime,
)

__all__ = [
    "BatchWriter",
    "SharedSettings",
    "Snapshots",
    "Store",
    "StoreReader",
    "StoreWriter",
    "TagNumbers",
    "TagViews",
    "Tags",
    "open_store",
]


class StoreReader(Protocol):
    """The read side, for journals.

    Promises: a read sees every write that was acknowledged before it began.
    Does not promise: one state of the store over several reads.
    """

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return the partition's replicated offset; None before replication began."""
        ...

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        """Return a journal's head, or its purge marker."""
        ...

    async def metas_of(self, topic: str, ids: Sequence[str]) -> Mapping[str, JournalMeta]:
        """Return the heads or purge markers of many journals, by id; those that have none are left out."""
        ...

    def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        """Yield pages of the rows from seq_nr `first` to `last` (inclusive), ascending, of all incarnations.

        A page is fetched when the caller asks for it; at most one more page is fetched ahead.
        """
        ...

    async def topics(self) -> Sequence[str]:
        """List the topics that have a replicated offset, sorted."""
        ...

    def metas(
        self, topic: str, *, partition: int | None = None, share: HeadShare | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield pages of all heads of a topic, purge markers included, in no order.

        With `partition` only those whose last record is in that partition. With `share` only that share: each head
        is in one share, and reading all shares costs as much as reading all heads.
        """
        ...


class BatchWriter(Protocol):
    """Writes of many journals at a time, by the same rules as those of one."""

    async def write_journals(self, journals: Sequence[JournalWrite]) -> None:
        """Write rows and heads of many journals: all rows of a journal are written before its head.

        A journal that fails does not stop the others; the first failure is raised after all have ended.
        """
        ...


class StoreWriter(BatchWriter, Protocol):
    """The write side, for replication.

    Every write carries the place of the record that caused it, and the highest place wins, whatever the order of
    the writes: replays, concurrent writers and late writers converge. A deletion wins over rows of its own place
    and below, also over those that are written later. Writes by hand have no place, and lose.
    """

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        """Write rows of one journal, each at its own place."""
        ...

    async def write_gaps(self, topic: str, id_: str, gaps: Sequence[SegmentGap]) -> None:
        """Store where a journal's numbers jump, for a store that can't find the next segment otherwise."""
        ...

    async def write_meta(self, meta: JournalMeta) -> None:
        """Write a whole head at its own place. A purge marker expires after the marker's time to live."""
        ...

    async def delete_rows(self, topic: str, id_: str, deletions: Sequence[RowDeletion], *, at: Place) -> None:
        """Remove rows of one journal, at the place of the delete or purge."""
        ...

    async def delete_snapshots(self, topic: str, id_: str, *, at: Place) -> None:
        """Remove all snapshots of a journal at or below the place."""
        ...

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        """Move a partition's replicated offset forward; it never goes back."""
        ...


class Snapshots(Protocol):
    """Saved states of journals, in a ring of slots."""

    async def save(self, topic: str, id_: str, row: SnapshotRow) -> None:
        """Write a snapshot into its slot, at its place; it replaces an older one."""
        ...

    async def load(self, topic: str, id_: str) -> Sequence[SnapshotRow]:
        """Return all snapshots of a journal, by slot."""
        ...

    async def delete(self, topic: str, id_: str, slot: int, *, at: Place) -> None:
        """Remove the snapshot in a slot if it is at or below the place."""
        ...


class SharedSettings(Protocol):
    """Small values that all processes of a deployment share; changes are atomic."""

    async def get(self, key: str) -> str | None:
        """Return a value."""
        ...

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        """Set a value if it is still `expected` (None: absent); returns False if it was not."""
        ...

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return all values whose key has this prefix."""
        ...


class TagViews(Protocol):
    """Events by tag, in buckets of time, sorted by their timeuuids.

    Promises: a bucket that `buckets` does not list is empty; writes converge by place, as those of journals do.
    """

    async def write(self, rows: Sequence[TagRow], *, at: Place | None = None) -> None:
        """Write rows, each at its own place, or all at `at`: a repair that must win over a deletion."""
        ...

    def read(
        self,
        tag: str,
        bucket_ms: int,
        *,
        first: TagTime | None = None,
        last: TagTime | None = None,
        page_size: int = 500,
    ) -> AsyncIterator[Sequence[TagRow]]:
        """Yield pages of a bucket's rows from `first` to `last` (inclusive), ascending, each fetched when asked for."""
        ...

    async def buckets(self, tag: str, *, first_ms: int = 0, last_ms: int | None = None) -> Sequence[int]:
        """List the buckets of a tag that may hold rows and start from `first_ms` to `last_ms`, ascending."""
        ...

    async def tags(self) -> Sequence[str]:
        """List all tags that have rows, sorted."""
        ...

    async def redact(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove payload, metadata and headers of rows for good, at the place of the delete or purge; rows stay.

        Writing such a row again, at any place, does not bring them back.
        """
        ...

    async def delete(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove rows, at a place above theirs."""
        ...


class TagNumbers(Protocol):
    """The last number of each (pid, tag); the highest place wins."""

    async def of(self, topic: str, pid: str) -> Mapping[str, TagNumber]:
        """Return the numbers of all tags of a pid."""
        ...

    async def write(self, numbers: Sequence[TagNumber], *, at: Place | None = None) -> None:
        """Write numbers, each at its own place, or all at `at`."""
        ...

    async def begin_at(self, topic: str, pid: str, tag: str, first: int, *, at: Place) -> None:
        """Store that numbers below `first` have no rows, for a tag that has a number; at the place of a repair."""
        ...

    async def delete(self, topic: str, pid: str, tag: str, *, at: Place) -> None:
        """Remove the number of a pid's tag, and where it begins, at a place above its own."""
        ...


class Tags(Protocol):
    """The tables of events by tag. `prepare` creates them, so that a store without tags does not have them."""

    @property
    def views(self) -> TagViews:
        """The events."""
        ...

    @property
    def numbers(self) -> TagNumbers:
        """The numbering."""
        ...

    async def prepare(self) -> None:
        """Create the tables if they are missing; call it before any other method."""
        ...

    async def epochs(self) -> Mapping[str, str | None]:
        """Return the epoch that each table carries; None for a table that was emptied by someone else."""
        ...

    async def put_epoch(self, epoch: str) -> None:
        """Write the epoch into every table."""
        ...

    async def drop_bucket(self, tag: str, bucket_ms: int) -> None:
        """Remove a whole bucket of a tag for good; it must not be written to afterwards."""
        ...


class Store(Protocol):
    """An open store."""

    @property
    def reader(self) -> StoreReader:
        """The read side."""
        ...

    @property
    def writer(self) -> StoreWriter:
        """The write side."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """Saved states."""
        ...

    @property
    def settings(self) -> SharedSettings:
        """Shared settings."""
        ...

    @property
    def tags(self) -> Tags:
        """Events by tag."""
        ...

    async def close(self) -> None:
        """Close the store."""
        ...


async def open_store(address: str, *, settings: StoreSettings | None = None) -> Store:
    """Open the store at `address`: `embedded:./folder`, `cassandra://host/keyspace`, or what a package serves.

    A backend is an entry point of the group `headrace.store`, named by its scheme: an async function of the
    address and the settings.
    """
    open_backend = load_backend("store", address)
    return cast("Store", await open_backend(address, settings or StoreSettings()))
