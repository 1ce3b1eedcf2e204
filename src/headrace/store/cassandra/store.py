"""The store in Cassandra, assembled from its parts over one session."""

from __future__ import annotations

from headrace.config import StoreSettings
from headrace.store.cassandra import reader, snapshots, writer
from headrace.store.cassandra.address import ClusterAddress
from headrace.store.cassandra.schema import fixed_meta_segments, migrate, schema
from headrace.store.cassandra.session import Session
from headrace.store.cassandra.shared_settings import CassandraSettings
from headrace.store.cassandra.tags import CassandraTags

__all__ = ["CassandraStore"]


class CassandraStore:
    """A keyspace of a cluster."""

    def __init__(self, session: Session, settings: StoreSettings, *, meta_segments: int) -> None:
        self._session = session
        self._reader = reader.CassandraReader(session, meta_segments=meta_segments)
        self._writer = writer.CassandraWriter(
            session, settings.cassandra, meta_segments=meta_segments, marker_ttl_s=settings.marker_ttl_s
        )
        self._snapshots = snapshots.CassandraSnapshots(session)
        self._settings = CassandraSettings(session)
        self._tags = CassandraTags(session, gc_grace_s=settings.gc_grace_s)

    @classmethod
    async def open(cls, address: ClusterAddress, settings: StoreSettings) -> CassandraStore:
        """Connect, and migrate the keyspace to this version's schema."""
        session = await Session.open(address, settings.cassandra)
        try:
            await migrate(session, schema(gc_grace_s=settings.gc_grace_s), settings.cassandra)
            segments = await fixed_meta_segments(session, settings.cassandra.meta_segments)
            await session.prepare((*reader.QUERIES, *writer.QUERIES, *snapshots.QUERIES))
        except BaseException:
            await session.close()
            raise
        return cls(session, settings, meta_segments=segments)

    @property
    def reader(self) -> reader.CassandraReader:
        """The read side."""
        return self._reader

    @property
    def writer(self) -> writer.CassandraWriter:
        """The write side."""
        return self._writer

    @property
    def snapshots(self) -> snapshots.CassandraSnapshots:
        """Saved states."""
        return self._snapshots

    @property
    def settings(self) -> CassandraSettings:
        """Shared settings."""
        return self._settings

    @property
    def tags(self) -> CassandraTags:
        """Events by tag."""
        return self._tags

    async def close(self) -> None:
        """Wait for pending answers, then disconnect."""
        await self._session.close()
