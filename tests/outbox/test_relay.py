"""The relay on every database, to real Kafka and to the embedded log."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from tests.outbox.conftest import GROUNDS
from tests.outbox.setting import Ground, count, numbered, publish, rows
from tests.outbox.watched import WatchedLog

from headrace.errors import BadArgument, TimedOut, TimestampTooFarAhead, Unreachable
from headrace.model import TopicConfig, partition_of
from headrace.outbox import (
    Inbox,
    Message,
    Outbox,
    OutboxSettings,
    Relay,
    dead_messages,
    event_id_of,
    migrate,
    replay,
)
from headrace.outbox.dialects import dialect_of
from headrace.outbox.engines import Database, engine_for
from headrace.outbox.leases import LaneLeases, Lanes, LeaseLost
from headrace.outbox.messages import Lane
from headrace.outbox.metrics import LEASES_LOST, PROCESSED, SEND_ERRORS
from headrace.outbox.send import is_about_a_record
from headrace.testing.conformance.log_setting import eventually

INFO = ("kafka_topic_info", "topic, bucket")


def change(engine: Engine, sql: str, **parameters: object) -> None:
    with engine.begin() as db:
        db.execute(text(sql), parameters)


def lease_row(ground: Ground, topic: str) -> Any:
    return next(row for row in rows(ground.engine, *INFO) if row["topic"] == topic)


@contextmanager
def statements(relay: Relay, *, tell: Callable[[str], None] = lambda _: None) -> Iterator[list[str]]:
    """Gather, and tell of, what the relay says to its database."""
    said: list[str] = []
    database = relay._database
    for engine in {database._engine, database._relaxed}:
        event.listen(engine, "before_cursor_execute", lambda *given: (said.append(given[2]), tell(given[2])))
    yield said


async def test_four_topics_are_sent_in_batches_of_two(ground: Ground) -> None:
    """L4: four messages in each of four topics go out as (1,2) and (3,4); four lease rows are left, no message."""
    topics = [await ground.topic() for _ in range(4)]
    for topic in topics:
        publish(ground.engine, topic, numbered(1, 4))
    log = WatchedLog(ground.log)

    async with Relay(ground.url, log, settings=OutboxSettings(batch_size=2)) as relay:
        await relay.drain()

    for topic in topics:
        assert [[r.value for r in batch] for batch in log.appends if batch[0].topic == topic] == [
            [b"1", b"2"],
            [b"3", b"4"],
        ]
        assert await ground.values(topic) == [b"1", b"2", b"3", b"4"]
    assert count(ground.engine) == 0
    leases = rows(ground.engine, "kafka_topic_info", "topic")
    assert sorted(lease["topic"] for lease in leases) == sorted(topics)
    assert {lease["locked_by"] for lease in leases} == {None}


async def test_a_lane_has_one_sender(ground: Ground) -> None:
    """L1, L5, L6: abc locks, def is refused on the same topic and gets another; epochs rise with each holder."""
    database = Database(ground.url)
    leases = LaneLeases(database, lease_s=60)
    publish(ground.engine, "one", numbered(1, 1))
    publish(ground.engine, "two", numbered(1, 1))
    await Lanes(database).waiting()

    abc = await leases.acquire(Lane("one", 0), "abc")
    assert abc is not None
    assert await leases.acquire(Lane("one", 0), "def") is None
    other = await leases.acquire(Lane("two", 0), "def")
    assert other is not None
    await leases.release(abc)
    successor = await leases.acquire(Lane("one", 0), "def")
    assert successor is not None
    assert successor.epoch == abc.epoch + 1
    with pytest.raises(LeaseLost):
        await leases.renew(abc)
    await database.close()


async def test_without_the_lock_no_message_is_read(ground: Ground) -> None:
    """L5: while somebody else has the lease the relay reads nothing of the topic, and sends another."""
    held, free = await ground.topic(), await ground.topic()
    publish(ground.engine, held, numbered(1, 3))
    publish(ground.engine, free, numbered(1, 3))
    database = Database(ground.url)
    await Lanes(database).waiting()
    assert await LaneLeases(database, lease_s=60).acquire(Lane(held, 0), "somebody") is not None
    relay = ground.relay()

    with statements(relay) as said:
        async with relay:
            await eventually(lambda: _is(count(ground.engine) == 3))
    await database.close()

    assert await ground.values(free) == [b"1", b"2", b"3"]
    assert await ground.values(held) == []
    assert sum("ORDER BY m.id" in statement for statement in said) == 1


async def _is(claim: bool) -> bool:
    return claim


async def test_full_batches_follow_one_another_until_others_have_their_turn(ground: Ground) -> None:
    """L2: batches in id order, two full ones at most before the other topic gets its turn."""
    first, second = sorted([await ground.topic(), await ground.topic()])
    publish(ground.engine, first, numbered(1, 50))
    publish(ground.engine, second, numbered(1, 20))
    log = WatchedLog(ground.log)
    settings = OutboxSettings(batch_size=10, turn_batches=2)

    async with Relay(ground.url, log, settings=settings) as relay:
        await relay.drain()

    assert await ground.values(first) == [b"%d" % n for n in range(1, 51)]
    assert await ground.values(second) == [b"%d" % n for n in range(1, 21)]
    turns = [len(list(turn)) for _, turn in itertools.groupby(log.batches, key=lambda batch: batch[0])]
    assert turns in ([2, 2, 3], [2, 5])  # whichever comes first, the other waits for two batches and no more


@pytest.mark.usefixtures("looked")
async def test_a_lane_with_more_queues_up_again_without_another_look(ground: Ground) -> None:
    """L2: a turn that ends with a full batch is followed by the next; the table is not searched in between."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 95))
    relay = ground.relay(batch_size=10, turn_batches=2)
    with statements(relay) as said:
        async with relay:
            await eventually(lambda: _is(count(ground.engine) == 0))

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 96)]
    looks = [statement for statement in said if "LEFT JOIN kafka_topic_info" in statement]
    assert len(looks) <= 3  # at the start, when LISTEN is heard, at the end


