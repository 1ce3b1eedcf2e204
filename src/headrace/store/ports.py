"""What an eventual store is, whoever keeps it.

A backend implements these protocols and passes `headrace.testing.conformance.store`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from headrace.model import TopicPartition
from headrace.store.rows import EventRow, JournalMeta, Place, ReplicatedOffset, RowDeletion, SnapshotRow

__all__ = ["Settings", "Snapshots", "Store", "StoreReader", "StoreWriter"]


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

    def metas(self, topic: str, *, page_size: int = 500) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield pages of all heads of a topic, purge markers included, in no order."""
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


class Settings(Protocol):
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
    def settings(self) -> Settings:
        """Shared facts."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...
