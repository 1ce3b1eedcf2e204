"""Snapshots in the embedded store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headrace.runtime import Clock
from headrace.sqlite import GroupCommit
from headrace.store.embedded.columns import SNAPSHOT, snapshot_of, snapshot_values, upsert
from headrace.store.embedded.reader import Access, number_of
from headrace.store.embedded.schema import ALL_SLOTS, written
from headrace.store.embedded.writer import PUT_SNAPSHOT_DELETION, Journals, StoreCall, StoreWork
from headrace.store.rows import Place, SnapshotRow

__all__ = ["EmbeddedSnapshots"]

_PUT = upsert("snapshots", ("journal", "slot"), ("journal", *SNAPSHOT))
_IS_GONE = "SELECT 1 FROM snapshot_deletions WHERE journal = ? AND slot IN (?, ?) AND written >= ?"
_ALL_OF = f"SELECT {', '.join(SNAPSHOT)} FROM snapshots WHERE journal = ? ORDER BY slot"  # noqa: S608


class EmbeddedSnapshots:
    """The embedded store's Snapshots."""

    def __init__(self, commits: GroupCommit[StoreWork], access: Access, clock: Clock) -> None:
        self._commits = commits
        self._access = access
        self._clock = clock

    async def save(self, topic: str, id_: str, row: SnapshotRow) -> None:
        """Write a snapshot into its slot."""
        await self._commits.submit(StoreCall(lambda db, journals: _save(db, journals, topic, id_, row)))

    async def load(self, topic: str, id_: str) -> Sequence[SnapshotRow]:
        """Return all snapshots of a journal."""
        return await self._access.ask("load snapshots", lambda db: _load(db, topic, id_))

    async def delete(self, topic: str, id_: str, slot: int, *, at: Place) -> None:
        """Remove the snapshot in a slot."""
        now_ms = self._clock.now_ms()
        await self._commits.submit(StoreCall(lambda db, journals: _drop(db, journals, topic, id_, slot, at, now_ms)))


def _drop(db: sqlite3.Connection, journals: Journals, topic: str, id_: str, slot: int, at: Place, now_ms: int) -> None:
    number = journals.find(db, topic, id_).number
    db.execute("DELETE FROM snapshots WHERE journal = ? AND slot = ? AND written <= ?", (number, slot, written(at)))
    db.execute(PUT_SNAPSHOT_DELETION, (number, slot, written(at), now_ms))


def _save(db: sqlite3.Connection, journals: Journals, topic: str, id_: str, row: SnapshotRow) -> None:
    number = journals.find(db, topic, id_).number
    place = written(Place(row.generation, row.offset))
    if db.execute(_IS_GONE, (number, row.slot, ALL_SLOTS, place)).fetchone() is None:
        db.execute(_PUT, (number, *snapshot_values(row)))


def _load(db: sqlite3.Connection, topic: str, id_: str) -> list[SnapshotRow]:
    number = number_of(db, topic, id_)
    return [] if number is None else [snapshot_of(row) for row in db.execute(_ALL_OF, (number,))]