async def test_exactly_the_acknowledged_ids_are_deleted(ground: Ground) -> None:
    """L3: one delete a batch, by ids; what was committed while the batch was on its way stays for the next."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 5))
    sent_ids = [row["id"] for row in rows(ground.engine)]
    log = WatchedLog(ground.log)
    log.may_pass.clear()
    relay = Relay(ground.url, log, settings=OutboxSettings())
    with statements(relay) as said:
        await relay.start()
        await log.entered.wait()
        publish(ground.engine, topic, numbered(6, 7))
        log.may_pass.set()
        await relay.drain()
        await relay.stop()

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 8)]
    deletes = [statement for statement in said if statement.startswith("DELETE")]
    assert len(deletes) == len(log.appends) == 2
    assert all(" id " in delete or "id IN" in delete for delete in deletes)
    assert len(log.appends[0]) == len(sent_ids)


async def test_a_lease_outlives_a_slow_send(ground: Ground) -> None:
    """L8: the lease is renewed by its own task while a batch takes longer than the lease, and nobody can take it.

    The rival is more patient than the holder, who may be late on a busy machine; unless renewed the lease were his.
    """
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    log = WatchedLog(ground.log)
    log.may_pass.clear()
    database = Database(ground.url)
    rival = LaneLeases(database, lease_s=2.0)
    async with Relay(ground.url, log, settings=OutboxSettings(lease_s=1.0)) as relay:
        await log.entered.wait()
        taken_at = lease_row(ground, topic)["locked_at"]

        async def is_past_the_rivals_time() -> bool:
            assert await rival.acquire(Lane(topic, 0), "rival") is None
            return bool(lease_row(ground, topic)["locked_at"] > taken_at + 2000)

        await eventually(is_past_the_rivals_time)
        log.may_pass.set()
        await relay.drain()
    await database.close()

    assert await ground.values(topic) == [b"1", b"2", b"3"]


async def test_a_lease_nobody_renews_becomes_free(ground: Ground) -> None:
    """L8: after its time, by the database's clock."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    database = Database(ground.url)
    await Lanes(database).waiting()
    started = time.monotonic()
    assert await LaneLeases(database, lease_s=1).acquire(Lane(topic, 0), "dead") is not None

    await ground.relayed(lease_s=1.0)
    await database.close()

    assert time.monotonic() - started > 0.99  # the database counts milliseconds
    assert await ground.values(topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "left",
    [
        {"locked_by": "dead", "locked_at": 3_600_000, "retry_at": None},
        {"locked_by": None, "locked_at": None, "retry_at": 3_600_000},
    ],
)
async def test_a_clock_that_is_set_back_holds_nothing_up(ground: Ground, left: dict[str, Any]) -> None:
    """L8, L24: what a dead relay, or an error, wrote when the database's clock was an hour ahead counts for nothing."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    database, then = Database(ground.url), now_ms(ground)
    await Lanes(database).waiting()
    await database.close()
    written = {name: then + value if isinstance(value, int) else value for name, value in left.items()}
    sql = "UPDATE kafka_topic_info SET locked_by = :locked_by, locked_at = :locked_at, retry_at = :retry_at"
    change(ground.engine, f"{sql} WHERE topic = :t", t=topic, **written)

    await ground.relayed(lease_s=10.0, max_retry_s=60.0)

    assert await ground.values(topic) == [b"1", b"2", b"3"]


async def test_a_lease_of_the_near_future_is_respected(ground: Ground) -> None:
    """L8: relays share the database's clock, but it may step back by less than a lease; its holder is alive then."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    database = Database(ground.url)
    await Lanes(database).waiting()
    leases = LaneLeases(database, lease_s=10)
    held_by = await leases.acquire(Lane(topic, 0), "alive")
    ahead = now_ms(ground) + 5_000
    change(ground.engine, "UPDATE kafka_topic_info SET locked_at = :at WHERE topic = :t", at=ahead, t=topic)

    assert await leases.acquire(Lane(topic, 0), "other") is None
    assert held_by is not None
    await leases.renew(held_by)
    await database.close()


