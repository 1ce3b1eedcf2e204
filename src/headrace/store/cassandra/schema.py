"""The tables of a keyspace and their migration: under a lock, by one process at a time, each step once.

A step must be repeatable: a process may die after it and before its number is stored.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.config import CassandraStoreSettings
from headrace.errors import IncompatibleData, KeyspaceMissing, TimedOut
from headrace.observe import get_logger
from headrace.runtime import Backoff
from headrace.store.cassandra.session import Session
from headrace.store.cassandra.shared_settings import QUERIES as SETTING_QUERIES
from headrace.store.cassandra.shared_settings import CassandraSettings

__all__ = [
    "GROUNDWORK",
    "LAST",
    "LOCK_QUERIES",
    "META_SEGMENTS",
    "TABLES",
    "VERSION",
    "Lock",
    "TableSchema",
    "copies_for",
    "fixed_meta_segments",
    "locked",
    "migrate",
    "schema",
    "single_copy_dcs",
]

# The tables for the lock and the version; created before anything can be locked.
GROUNDWORK = (
    "CREATE TABLE IF NOT EXISTS {keyspace}.locks (id text PRIMARY KEY, session text, expiry timestamp)",
    """CREATE TABLE IF NOT EXISTS {keyspace}.setting (
        key text PRIMARY KEY, value text, timestamp timestamp, origin text
    )""",
)

_GAPS = """CREATE TABLE IF NOT EXISTS {keyspace}.journal_gaps (
        id text, topic text, after_segment bigint, next_segment bigint, PRIMARY KEY ((id, topic), after_segment)
    ) WITH gc_grace_seconds = %(gc_grace_s)d"""

TABLES = (
    """CREATE TABLE IF NOT EXISTS {keyspace}.journal (
        id text, topic text, segment bigint, seq_nr bigint, timestamp timestamp, generation int, partition int,
        offset bigint, log_time timestamp, origin text, version text, meta_record_id uuid, tags frozen<list<text>>,
        metadata text, payload_type text, payload_txt text, payload_bin blob, headers map<text, text>,
        PRIMARY KEY ((id, topic, segment), seq_nr, timestamp)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.metajournal (
        id text, topic text, segment bigint, generation int, partition int, offset bigint,
        last_append frozen<tuple<int, bigint>>, purged boolean, purged_at frozen<tuple<int, bigint>>,
        held_from bigint, segment_size int, seq_nr bigint, delete_to bigint, created timestamp, created_date date,
        updated timestamp, expire_after text, expire_on timestamp, record_id uuid, origin text,
        properties map<text, text>, metadata text,
        PRIMARY KEY ((topic, segment), id)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.pointer2 (
        topic text, partition int, offset bigint, generation int, log_time timestamp, created timestamp,
        updated timestamp, segment_size int, PRIMARY KEY ((topic, partition))
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    """CREATE TABLE IF NOT EXISTS {keyspace}.snapshot (
        id text, topic text, buffer_idx int, seq_nr bigint, generation int, offset bigint, timestamp timestamp,
        record_id uuid, payload_type text, payload_txt text, payload_bin blob, metadata text, origin text, version text,
        PRIMARY KEY ((id, topic), buffer_idx)
    ) WITH gc_grace_seconds = %(gc_grace_s)d""",
    _GAPS,
)

# version -> what leads there from the version before
STEPS: Mapping[int, Sequence[str]] = {2: (_GAPS,)}
LAST = 2


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The tables of a keyspace: `tables` create version `last` at once, `steps` migrate to it version by version."""

    last: int
    tables: Sequence[str]
    steps: Mapping[int, Sequence[str]]


def schema(*, gc_grace_s: float) -> TableSchema:
    """Return this version's schema; deletions are kept for `gc_grace_s`."""
    values = {"gc_grace_s": gc_grace_s}
    steps = {version: [step % values for step in made] for version, made in STEPS.items()}
    return TableSchema(LAST, [table % values for table in TABLES], steps)


_ENOUGH = 3


def copies_for(settings: CassandraStoreSettings, nodes_by_dc: Mapping[str, int]) -> dict[str, int]:
    """Return the copies by data centre of a new keyspace: one for each node, up to three."""
    if settings.replication:
        return dict(settings.replication)
    if settings.replication_factor is not None:
        return dict.fromkeys(nodes_by_dc, settings.replication_factor)
    return {dc: min(nodes, _ENOUGH) for dc, nodes in nodes_by_dc.items()}


def single_copy_dcs(replication: Mapping[str, str], nodes_by_dc: Mapping[str, int]) -> list[str]:
    """Return the data centres in which a keyspace keeps a single copy although there are several nodes.

    `replication` is what Cassandra says of a keyspace: its strategy's class and the copies by data centre, or for all.
    """
    for_all = replication.get("replication_factor", "0")
    copies = {dc: replication.get(dc, for_all).partition("/")[0] for dc in nodes_by_dc}
    return sorted(dc for dc, nodes in nodes_by_dc.items() if nodes > 1 and copies[dc] == "1")


# The rows' time to live is the expiry that counts: it is measured by the servers' clocks.
_TAKE = "INSERT INTO {keyspace}.locks (id, session, expiry) VALUES (?, ?, ?) IF NOT EXISTS USING TTL ?"
_RENEW = "UPDATE {keyspace}.locks USING TTL ? SET session = ?, expiry = ? WHERE id = ? IF session = ?"
_GIVE_BACK = "DELETE FROM {keyspace}.locks WHERE id = ? IF session = ?"
LOCK_QUERIES = (_TAKE, _RENEW, _GIVE_BACK)

_WAITS = Backoff(first_s=0.05, limit_s=1.0)


class Lock:
    """A lock for all processes that use the keyspace."""

    def __init__(self, session: Session, name: str, *, ttl_s: int) -> None:
        self._session = session
        self._name = name
        self._ttl_s = ttl_s
        self._owner = str(uuid.uuid4())

    async def take(self) -> bool:
        """Try to take the lock; returns True if it was free."""
        values = (self._name, self._owner, self._expiry_ms(), self._ttl_s)
        return bool((await self._session.decide(f"take lock {self._name!r}", _TAKE, values))[0])

    async def renew(self) -> None:
        """Renew the lock for its whole time. Raises TimedOut if it was lost."""
        values = (self._ttl_s, self._owner, self._expiry_ms(), self._name, self._owner)
        if not (await self._session.decide(f"renew lock {self._name!r}", _RENEW, values))[0]:
            raise TimedOut(f"work under the lock {self._name!r}", self._ttl_s, outcome_known=False)

    async def give_back(self) -> None:
        """Release the lock."""
        await self._session.decide(f"give back lock {self._name!r}", _GIVE_BACK, (self._name, self._owner))

    def _expiry_ms(self) -> int:
        return (time.time_ns() // 1_000_000) + self._ttl_s * 1000


@asynccontextmanager
async def locked(session: Session, name: str, *, ttl_s: int = 60, timeout_s: float = 180.0) -> AsyncIterator[Lock]:
    """Hold the lock for as long as the block runs; wait for it up to `timeout_s`."""
    lock = Lock(session, name, ttl_s=ttl_s)
    deadline_s, attempt = time.monotonic() + timeout_s, 0
    while not await lock.take():
        attempt += 1
        if time.monotonic() > deadline_s:
            raise TimedOut(f"waiting for the lock {name!r} of {session.address.text}", timeout_s)
        await asyncio.sleep(_WAITS.delay_s(attempt))
    try:
        yield lock
    finally:
        await lock.give_back()


VERSION = "headrace.schema-version"
META_SEGMENTS = "headrace.meta-segments"

_KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
_COLUMNS = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = %s"
# kafka-journal has tables of these names too, which lack the column.
_SHARED_NAMES = ("journal", "metajournal", "pointer2")
_OWN_COLUMN = "generation"

_logger = get_logger(__name__)


async def migrate(session: Session, schema: TableSchema, settings: CassandraStoreSettings) -> None:
    """Create or migrate the keyspace and its tables.

    Raises IncompatibleData if they are of a later version or of another program; nothing is touched then.
    """
    await _ensure_keyspace(session, settings)
    await _ensure_groundwork(session)
    shared = CassandraSettings(session)
    if await _version(session, shared, schema) == schema.last:
        return
    async with locked(session, "schema") as lock:
        await _advance(session, shared, schema, lock)


async def fixed_meta_segments(session: Session, configured: int) -> int:
    """Return the keyspace's number of metajournal partitions: as it was created, whatever is configured now."""
    shared = CassandraSettings(session)
    stored = await shared.get(META_SEGMENTS)
    if stored is None:
        await shared.put(META_SEGMENTS, str(configured), expected=None)
        stored = await shared.get(META_SEGMENTS)
    segments = int(stored or configured)
    if segments != configured:
        _logger.warning(
            "the keyspace keeps the meta_segments it was created with",
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
    _logger.info("creating the keyspace", keyspace=keyspace, replication=copies)
    await session.define(
        "CREATE KEYSPACE IF NOT EXISTS {keyspace} "
        f"WITH replication = {{'class': 'NetworkTopologyStrategy', {replication}}}"
    )


def _warn_of_one_copy(session: Session, replication: dict[str, str]) -> None:
    keyspace, nodes = session.address.keyspace, session.nodes_by_dc()
    single_copy = single_copy_dcs(replication, nodes)
    if single_copy:
        wanted = ", ".join(f"'{dc}': {min(count, 3)}" for dc, count in nodes.items())
        _logger.warning(
            "the keyspace keeps one copy of each row on several nodes: what one node loses is gone, and while one is "
            "down its rows can't be read",
            keyspace=keyspace,
            data_centres=single_copy,
            next_step=f"ALTER KEYSPACE {keyspace} WITH replication = {{'class': 'NetworkTopologyStrategy', {wanted}}}; "
            f"then on each node: nodetool repair --full {keyspace}",
        )


async def _ensure_groundwork(session: Session) -> None:
    columns = {(table, column) for table, column in await session.ask_once(_COLUMNS, (session.address.keyspace,))}
    found = {table for table, _ in columns}
    foreign = [name for name in _SHARED_NAMES if name in found and (name, _OWN_COLUMN) not in columns]
    if foreign:
        tables = f"tables of another program ({', '.join(foreign)})"
        raise IncompatibleData(session.address.text, tables, "only its own, in a keyspace of their own")
    if not {"locks", "setting"} <= found:
        for statement in GROUNDWORK:
            await session.define(statement)
    await session.prepare((*LOCK_QUERIES, *SETTING_QUERIES))


async def _version(session: Session, shared: CassandraSettings, schema: TableSchema) -> int | None:
    stored = await shared.get(VERSION)
    if stored is None:
        return None
    if not stored.isdigit() or int(stored) > schema.last:
        raise IncompatibleData(session.address.text, f"version {stored}", f"up to version {schema.last}")
    return int(stored)


async def _advance(session: Session, shared: CassandraSettings, schema: TableSchema, lock: Lock) -> None:
    version = await _version(session, shared, schema)
    if version is None:
        for table in schema.tables:
            await lock.renew()
            await session.define(table)
        await shared.put(VERSION, str(schema.last), expected=None)
        return
    for number in range(version + 1, schema.last + 1):
        _logger.info("migrating the keyspace to a later version", keyspace=session.address.keyspace, version=number)
        for statement in schema.steps[number]:
            await lock.renew()
            await session.define(statement)
        await shared.put(VERSION, str(number), expected=str(number - 1))
