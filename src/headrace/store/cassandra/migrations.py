"""Bringing a keyspace to this version's schema: by one process at a time, each step once."""

from __future__ import annotations

from headrace.config import CassandraStoreSettings
from headrace.errors import IncompatibleData, KeyspaceMissing
from headrace.observe import get_logger
from headrace.store.cassandra.copies import copies_for, lonely_dcs
from headrace.store.cassandra.locks import QUERIES as LOCK_QUERIES
from headrace.store.cassandra.locks import Lock, locked
from headrace.store.cassandra.session import Session
from headrace.store.cassandra.shared import QUERIES as SETTING_QUERIES
from headrace.store.cassandra.shared import CassandraSettings
from headrace.store.cassandra.tables import GROUNDWORK, Schema

__all__ = ["META_SEGMENTS", "VERSION", "migrate", "settle_meta_segments"]

VERSION = "headrace.schema-version"
META_SEGMENTS = "headrace.meta-segments"

_KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"

_logger = get_logger(__name__)


async def migrate(session: Session, schema: Schema, settings: CassandraStoreSettings) -> None:
    """Create what is missing, or check that it is ours to use. Raises IncompatibleData when it is newer."""
    await _ensure_keyspace(session, settings)
    await _ensure_groundwork(session)
    shared = CassandraSettings(session)
    if await _version(session, shared, schema) == schema.last:
        return
    async with locked(session, "schema") as lock:
        await _advance(session, shared, schema, lock)


async def settle_meta_segments(session: Session, configured: int) -> int:
    """Return the keyspace's number of metajournal partitions: what it was made with, whatever is configured now."""
    shared = CassandraSettings(session)
    stored = await shared.get(META_SEGMENTS)
    if stored is None:
        await shared.put(META_SEGMENTS, str(configured), expected=None)
        stored = await shared.get(META_SEGMENTS)
    segments = int(stored or configured)
    if segments != configured:
        _logger.warning(
            "the keyspace keeps the meta_segments it was made with",
            keyspace=session.address.keyspace,
            stored=segments,
            configured=configured,
        )
    return segments


async def _ensure_keyspace(session: Session, settings: CassandraStoreSettings) -> None:
    keyspace = session.address.keyspace
    found = await session.ask_once(_KEYSPACE, (keyspace,))
    if found:
        _warn_of_one_copy(session, dict(found[0][0]))
        return
    if not settings.create_keyspace:
        raise KeyspaceMissing(keyspace, session.address.text)
    copies = copies_for(settings, session.nodes_by_dc())
    replication = ", ".join(f"'{name}': {count}" for name, count in copies.items())
    _logger.info("making the keyspace", keyspace=keyspace, replication=copies)
    await session.define(
        "CREATE KEYSPACE IF NOT EXISTS {keyspace} "
        f"WITH replication = {{'class': 'NetworkTopologyStrategy', {replication}}}"
    )


def _warn_of_one_copy(session: Session, replication: dict[str, str]) -> None:
    keyspace, nodes = session.address.keyspace, session.nodes_by_dc()
    lonely = lonely_dcs(replication, nodes)
    if lonely:
        wanted = ", ".join(f"'{dc}': {min(count, 3)}" for dc, count in nodes.items())
        _logger.warning(
            "the keyspace keeps one copy of each row on several nodes: what one node loses is gone, and while one is "
            "down its rows can't be read",
            keyspace=keyspace,
            data_centres=lonely,
            next_step=f"ALTER KEYSPACE {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', {wanted}}}; "
            f"then on each node: nodetool repair --full {keyspace}",
        )


async def _ensure_groundwork(session: Session) -> None:
    found = {name for (name,) in await session.ask_once(_TABLES, (session.address.keyspace,))}
    if not {"locks", "setting"} <= found:
        for statement in GROUNDWORK:
            await session.define(statement)
    await session.prepare((*LOCK_QUERIES, *SETTING_QUERIES))


async def _version(session: Session, shared: CassandraSettings, schema: Schema) -> int | None:
    stored = await shared.get(VERSION)
    if stored is None:
        return None
    if not stored.isdigit() or int(stored) > schema.last:
        raise IncompatibleData(session.address.text, stored, f"up to {schema.last}")
    return int(stored)


async def _advance(session: Session, shared: CassandraSettings, schema: Schema, lock: Lock) -> None:
    version = await _version(session, shared, schema)
    if version is None:
        for table in schema.tables:
            await lock.renew()
            await session.define(table)
        await shared.put(VERSION, str(schema.last), expected=None)
        return
    for number in range(version + 1, schema.last + 1):
        _logger.info("bringing the keyspace to a later version", keyspace=session.address.keyspace, version=number)
        for statement in schema.steps[number]:
            await lock.renew()
            await session.define(statement)
        await shared.put(VERSION, str(number), expected=str(number - 1))