async def test_an_error_holds_the_topic_back_and_success_resets_it(ground: Ground) -> None:
    """L9: unlocked, error and retries recorded, the wait doubles; success clears it; nothing is dead."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    log = WatchedLog(ground.log)
    log.failures = [Unreachable("broker", "away", outcome_known=False), TimedOut("append", 1, outcome_known=False)]
    errors = SEND_ERRORS.labels(topic)._value.get()
    async with Relay(ground.url, log, settings=OutboxSettings(first_retry_s=30.0, max_retry_s=600.0)) as relay:
        first = await held(ground, topic, retries=1)
        first_wait_ms, then_ms = first["retry_at"] - now_ms(ground), now_ms(ground)
        end_hold(ground, topic)
        second = await held(ground, topic, retries=2)
        assert first_wait_ms <= 30_000 < second["retry_at"] - then_ms
        end_hold(ground, topic)
        await relay.drain()
    assert (first["locked_by"], first["locked_at"]) == (None, None)
    assert "cannot reach broker" in first["last_error"]

    after = lease_row(ground, topic)
    assert (bool(after["error"]), after["retries"], after["retry_at"], after["last_error"]) == (False, 0, None, None)
    assert await ground.values(topic) == [b"1", b"2", b"3"]
    assert count(ground.engine, "kafka_dead_messages") == 0
    assert SEND_ERRORS.labels(topic)._value.get() == errors + 2
    assert len(log.appends) == 3


async def held(ground: Ground, topic: str, *, retries: int) -> Any:
    """Wait until an error holds the topic back, and return its row."""
    await eventually(lambda: _is(any(row["retries"] == retries for row in rows(ground.engine, *INFO))))
    return lease_row(ground, topic)


def end_hold(ground: Ground, topic: str) -> None:
    """Let the time of the hold be over."""
    change(ground.engine, "UPDATE kafka_topic_info SET retry_at = 0 WHERE topic = :t", t=topic)


def now_ms(ground: Ground) -> int:
    """Read the database's clock."""
    with ground.engine.connect() as db:
        return int(db.execute(text(f"SELECT {dialect_of(ground.engine.dialect.name).now_ms}")).scalar_one())


