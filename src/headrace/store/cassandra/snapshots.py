"""Snapshots in Cassandra."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.store.cassandra.columns import SNAPSHOT, selected, snapshot_of, snapshot_values
from headrace.store.cassandra.session import Session
from headrace.store.rows import Place, SnapshotRow, write_time

__all__ = ["QUERIES", "CassandraSnapshots"]

_PUT = (
    f"INSERT INTO {{keyspace}}.snapshot (id, topic, {', '.join(SNAPSHOT)}) "  # noqa: S608 - names of our own
    f"VALUES ({', '.join('?' * (len(SNAPSHOT) + 2))}) USING TIMESTAMP ?"
)
_LOAD = f"SELECT {selected(SNAPSHOT)} FROM {{keyspace}}.snapshot WHERE id = ? AND topic = ?"  # noqa: S608
_DELETE = "DELETE FROM {keyspace}.snapshot USING TIMESTAMP ? WHERE id = ? AND topic = ? AND buffer_idx = ?"
QUERIES = (_PUT, _LOAD, _DELETE)

# Snapshots are large and few.
_PAGE = 20


class CassandraSnapshots:
    """Cassandra's Snapshots."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def save(self, topic: str, id_: str, row: SnapshotRow) -> None:
        """Write a snapshot into its slot."""
        self._session.check()
        await self._session.write("save snapshot", self._session.bind(_PUT, (id_, topic, *snapshot_values(row))))

    async def load(self, topic: str, id_: str) -> Sequence[SnapshotRow]:
        """Return all snapshots of a journal."""
        self._session.check()
        pages = self._session.pages("snapshot", _LOAD, (id_, topic), page_size=_PAGE)
        return [snapshot_of(row) async for rows in pages for row in rows]

    async def delete(self, topic: str, id_: str, slot: int, *, at: Place) -> None:
        """Remove the snapshot in a slot."""
        self._session.check()
        await self._session.write("delete snapshot", self._session.bind(_DELETE, (write_time(at), id_, topic, slot)))
