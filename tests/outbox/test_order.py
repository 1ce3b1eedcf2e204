"""The order of a key's messages: by the order of commits that wait for one another, whatever is read ahead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError
from tests.outbox.conftest import GROUNDS
from tests.outbox.setting import Ground, count, numbered, publish, rows, sequences
from tests.outbox.test_relay import change, statements
from tests.outbox.watched import WatchedLog

from headrace.outbox import Message, Outbox, OutboxSettings, Relay
from headrace.testing.conformance.log_setting import eventually

MESSAGE_READ = "ORDER BY m.id"


async def _is(claim: bool) -> bool:
    return claim


def committed_later(ground: Ground, topic: str, payload: bytes) -> Callable[[], None]:
    """Take an id for a message of key k now; returns what commits it."""
    if ground.engine.dialect.name != "sqlite":
        connection = ground.engine.connect()
        Outbox().producer(topic).publish(connection, payload, key="k")

        def commit() -> None:
            connection.commit()
            connection.close()

        return commit
    # SQLite has one writer at a time: only a dead letter that is sent again comes with a lower id.
    publish(ground.engine, topic, [Message(payload, "k")])
    row = next(row for row in rows(ground.engine) if row["message"] == payload)
    change(ground.engine, "DELETE FROM kafka_messages WHERE id = :id", id=row["id"])
    insert = (
        'INSERT INTO kafka_messages (id, topic, message, "key", event_id, bucket) '
        "VALUES (:id, :topic, :message, :key, :event_id, 0)"
    )
    named = {name: row[name] for name in ("id", "topic", "message", "key", "event_id")}
    return lambda: change(ground.engine, insert, **named)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_lower_id_that_commits_during_a_turn_is_sent_before_a_higher_one_of_its_key(
    ground: Ground, delivery: str
) -> None:
    """FO2: the relay reads ahead of what it sends; a key's first message commits behind it, its second ahead of it."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 2))
    commit_first = committed_later(ground, topic, b"-2")
    publish(ground.engine, topic, numbered(3, 6))
    relay = ground.relay(batch_size=2, delivery=delivery, source=topic)
    reads = 0

    def when_read_ahead(sql: str) -> None:
        nonlocal reads
        reads += MESSAGE_READ in sql
        if reads == 3 and MESSAGE_READ in sql:  # two batches are in hand, the third is about to be read
            commit_first()
            publish(ground.engine, topic, [Message(b"-1", "k")])

    with statements(relay, tell=when_read_ahead):
        async with relay:
            await eventually(lambda: _is(reads >= 3 and count(ground.engine) == 0))

    found = sequences(await ground.records(topic))
    assert found[b"k"] == [-2, -1]
    assert sorted(n for key, ns in found.items() if key != b"k" for n in ns) == [1, 2, 3, 4, 5, 6]


