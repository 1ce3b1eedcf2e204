"""Drivers and poolers that applications use beside the outbox's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from tests.outbox.conftest import GROUNDS
from tests.outbox.pooler import TransactionPooler
from tests.outbox.setting import Ground, count, empty, numbered, publish, rows

from headrace.config import OutboxSettings
from headrace.model import Record
from headrace.outbox import Inbox, Message, Outbox, Relay, migrate
from headrace.outbox.engines import Database, engine_for
from headrace.outbox.wake import announce, listen

pytestmark = pytest.mark.servers


@pytest_asyncio.fixture
async def asyncpg_engine(postgres_url: URL) -> AsyncIterator[AsyncEngine]:
    """An application's engine with asyncpg, and arguments of its own in the URL."""
    empty(postgres_url)
    made = create_async_engine(
        postgres_url.set(drivername="postgresql+asyncpg").update_query_dict(
            {"prepared_statement_cache_size": "0", "ssl": "disable", "command_timeout": "60"}
        )
    )
    yield made
    await made.dispose()


async def test_asyncpg_publishes(asyncpg_engine: AsyncEngine, postgres_url: URL) -> None:
    """FO4, O8: by session and by connection, bytes, headers, times and nothing at all, in many rows and in one."""
    producer, engine = Outbox().async_producer("orders"), engine_for(postgres_url)
    full = Message(b"\x00\xff", key="a", headers={"raw": b"\xfe"}, event_time=1_700_000_000_000)
    async with AsyncSession(asyncpg_engine) as session:
        await producer.publish_list(session, [full, Message(None)])
        await session.commit()
        await producer.publish(session, b"dropped")
        await session.rollback()
    async with asyncpg_engine.begin() as connection:
        await producer.publish_list(connection, [Message(b"%d" % n, key=str(n)) for n in range(1200)])

    found = rows(engine)
    engine.dispose()
    assert (found[0]["message"], found[0]["key"], found[0]["event_time"]) == (b"\x00\xff", b"a", 1_700_000_000_000)
    assert (found[1]["message"], found[1]["key"], found[1]["headers"]) == (None, None, None)
    assert [row["message"] for row in found[2:]] == [b"%d" % n for n in range(1200)]


async def test_asyncpg_accepts_each_event_once(asyncpg_engine: AsyncEngine) -> None:
    """FO4, L21: the inbox works on the application's own connection."""
    record = Record("orders", 0, 7, 1, headers=(("headrace.event-id", b"e-1"),))
    async with asyncpg_engine.begin() as connection:
        assert await Inbox("billing").accept_async(connection, record)
        assert not await Inbox("billing").accept_async(connection, record)


@pytest.mark.parametrize("ground", GROUNDS[1:2], indirect=True)
async def test_a_relay_takes_the_engine_of_asyncpg(ground: Ground, asyncpg_engine: AsyncEngine) -> None:
    """FO4: the engine, or its URL, that the application has, whatever its arguments."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))

    async with Relay(asyncpg_engine, ground.log) as relay:
        await relay.drain()

    assert await ground.values(topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ground", GROUNDS[1:2], indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_relay_works_through_a_pooler_in_transaction_mode(ground: Ground, delivery: Any) -> None:
    """FO7: migrations, leases, reads and deletes leave nothing in a session and find nothing in one."""
    topic = await ground.topic()
    pooler = TransactionPooler(ground.url.host or "", ground.url.port or 0)
    async with pooler.serving():
        through = ground.url.set(host="127.0.0.1", port=pooler.port)
        await asyncio.to_thread(migrate, through)
        settings = OutboxSettings(batch_size=5, threads=2, delivery=delivery, source=topic, lease_s=2.0)
        async with Relay(through, ground.log, settings=settings) as relay:
            for first in range(1, 61, 20):
                publish(ground.engine, topic, numbered(first, first + 19, keys=1))
                await relay.drain()
            crashes = [worker.restarts for worker in relay._working._workers.values()]
        relaxed = await asyncio.to_thread(_settings_of_all, through)

    assert pooler.refused == []
    assert pooler.transactions > 10
    assert crashes == [0, 0]
    assert await ground.values(topic) == [b"%d" % n for n in range(1, 61)]
    assert relaxed == {("on", "0")}


def _settings_of_all(url: URL) -> set[tuple[str, str]]:
    """Return what an application would find set in the sessions that the pooler hands it."""
    engine = engine_for(url, pool_size=1)
    asked = "SELECT current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout')"
    found = set()
    for _ in range(6):
        with engine.connect() as db:
            found.add(tuple(db.execute(text(asked)).one()))
    engine.dispose()
    return found


@pytest.mark.parametrize("ground", GROUNDS[1:2], indirect=True)
async def test_a_relays_transactions_end_with_their_patience(ground: Ground) -> None:
    """FO7, L8: what is no start-up parameter any more is said in each transaction, and only there."""
    database = Database(ground.url, threads=1, patience_s=7)
    asked = "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('synchronous_commit')"
    durable = await database.write(lambda db: tuple(db.execute(text(asked)).one()))
    relaxed = await database.write_relaxed(lambda db: tuple(db.execute(text(asked)).one()))
    await database.close()

    assert (durable, relaxed) == (("7s", "on"), ("7s", "off"))
    assert count(ground.engine) == 0


@pytest.mark.parametrize("query", [{"options": "-c lock_timeout=7s"}, {"host": ("127.0.0.1:1", "{host}:{port}")}])
async def test_a_relay_is_notified_whatever_its_url_asks(postgres_url: URL, query: dict[str, Any]) -> None:
    """L15: libpq reads the text of a URL in another way than the engine: a blank is no "+", and a host has no port."""
    url = postgres_url.update_query_dict(query)
    if "host" in query:
        at = [each.format(host=postgres_url.host, port=postgres_url.port) for each in query["host"]]
        url = postgres_url.set(host=None, port=None).update_query_dict({"host": at})
    woken = asyncio.Event()
    listening = asyncio.create_task(listen(url, woken.set))
    try:
        for _ in range(2):  # when it listens, and at the notification
            waiting = asyncio.create_task(woken.wait())
            await asyncio.wait({waiting, listening}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done()
            woken.clear()
            announce(url)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_relay_works_at_read_committed_whatever_the_default_is(postgres_url: URL) -> None:
    """L8: at a stricter level workers' transactions would fail one another, and reads those of applications."""
    asked = text("SHOW transaction_isolation")
    strict = f"ALTER DATABASE {postgres_url.database} SET default_transaction_isolation = 'serializable'"
    found = []
    for change in (strict, strict.replace("= 'serializable'", "TO DEFAULT")):
        engine = engine_for(postgres_url)
        with engine.begin() as db:
            db.execute(text(change))
        engine.dispose()
        database = Database(postgres_url, threads=1)
        ways = (database.read, database.write, database.write_relaxed, database.read)
        found += [await ask(lambda db: db.execute(asked).scalar_one()) for ask in ways]
        await database.close()

    assert found == ["read committed"] * 8
