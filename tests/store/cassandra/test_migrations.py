"""E15: a keyspace is brought to this version by one starter at a time, each step once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from headrace.config import CassandraStoreSettings, StoreSettings
from headrace.errors import HeadraceError, IncompatibleData, KeyspaceMissing, OperationFailed, TimedOut
from headrace.services import RunningService
from headrace.store import open_store
from headrace.store.cassandra.address import parse
from headrace.store.cassandra.schema import LAST, STEPS, TABLES, VERSION, TableSchema, locked, migrate
from headrace.store.cassandra.session import Session
from headrace.store.cassandra.shared_settings import CassandraSettings
from headrace.testing.conformance.store_setting import event, head, read_rows

pytestmark = pytest.mark.servers

# None of these can be run twice, so a step that is repeated fails.
OLD = TableSchema(1, ["CREATE TABLE {keyspace}.things (id int PRIMARY KEY, a int)"], {})
STEPPED = {
    2: ["ALTER TABLE {keyspace}.things ADD b int", "ALTER TABLE {keyspace}.things ADD c int"],
    3: ["ALTER TABLE {keyspace}.things ADD d int"],
}
NEW = TableSchema(3, ["CREATE TABLE {keyspace}.things (id int PRIMARY KEY, a int, b int, c int, d int)"], STEPPED)

OpenSession = Callable[[], Awaitable[Session]]


@pytest.fixture
def keyspace(cql: Any) -> Any:
    name = f"m_{uuid.uuid4().hex[:12]}"
    yield name
    cql.execute(f"DROP KEYSPACE IF EXISTS {name}", timeout=60)


@pytest.fixture
async def session(cassandra: RunningService, keyspace: str) -> AsyncIterator[OpenSession]:
    opened: list[Session] = []

    async def open_session() -> Session:
        opened.append(
            await Session.open(parse(f"cassandra://{cassandra.address}/{keyspace}"), CassandraStoreSettings())
        )
        return opened[-1]

    yield open_session
    for each in opened:
        await each.close()


async def bring(session: Session, schema: TableSchema, **settings: Any) -> None:
    await migrate(session, schema, CassandraStoreSettings(**settings))


async def columns(session: Session) -> set[str]:
    asked = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = 'things'"
    return {name for (name,) in await session.ask_once(asked, (session.address.keyspace,))}


async def version(session: Session) -> str | None:
    return await CassandraSettings(session).get(VERSION)


async def test_starters_at_once_make_a_fresh_keyspace_once_at_the_last_version(session: OpenSession) -> None:
    """No step is run on a fresh one; the tables are made by one of them."""
    starters = [await session() for _ in range(3)]
    await asyncio.gather(*(bring(each, NEW) for each in starters))
    assert await version(starters[0]) == "3"
    assert await columns(starters[0]) == {"id", "a", "b", "c", "d"}


async def test_starters_at_once_apply_only_the_later_steps_each_once(session: OpenSession) -> None:
    """From version 1 to 3 by three starters; a step that ran twice would fail."""
    starters = [await session() for _ in range(3)]
    await bring(starters[0], OLD)
    assert (await version(starters[0]), await columns(starters[0])) == ("1", {"id", "a"})
    await asyncio.gather(*(bring(each, NEW) for each in starters))
    assert await version(starters[0]) == "3"
    assert await columns(starters[0]) == {"id", "a", "b", "c", "d"}


async def test_a_newer_keyspace_is_left_alone(session: OpenSession) -> None:
    """The error has both versions; nothing was touched, also not by a version nobody can read."""
    one = await session()
    await bring(one, NEW)
    with pytest.raises(IncompatibleData, match="found version 3, this version reads up to version 1"):
        await bring(one, OLD)
    assert (await version(one), len(await columns(one))) == ("3", 5)
    assert await CassandraSettings(one).put(VERSION, "next", expected="3")
    with pytest.raises(IncompatibleData, match="found version next"):
        await bring(one, NEW)


async def test_a_keyspace_of_another_program_is_left_alone(cassandra: RunningService, keyspace: str, cql: Any) -> None:
    """Tables of kafka-journal have the same names and other columns: the error says so, and nothing is touched."""
    cql.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    cql.execute(
        f"CREATE TABLE {keyspace}.pointer2 (topic text, partition int, offset bigint, created timestamp,"
        " updated timestamp, PRIMARY KEY ((topic, partition)))"
    )
    cql.execute(
        f"CREATE TABLE {keyspace}.setting (key text PRIMARY KEY, value text, timestamp timestamp, origin text,"
        " metadata text)"
    )
    with pytest.raises(IncompatibleData, match=r"tables of another program \(pointer2\).*use another address"):
        await open_store(f"cassandra://{cassandra.address}/{keyspace}")
    asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
    assert {name for (name,) in cql.execute(asked, (keyspace,))} == {"pointer2", "setting"}
    assert list(cql.execute(f"SELECT key FROM {keyspace}.setting")) == []


async def test_a_step_that_fails_is_taken_up_again_and_the_lock_is_free(session: OpenSession) -> None:
    """The version says what was done; whoever comes next goes on from there."""
    one = await session()
    await bring(one, OLD)
    broken = TableSchema(3, NEW.tables, {2: STEPPED[2], 3: ["ALTER TABLE {keyspace}.nothing ADD x int"]})
    with pytest.raises(HeadraceError) as failed:
        await bring(one, broken)
    assert isinstance(failed.value, OperationFailed)
    assert await version(one) == "2"
    await asyncio.wait_for(bring(await session(), NEW), 30)
    assert await version(one) == "3"


async def test_a_lock_keeps_others_waiting_and_runs_out_by_itself(session: OpenSession) -> None:
    """A holder that died holds nobody up for longer than its time; one that was too slow is told."""
    one, two = await session(), await session()
    await bring(one, OLD)
    await bring(two, OLD)
    async with locked(one, "work", ttl_s=60):
        with pytest.raises(TimedOut, match="waiting for the lock 'work'"):
            async with locked(two, "work", timeout_s=0.2):
                pass
    async with locked(one, "work", ttl_s=1) as lost, locked(two, "work", timeout_s=20) as held:
        with pytest.raises(TimedOut, match="under the lock"):
            await lost.renew()
        await held.renew()


async def test_a_keyspace_that_is_not_to_be_made_is_missing(session: OpenSession) -> None:
    """With create_keyspace off the operator makes it; the error names it."""
    one = await session()
    with pytest.raises(KeyspaceMissing, match=f"no keyspace '{one.address.keyspace}'"):
        await bring(one, NEW, create_keyspace=False)


async def test_the_keyspace_keeps_the_meta_segments_it_was_made_with(cassandra: RunningService, keyspace: str) -> None:
    """A process with another number configured finds the heads all the same; deletions are kept as configured."""
    address = f"cassandra://{cassandra.address}/{keyspace}"
    made_with = StoreSettings(gc_grace_s=777, cassandra=CassandraStoreSettings(meta_segments=7))
    first = await open_store(address, settings=made_with)
    await first.writer.write_meta(head("t", "some-id", 1))
    await first.writer.write_rows("t", "some-id", [event(1)])
    second = await open_store(address)
    assert await second.reader.meta("t", "some-id") == head("t", "some-id", 1)
    assert await read_rows(second, "t", "some-id") == [event(1)]
    await first.close()
    await second.close()


def test_every_version_after_the_first_has_its_step() -> None:
    """Whoever adds a version says how older keyspaces get there."""
    assert sorted(STEPS) == list(range(2, LAST + 1))
    assert all("gc_grace_seconds" in table for table in TABLES)