async def test_a_slow_transaction_holds_up_nobody(ground: Ground) -> None:
    """FO2, L17: while an id is taken and not committed, all other messages go out, those of its key's row included."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 2))
    commit_first = committed_later(ground, topic, b"-1")
    publish(ground.engine, topic, numbered(3, 9))
    async with ground.relay(batch_size=2) as relay:
        await relay.drain()
        assert await ground.values(topic) == [b"%d" % n for n in range(1, 10)]
        commit_first()
        await relay.drain()

    assert (await ground.values(topic))[-1] == b"-1"


class Writers:
    """Transactions that get in between the relay's reads, at random and the same ones for a seed.

    A key is like a row with a lock: its next transaction begins, and takes its id, when the last one has committed.
    Beside them commits a bulk of messages whenever less than two batches are left, so that the relay reads on and on.
    """

    def __init__(self, engine: Engine, topic: str, *, seed: int, moves: int) -> None:
        self._engine, self._producer = engine, Outbox().producer(topic)
        self._chance, self._moves = random.Random(seed), moves
        self._numbers = dict.fromkeys(("a", "b", "c"), 0)
        self._open: dict[str, Connection] = {}

    @property
    def written(self) -> dict[bytes, list[int]]:
        """What each key must arrive as."""
        return {name.encode(): list(range(1, n + 1)) for name, n in self._numbers.items()}

    def are_done(self) -> bool:
        """Return True if all is written and gone; gives the relay more to read while there are moves left."""
        if count(self._engine) > 0:
            return False
        if self._moves == 0 and not self._open:
            return True
        self._commit_much()
        return False

    def before(self, sql: str) -> None:
        """Make a move before the relay reads messages; at the end commit what is open."""
        if MESSAGE_READ not in sql:
            return
        if self._moves == 0:
            for key in list(self._open):
                self._commit(key)
            return
        self._moves -= 1
        key = self._chance.choice(list(self._numbers))
        if key in self._open:
            self._commit(key)
        if self._chance.random() < 0.7:
            self._begin(key)
        if count(self._engine) < 10:
            self._commit_much()

    def _commit_much(self) -> None:
        with self._engine.begin() as db:
            self._producer.publish_list(db, [Message(b"0", key="bulk")] * self._chance.randint(10, 20))

    def _begin(self, key: str) -> None:
        self._numbers[key] += 1
        self._open[key] = self._engine.connect()
        self._producer.publish(self._open[key], b"%d" % self._numbers[key], key=key)

    def _commit(self, key: str) -> None:
        with self._open.pop(key) as connection:
            connection.commit()


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ground", GROUNDS[1:3], indirect=True)
async def test_bulk_commits_beside_slow_ones_keep_every_keys_order(ground: Ground, seed: int) -> None:
    """FO2, L16: bulk commits larger than a batch keep the relay reading ahead; every key arrives as 1, 2, 3 …"""
    topic = await ground.topic()
    application = create_engine(ground.url, pool_size=5)
    publish(ground.engine, topic, [Message(b"0", key="bulk")] * 20)
    writers, relay = Writers(application, topic, seed=seed, moves=60), ground.relay(batch_size=5, turn_batches=100)
    with statements(relay, tell=writers.before):
        async with relay:
            await eventually(lambda: _is(writers.are_done()), within_s=30)
    application.dispose()

    found = sequences(await ground.records(topic))
    found.pop(b"bulk")
    assert found == writers.written


async def test_a_failed_delete_costs_no_duplicate_of_the_batch_behind_it(ground: Ground) -> None:
    """FO6: the second batch is in the log when the first one's delete fails; neither is sent again."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 6))
    log = WatchedLog(ground.log)
    relay = Relay(ground.url, log, settings=OutboxSettings(batch_size=2))
    failures = iter([True])

    def fail_once(sql: str) -> None:
        if sql.startswith("DELETE") and next(failures, False):
            raise OperationalError(sql, {}, ConnectionError("the database is gone for a moment"))

    with statements(relay, tell=fail_once):
        async with relay:
            await relay.drain()

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 7)]
    assert log.batches == [(topic, 2)] * 3


async def test_batches_are_bounded_by_bytes(ground: Ground) -> None:
    """FO5: no batch holds more than its bytes, but for a single message that is larger; order and count are kept."""
    topic = await ground.topic()
    sizes = [10_000, 10_000, 10_000, 40_000, 10, 10, 25_000, 10_000, 10]
    publish(ground.engine, topic, [Message(b"x" * size, "k", headers={"n": str(size)}) for size in sizes])
    log = WatchedLog(ground.log)

    async with Relay(ground.url, log, settings=OutboxSettings(batch_bytes=30_000)) as relay:
        await relay.drain()

    assert [len(value or b"") for value in await ground.values(topic)] == sizes
    batches = [[len(record.value or b"") for record in batch] for batch in log.appends]
    assert all(sum(batch[:-1]) < 30_000 for batch in batches)
    assert max(map(len, batches)) > 1
    assert len(batches) < len(sizes)


async def test_one_batch_of_bytes_follows_another_without_a_new_look(ground: Ground, looked: asyncio.Event) -> None:
    """FO5, L2: a batch that its bytes have cut is a full one; the next follows at once."""
    topic = await ground.topic()
    publish(ground.engine, topic, [Message(b"x" * 10_000, "k")] * 20)
    async with ground.relay(batch_bytes=15_000, turn_batches=3):
        await looked.wait()
        await eventually(lambda: _is(count(ground.engine) == 0))

    assert len(await ground.values(topic)) == 20
