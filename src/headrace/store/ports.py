"""What an eventual store is, whoever keeps it.

A backend implements these protocols and passes `headrace.testing.conformance.store`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from headrace.model import TopicPartition
from headrace.store.rows import (
    EventRow,
    JournalMeta,
    Place,
    ReplicatedOffset,
    RowDeletion,
    SegmentGap,
    SnapshotRow,
    TagNumber,
    TagRow,
    TagTime,
)

__all__ = ["SharedSettings", "Snapshots", "Store", "StoreReader", "StoreWriter", "TagNumbers", "TagViews", "Tags"]


class StoreReader(Protocol):
    """The read side, for journals.

    Promises: what was written (and acknowledged) before a question was asked is in the answer.
    Does not promise: one state of the store over several questions.
    """

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return how far the partition's replication has come; None before it began."""
        ...

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        """Return a journal's head, or its purge marker."""
        ...

    def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        """Yield pages of the rows from seq_nr `first` to `last` (inclusive), rising, whatever their incarnation.

        A page is fetched when the reader asks for it (the next one may be fetched ahead), never more.
        """
        ...

    async def topics(self) -> Sequence[str]:
        """List the topics that have a replicated offset, sorted."""
        ...

    def metas(
        self, topic: str, *, partition: int | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield pages of all heads of a topic, purge markers included, in no order.

        With `partition` only those whose last record lies there.
        """
        ...


class StoreWriter(Protocol):
    """The write side, for replication.

    Every write carries the place of the record that caused it, and the highest place wins, whatever the order of
    the writes: replays, two writers at once and late writers converge. A deletion wins over rows of its own place
    and below, also over those that come later. Writes by hand, with no place, lose.
    """

    async def write_rows(self, topic: str, id_: str, rows: Sequence[EventRow]) -> None:
        """Write rows of one journal, each at its own place."""
        ...

    async def write_gaps(self, topic: str, id_: str, gaps: Sequence[SegmentGap]) -> None:
        """Note where a journal's numbers jump, for a store that can't find the next segment by itself."""
        ...

    async def write_meta(self, meta: JournalMeta) -> None:
        """Write a head, whole, at its own place. A purge marker goes by itself after the marker's time to live."""
        ...

    async def delete_rows(self, topic: str, id_: str, deletions: Sequence[RowDeletion], *, at: Place) -> None:
        """Remove rows of one journal, at the place of the delete or purge."""
        ...

    async def delete_snapshots(self, topic: str, id_: str, *, at: Place) -> None:
        """Remove all snapshots of a journal that lie at or below the place."""
        ...

    async def move_replicated(self, offset: ReplicatedOffset) -> None:
        """Say how far a partition has come; never goes back."""
        ...


class Snapshots(Protocol):
    """Saved states of journals, in a ring of slots."""

    async def save(self, topic: str, id_: str, row: SnapshotRow) -> None:
        """Write a snapshot into its slot, at its place; what the slot held before goes, if it was older."""
        ...

    async def load(self, topic: str, id_: str) -> Sequence[SnapshotRow]:
        """Return all snapshots of a journal, by slot."""
        ...

    async def delete(self, topic: str, id_: str, slot: int, *, at: Place) -> None:
        """Remove the snapshot in a slot if it lies at or below the place."""
        ...


class SharedSettings(Protocol):
    """Small facts that all processes of a deployment share; changes are atomic."""

    async def get(self, key: str) -> str | None:
        """Return a value."""
        ...

    async def put(self, key: str, value: str, *, expected: str | None) -> bool:
        """Set a value if it is still `expected` (None: not there); False if it was not."""
        ...

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return all values whose key starts so."""
        ...


class TagViews(Protocol):
    """Events by tag, in buckets of time, sorted by their timeuuids.

    Promises: what `buckets` does not list holds nothing; writes converge by place, as those of journals do.
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
        """Yield pages of a bucket's rows from `first` to `last` (inclusive), rising, each fetched when asked for."""
        ...

    async def buckets(self, tag: str, *, first_ms: int = 0, last_ms: int | None = None) -> Sequence[int]:
        """List the buckets of a tag that may hold rows, rising, from those that start at `first_ms` to `last_ms`."""
        ...

    async def tags(self) -> Sequence[str]:
        """List all tags that have rows, sorted."""
        ...

    async def redact(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove payload, metadata and headers of rows for good, at the place of the delete or purge; rows stay.

        Whoever writes such a row again, at whatever place, does not bring them back.
        """
        ...

    async def delete(self, rows: Sequence[TagRow], *, at: Place) -> None:
        """Remove rows, at a place above theirs."""
        ...


class TagNumbers(Protocol):
    """How far the numbering of each (pid, tag) has come; the highest place wins."""

    async def of(self, topic: str, pid: str) -> Mapping[str, TagNumber]:
        """Return the numbers of all tags of a pid."""
        ...

    async def write(self, numbers: Sequence[TagNumber], *, at: Place | None = None) -> None:
        """Write numbers, each at its own place, or all at `at`."""
        ...

    async def begin_at(self, topic: str, pid: str, tag: str, first: int, *, at: Place) -> None:
        """Say that numbers below `first` have no rows, of a tag whose number is there; at the place of a repair."""
        ...

    async def delete(self, topic: str, pid: str, tag: str, *, at: Place) -> None:
        """Forget the number of a pid's tag, and where it begins, at a place above its own."""
        ...


class Tags(Protocol):
    """The tables of events by tag. They are made by `prepare`, so that who uses no tags has none."""

    @property
    def views(self) -> TagViews:
        """The events."""
        ...

    @property
    def numbers(self) -> TagNumbers:
        """The numbering."""
        ...

    async def prepare(self) -> None:
        """Make the tables where they are missing; to be called before any other use."""
        ...

    async def epochs(self) -> Mapping[str, str | None]:
        """Return, by table, the epoch it carries; None for a table that was emptied behind our back."""
        ...

    async def put_epoch(self, epoch: str) -> None:
        """Write the epoch into every table."""
        ...

    async def drop_bucket(self, tag: str, bucket_ms: int) -> None:
        """Remove a whole bucket of a tag, for good: it must not be written to any more."""
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
        """Shared facts."""
        ...

    @property
    def tags(self) -> Tags:
        """Events by tag."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...