async def test_a_topic_marked_as_failed_without_a_lock_is_not_lost(ground: Ground) -> None:
    """L10: the row that the algorithm as first written would never pick up again."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 2))
    change(
        ground.engine, "INSERT INTO kafka_topic_info (topic, bucket, error, retries) VALUES (:t, 0, TRUE, 5)", t=topic
    )

    await ground.relayed()

    assert await ground.values(topic) == [b"1", b"2"]


async def test_a_lease_lost_in_mid_send_ends_the_work(ground: Ground) -> None:
    """L11: the old holder deletes nothing and releases nothing, and a counter says so."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    log = WatchedLog(ground.log)
    log.may_pass.clear()
    lost = LEASES_LOST.labels(topic)._value.get()
    relay = Relay(ground.url, log, settings=OutboxSettings())
    await relay.start()
    await log.entered.wait()
    database = Database(ground.url)
    change(
        ground.engine,
        "UPDATE kafka_topic_info SET locked_by = 'thief', epoch = epoch + 1, "
        f"locked_at = {database.dialect.now_ms} WHERE topic = :t",
        t=topic,
    )
    stolen = lease_row(ground, topic)
    log.may_pass.set()

    await eventually(lambda: _is(LEASES_LOST.labels(topic)._value.get() == lost + 1))
    await relay.stop()
    await database.close()

    assert count(ground.engine) == 3
    assert lease_row(ground, topic)["locked_by"] == "thief"
    assert lease_row(ground, topic)["epoch"] == stolen["epoch"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_poison_goes_to_the_dead_letters_alone(ground: Ground, delivery: str) -> None:
    """L12: the message that is too large is buried with the reason, the others of its batch are sent, in order."""
    topic = await ground.topic(config=TopicConfig(max_record_bytes=2000))
    messages = numbered(1, 60, keys=3)
    messages[17] = Message(b"x" * 5000, key="k0")
    messages[18] = Message(b"y" * 5000, key="k1")
    publish(ground.engine, topic, messages)
    poison = [row["id"] for row in rows(ground.engine) if len(row["message"]) > 2000]

    await ground.relayed(delivery=delivery, source=topic)

    expected = [b"%d" % n for n in range(1, 61) if n not in (18, 19)]
    assert await ground.values(topic) == expected
    dead = rows(ground.engine, "kafka_dead_messages")
    assert [row["id"] for row in dead] == poison
    assert all("does not fit topic" in row["error"] and row["attempts"] == 1 for row in dead)
    assert count(ground.engine) == 0


@pytest.mark.parametrize("ground", ["sqlite-embedded"], indirect=True)
async def test_a_clock_that_is_ahead_of_the_brokers_kills_no_message(ground: Ground) -> None:
    """L12, L24: a time of just now that is refused is the machine's fault; the topic is held back, and goes on."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    log = WatchedLog(ground.log)
    log.failures = [TimestampTooFarAhead(topic, now_ms(ground), 3_600_000)]

    async with Relay(ground.url, log, settings=OutboxSettings(first_retry_s=0.01)) as relay:
        await relay.drain()

    assert await ground.values(topic) == [b"1", b"2", b"3"]
    assert len(log.appends) == 2
    assert is_about_a_record(TimestampTooFarAhead(topic, now_ms(ground) - 3 * 3_600_000, 3_600_000))


async def test_poison_can_block_its_key(ground: Ground) -> None:
    """L12: what comes behind it in its key waits, other keys go on; once replayed it is first again."""
    topic = await ground.topic(config=TopicConfig(max_record_bytes=2000))
    publish(
        ground.engine, topic, [Message(b"a1", "a"), Message(b"A" * 5000, "a"), Message(b"a3", "a"), Message(b"b1", "b")]
    )
    async with ground.relay(poison="block_key") as relay:
        await eventually(lambda: _is(count(ground.engine, "kafka_dead_messages") == 1))
        publish(ground.engine, topic, [Message(b"a4", "a"), Message(b"b2", "b")])
        await eventually(lambda: _is(count(ground.engine) == 2))
        assert await ground.values(topic) == [b"a1", b"b1", b"b2"]

        await ground.log.admin.configure(topic, TopicConfig(max_record_bytes=10_000))
        with ground.engine.begin() as db:
            assert replay(db, topic=topic) == 1
        await relay.drain()

    sent = [value[:2] for value in await ground.values(topic) if value]
    assert sent == [b"a1", b"b1", b"b2", b"AA", b"a3", b"a4"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_table_that_counts_anew_does_not_stumble_over_old_dead_messages(ground: Ground, delivery: str) -> None:
    """L12: it was emptied, or made again; a poison message has the id of one that is dead since long ago."""
    topic = await ground.topic(config=TopicConfig(max_record_bytes=2000))
    publish(ground.engine, topic, [Message(b"A" * 5000, "k")])
    (old,) = rows(ground.engine)
    await ground.relayed(delivery=delivery, source=topic)
    publish(ground.engine, topic, [Message(b"B" * 5000, "k"), Message(b"1", "k")])
    first = min(row["id"] for row in rows(ground.engine))
    change(ground.engine, "UPDATE kafka_messages SET id = :old WHERE id = :first", old=old["id"], first=first)

    await ground.relayed(delivery=delivery, source=topic)
    publish(ground.engine, topic, [Message(b"2", "k")])
    waiting = max(row["id"] for row in rows(ground.engine))
    change(ground.engine, "UPDATE kafka_messages SET id = :old WHERE id = :last", old=old["id"], last=waiting)
    await ground.log.admin.configure(topic, TopicConfig(max_record_bytes=10_000))
    with ground.engine.begin() as db:
        assert [row.message[:1] for row in dead_messages(db)] == [b"A", b"B"]
        assert replay(db, topic=topic) == 2
        assert dead_messages(db) == []
    await ground.relayed(delivery=delivery, source=topic)

    values = [(value or b"")[:1] for value in await ground.values(topic)]
    assert (values[0], sorted(values[1:])) == (b"1", [b"2", b"A", b"B"])
    assert count(ground.engine) == 0


async def test_poison_can_block_its_topic(ground: Ground) -> None:
    """L12: nothing behind it is sent, in no bucket, until somebody has decided; then all of it is, in order."""
    topic = await ground.topic(config=TopicConfig(max_record_bytes=2000))
    publish(ground.engine, topic, [Message(b"1", "a"), Message(b"X" * 5000, "a"), Message(b"3", "b")])
    async with ground.relay(poison_by_topic={topic: "block_topic"}) as relay:
        await eventually(lambda: _is(count(ground.engine, "kafka_dead_messages") == 1))
        publish(ground.engine, topic, [Message(b"4", "c")])
        await eventually(lambda: _is(lease_row(ground, topic)["retry_at"] is not None))
        assert await ground.values(topic) == [b"1"]
        assert count(ground.engine) == 2
        from headrace.outbox import purge

        with ground.engine.begin() as db:
            assert purge(db, topic=topic) == 1
        await relay.drain()

    assert await ground.values(topic) == [b"1", b"3", b"4"]


async def test_a_compacted_topic_sends_the_last_of_each_key(ground: Ground) -> None:
    """L13: keys 1, 2, 1 send rows 2 and 3; keyless ones are untouched; all are deleted and counted."""
    topic = await ground.topic()
    processed = PROCESSED.labels(topic)._value.get()
    publish(
        ground.engine, topic, [Message(b"a", "1"), Message(b"b", "2"), Message(b"c", "1"), Message(b"d"), Message(b"e")]
    )

    await ground.relayed(compact_topics=[topic])

    assert await ground.values(topic) == [b"b", b"c", b"d", b"e"]
    assert count(ground.engine) == 0
    assert PROCESSED.labels(topic)._value.get() == processed + 5


REFUSE_DELETES = {
    "sqlite": ["CREATE TRIGGER keep BEFORE DELETE ON kafka_messages BEGIN SELECT RAISE(ABORT, 'not now'); END"],
    "postgresql": [
        (
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql "
            "AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$"
        ),
        "CREATE TRIGGER keep BEFORE DELETE ON kafka_messages FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mariadb": [
        (
            "CREATE TRIGGER keep BEFORE DELETE ON kafka_messages FOR EACH ROW "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'"
        )
    ],
}


async def test_a_failed_delete_is_raised_once_and_nothing_is_sent_again(ground: Ground) -> None:
    """L14: the worker crashes and starts again; the messages it has sent are deleted then, not published again."""
    topic = await ground.topic()
    dialect = "mariadb" if ground.engine.dialect.name in ("mysql", "mariadb") else ground.engine.dialect.name
    publish(ground.engine, topic, numbered(1, 3))
    for statement in REFUSE_DELETES[dialect]:
        change(ground.engine, statement)
    log = WatchedLog(ground.log)
    relay = Relay(ground.url, log, settings=OutboxSettings())
    try:
        await relay.start()
        await log.entered.wait()
        worker = next(iter(relay._working._workers.values()))
        await eventually(lambda: _is(worker.restarts >= 2))
        assert count(ground.engine) == 3
        change(ground.engine, "DROP TRIGGER keep" + (" ON kafka_messages" if dialect == "postgresql" else ""))
        await relay.drain()
    finally:
        await relay.stop()

    assert log.batches == [(topic, 3)]
    assert await ground.values(topic) == [b"1", b"2", b"3"]


async def test_an_idle_relay_is_quiet(ground: Ground) -> None:
    """L15: with four workers and nothing to do it soon makes fewer than five statements a second, but looks on."""
    relay = ground.relay(threads=4)
    said_s: list[float] = []
    with statements(relay, tell=lambda _: said_s.append(time.monotonic())):
        async with relay:
            await eventually(lambda: _is(len(said_s) > 5 and said_s[-1] - said_s[-6] > 1))
            before = len(said_s)
            await eventually(lambda: _is(len(said_s) >= before + 2), within_s=5)


async def test_a_commit_wakes_a_relay_of_the_same_process(ground: Ground, looked: asyncio.Event) -> None:
    """L15: whatever the database, without another look by the clock."""
    topic = await ground.topic()
    async with ground.relay():
        await looked.wait()
        publish(ground.engine, topic, numbered(1, 1))
        await eventually(lambda: _is(count(ground.engine) == 0))


async def test_a_late_low_id_is_sent(ground: Ground) -> None:
    """L17: a transaction that commits after a higher id was sent and deleted loses nothing, and holds up nobody."""
    topic = await ground.topic()
    producer = Outbox().producer(topic)
    if ground.engine.dialect.name == "sqlite":
        publish(ground.engine, topic, [Message(b"low", "k")])
        (low,) = rows(ground.engine)
        change(ground.engine, "DELETE FROM kafka_messages")
        publish(ground.engine, topic, [Message(b"high", "k")])
        await ground.relayed()
        change(
            ground.engine,
            'INSERT INTO kafka_messages (id, topic, message, "key", event_id, bucket) '
            "VALUES (:id, :topic, :message, :key, :event_id, 0)",
            **{name: low[name] for name in ("id", "topic", "message", "key", "event_id")},
        )
        await ground.relayed()
    else:
        with ground.engine.connect() as early:
            producer.publish(early, b"low", key="k")
            publish(ground.engine, topic, [Message(b"high", "k")])
            async with ground.relay() as relay:
                await relay.drain()  # it sees only what is committed
                assert await ground.values(topic) == [b"high"]
                early.commit()
                await relay.drain()

    assert await ground.values(topic) == [b"high", b"low"]
    assert count(ground.engine) == 0


async def test_buckets_of_one_topic_are_sent_in_parallel_with_each_key_in_order(ground: Ground) -> None:
    """L1, L2: four buckets, three workers, small batches; every key's messages arrive in order, once."""
    topic = await ground.topic(partitions=3)
    settings = {"buckets": 4, "batch_size": 7, "threads": 3, "turn_batches": 2}
    publish(ground.engine, topic, numbered(1, 300, keys=10), buckets=4)
    assert len({row["bucket"] for row in rows(ground.engine)}) > 1

    await ground.relayed(**settings)

    records = await ground.records(topic)
    assert len(records) == 300
    for key in {record.key for record in records}:
        values = [int(record.value or b"") for record in records if record.key == key]
        assert values == sorted(values)


async def test_a_partition_key_decides_the_partition(ground: Ground) -> None:
    """O5: the record's key stays the key; its partition is the partition key's."""
    topic = await ground.topic(partitions=8)
    publish(ground.engine, topic, [Message(b"x", key=f"k{n}", partition_key="customer") for n in range(10)])

    await ground.relayed()

    records = await ground.records(topic)
    assert {record.partition for record in records} == {partition_of(b"customer", 8)}
    assert {record.key for record in records} == {b"k%d" % n for n in range(10)}


async def test_records_carry_headers_event_id_and_event_time(ground: Ground) -> None:
    """L21, O3: an event id of its own for each record, the caller's headers, tombstones, and when it happened."""
    topic = await ground.topic()
    publish(ground.engine, topic, [Message(None, "k", headers={"a": "1"}, event_time=1_700_000_000_000), Message(b"x")])

    await ground.relayed()

    first, second = await ground.records(topic)
    assert (first.value, first.key, first.timestamp_ms) == (None, b"k", 1_700_000_000_000)
    assert dict(first.headers)["a"] == b"1"
    assert abs(second.timestamp_ms - time.time() * 1000) < 60_000
    assert event_id_of(first.headers) != event_id_of(second.headers)
    assert event_id_of(first.headers)


async def test_the_inbox_turns_at_least_once_into_once(ground: Ground) -> None:
    """L21: of all deliveries of an event one is accepted, in the consumer's transaction, per consumer."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    stored = rows(ground.engine)
    await ground.relayed()
    for row in stored:  # as if the relay had died between send and delete
        key = '"key"' if ground.engine.dialect.name in ("sqlite", "postgresql") else "`key`"
        change(
            ground.engine,
            f"INSERT INTO kafka_messages (id, topic, message, {key}, event_id, bucket) "
            "VALUES (:id, :topic, :message, :key, :event_id, 0)",
            **{name: row[name] for name in ("id", "topic", "message", "key", "event_id")},
        )
    await ground.relayed()
    records = await ground.records(topic)
    assert len(records) == 6
    inbox, handled = Inbox("billing"), []

    for record in records:
        with ground.engine.begin() as db:
            if inbox.accept(db, record):
                handled.append(record.value)
    with ground.engine.connect() as db:
        assert Inbox("shipping").accept(db, records[0])
        db.rollback()
    with ground.engine.begin() as db:
        assert Inbox("shipping").accept(db, records[0])
        assert inbox.forget(db, older_than_s=3600) == 0

    assert handled == [b"1", b"2", b"3"]


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:2], indirect=True)
async def test_what_the_url_asks_of_a_session_is_kept(ground: Ground) -> None:
    """L4: PostgreSQL finds the tables in the schema that the URL's options name, whatever else we ask of it."""
    change(ground.engine, "CREATE SCHEMA IF NOT EXISTS shop")
    url = ground.url.update_query_dict({"options": "-csearch_path=shop"})
    migrate(url)
    engine = engine_for(url)
    topic = await ground.topic()
    publish(engine, topic, numbered(1, 3))
    assert (count(engine), count(ground.engine)) == (3, 0)

    async with Relay(url, ground.log) as relay:
        await relay.drain()
    engine.dispose()

    assert await ground.values(topic) == [b"1", b"2", b"3"]


async def test_a_missing_topic_holds_its_messages_until_it_is_made(ground: Ground) -> None:
    """L9, L12: nobody is poison here; other topics go on, and the first goes on when the topic is there."""
    there, missing = await ground.topic(), f"missing-{time.time_ns()}"
    publish(ground.engine, missing, numbered(1, 2))
    publish(ground.engine, there, numbered(1, 2))
    async with ground.relay(max_retry_s=0.2) as relay:
        await eventually(lambda: _is(count(ground.engine) == 2))
        assert await ground.values(there) == [b"1", b"2"]
        await ground.log.admin.create(missing, partitions=1, config=TopicConfig())
        await relay.drain()

    assert await ground.values(missing) == [b"1", b"2"]
    assert count(ground.engine, "kafka_dead_messages") == 0


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"threads": 0}, "at least 1"),
        ({"threads": None}, "at least 1"),
        ({"backend": "kafka"}, "backend 'db'"),
        ({"delivery": "exactly_once"}, "outbox.source"),
    ],
)
def test_a_relay_that_could_not_work_is_refused(settings: dict[str, Any], problem: str) -> None:
    """L20: no threads, another backend, exactly once without a name: said before anything starts."""
    with pytest.raises(BadArgument, match=problem):
        Relay("sqlite:///never.db", WatchedLog(None), settings=OutboxSettings(**settings))  # type: ignore[arg-type]
