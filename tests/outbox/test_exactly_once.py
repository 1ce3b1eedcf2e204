"""Exactly once, whatever becomes of the database: notes say which messages are in the log, and no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.outbox.setting import Ground, count, empty, numbered, publish, rows
from tests.outbox.test_relay import change

from headrace.errors import TransactionFailed
from headrace.model import NewRecord
from headrace.outbox import Message
from headrace.outbox.dialects import dialect_of
from headrace.outbox.engines import Database
from headrace.outbox.exactly_once import PROGRESS_TOPIC, Notes
from headrace.outbox.leases import LaneLeases
from headrace.outbox.messages import Lane

COLUMNS = ("id", "topic", "message", "key", "event_id", "bucket", "created_at")


def put_back(ground: Ground, kept: list[Any], *, empties: bool = False) -> None:
    """Put messages into the table as they were, or under other ids; in one transaction, which may empty it first."""
    names = ", ".join(dialect_of(ground.engine.dialect.name).key if name == "key" else name for name in COLUMNS)
    values = ", ".join(f":{name}" for name in COLUMNS)
    with ground.engine.begin() as db:
        if empties:
            db.execute(text("DELETE FROM kafka_messages"))
        for row in kept:
            asked = {name: row[name] for name in COLUMNS}
            db.execute(text(f"INSERT INTO kafka_messages ({names}) VALUES ({values})"), asked)


def make_again(ground: Ground) -> None:
    """Do to the rows what dropping the database and making it again does, but for ids, which the caller gives."""
    empty(ground.url)
    change(ground.engine, "UPDATE kafka_outbox_identity SET database_id = :id", id=f"again-{count(ground.engine)}")


def exactly_once(topic: str, **settings: Any) -> dict[str, Any]:
    return {"delivery": "exactly_once", "source": f"s-{topic}", **settings}


@pytest.mark.parametrize("has_identity_of_its_own", [True, False])
async def test_a_database_that_was_made_again_loses_no_message(ground: Ground, has_identity_of_its_own: bool) -> None:
    """FO3: its first messages have the ids of the last batch that was sent from the old one; all of them are sent."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    old = rows(ground.engine)
    await ground.relayed(**exactly_once(topic))
    if has_identity_of_its_own:
        make_again(ground)
    else:
        empty(ground.url)  # restored from a copy of before the first message
    publish(ground.engine, topic, numbered(4, 7))
    new = rows(ground.engine)
    change(ground.engine, "DELETE FROM kafka_messages")
    ids = [row["id"] for row in old] + [old[-1]["id"] + 1]
    put_back(ground, [{**row, "id": id_} for row, id_ in zip(new, ids, strict=True)])

    await ground.relayed(**exactly_once(topic))

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 8)]


async def test_a_database_that_was_set_back_sends_nothing_twice(ground: Ground) -> None:
    """FO3: restored, or failed over to a lagging replica, it has rows that were sent since, in several batches."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 2))
    await ground.relayed(**exactly_once(topic))
    info = [dict(row) for row in rows(ground.engine, "kafka_topic_info", "topic")]
    publish(ground.engine, topic, numbered(3, 10))
    kept = rows(ground.engine)
    await ground.relayed(**exactly_once(topic, batch_size=2))
    put_back(ground, kept)
    change(
        ground.engine,
        "UPDATE kafka_topic_info SET progress_offset = :offset, epoch = :epoch WHERE topic = :topic",
        offset=info[0]["progress_offset"],
        epoch=info[0]["epoch"],
        topic=topic,
    )
    publish(ground.engine, topic, numbered(11, 12))

    await ground.relayed(**exactly_once(topic))

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 13)]
    assert count(ground.engine) == 0


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_database_that_is_set_back_under_a_running_relay_loses_no_message(
    ground: Ground, delivery: str
) -> None:
    """FO3: between a send and its delete the ids go to other messages; they stay, and are sent."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    sent = rows(ground.engine)
    publish(ground.engine, "elsewhere", numbered(4, 6))
    new = [row for row in rows(ground.engine) if row["topic"] == "elsewhere"]
    change(ground.engine, "DELETE FROM kafka_messages WHERE topic = 'elsewhere'")
    relay = ground.relay(delivery=delivery, source=f"s-{topic}")
    settle, is_first = relay._relay_loop.rows.settle, iter([True])

    async def fail_over_and_settle(*given: Any) -> int:
        if next(is_first, False):
            others = [{**row, "topic": topic, "id": old["id"]} for row, old in zip(new, sent, strict=True)]
            put_back(ground, others, empties=True)  # at once: a relay that finds the table empty has nothing left to do
        return await settle(*given)

    relay._relay_loop.rows.settle = fail_over_and_settle  # type: ignore[assignment,method-assign]
    async with relay:
        await relay.drain()

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 7)]


async def test_a_commit_of_unknown_outcome_is_settled_from_the_log(ground: Ground) -> None:
    """FO3, FL1: whether a failed commit counts is for the log to say; both ways every message is there once."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 4))
    relay = ground.relay(**exactly_once(topic, batch_size=2, first_retry_s=0.01))
    log = relay._relay_loop.sender._log  # type: ignore[attr-defined]
    relay._relay_loop.sender._log = FailingCommits(log, outcomes=["committed", "aborted"])  # type: ignore[attr-defined]

    async with relay:
        await relay.drain()

    assert await ground.values(topic) == [b"1", b"2", b"3", b"4"]


class FailingCommits:
    """A log whose first commits fail with an unknown outcome: one that counted, one that did not."""

    def __init__(self, log: Any, *, outcomes: list[str]) -> None:
        self._log, self._outcomes = log, outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> Any:
        producer = await self._log.transactional(transactional_id, timeout_s=timeout_s)
        commit = producer.commit

        async def fail() -> Any:
            if not self._outcomes:
                return await commit()
            if self._outcomes.pop(0) == "committed":
                await commit()
            raise TransactionFailed(transactional_id, "the answer was lost", outcome_known=False)

        producer.commit = fail
        return producer


async def test_a_compacted_message_does_not_come_back_behind_its_successor(ground: Ground) -> None:
    """FO3: the note of a batch has what its messages stand for; a crash before the delete brings no old value back."""
    topic = await ground.topic()
    publish(ground.engine, topic, [Message(b"old", "k"), Message(b"new", "k")])
    kept = rows(ground.engine)
    await ground.relayed(**exactly_once(topic, compact_topics=[topic]))
    put_back(ground, kept)

    await ground.relayed(**exactly_once(topic, compact_topics=[topic]))

    assert await ground.values(topic) == [b"new"]


@example([("shop", "eu-orders", 0), ("shop-eu", "orders", 0)])
@given(
    st.lists(
        st.tuples(
            st.text("ab-:.", min_size=1, max_size=6), st.text("ab-._", min_size=1, max_size=6), st.integers(0, 30)
        ),
        min_size=2,
        max_size=12,
        unique=True,
    )
)
def test_no_two_lanes_share_a_transactional_id(lanes: list[tuple[str, str, int]]) -> None:
    """FO3: whatever the names of sources and topics; `shop` + `eu-orders` is not `shop-eu` + `orders`."""
    ids = [Notes(None, source=s).transactional_id(Lane(t, n)) for s, t, n in lanes]  # type: ignore[arg-type]
    assert len(set(ids)) == len(lanes)


class TestNotesOfTheFirstFormat:
    """FO3: version 0.1 noted bare ids; what they say is true only where the log confirms it."""

    async def first_note(self, ground: Ground, topic: str, ids: list[int], sent: list[Any]) -> None:
        """Do what a relay of version 0.1 did, which died before its delete."""
        notes = Notes(ground.log, source=f"s-{topic}")
        name = notes.first_transactional_id(Lane(topic, 0))
        producer = await ground.log.transactional(name)
        await producer.begin()
        records = [
            NewRecord(
                topic,
                row["key"],
                row["message"],
                (("headrace.event-id", row["event_id"].encode()),),
                timestamp_ms=row["created_at"],
            )
            for row in sent
        ]
        if records:
            await producer.append(records)
        at = await notes.partition(name)
        note = msgspec.json.encode({"ids": ids})
        await producer.append([NewRecord(PROGRESS_TOPIC, name.encode(), note, partition=at.partition)])
        await producer.commit()
        await producer.close()
        change(
            ground.engine,
            "INSERT INTO kafka_topic_info (topic, bucket, note_format) VALUES (:topic, 0, 1)",
            topic=topic,
        )

    async def test_what_was_sent_is_not_sent_again(self, ground: Ground) -> None:
        """The batch is in the log and in the table; it is deleted, and the next goes out in the new format."""
        topic = await ground.topic(partitions=2)
        publish(ground.engine, topic, numbered(1, 5))
        stored = rows(ground.engine)
        await self.first_note(ground, topic, [row["id"] for row in stored[:3]], stored[:3])

        await ground.relayed(**exactly_once(topic))

        assert sorted(value or b"" for value in await ground.values(topic)) == [b"%d" % n for n in range(1, 6)]
        (info,) = [row for row in rows(ground.engine, "kafka_topic_info", "topic") if row["topic"] == topic]
        assert info["note_format"] == 2

    async def test_what_was_not_sent_is_sent(self, ground: Ground) -> None:
        """The note speaks of another database's messages, which had the same ids; the log does not have these."""
        topic = await ground.topic()
        publish(ground.engine, topic, numbered(1, 5))
        await self.first_note(ground, topic, [row["id"] for row in rows(ground.engine)][:3], [])

        await ground.relayed(**exactly_once(topic))

        assert await ground.values(topic) == [b"%d" % n for n in range(1, 6)]


async def test_a_progress_topic_that_was_made_again_is_read_from_its_start(ground: Ground) -> None:
    """FO3: the offset that the table remembers belongs to a topic that is gone; the note is found all the same."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    kept = rows(ground.engine)
    await ground.relayed(**exactly_once(topic))
    put_back(ground, kept)
    change(ground.engine, "UPDATE kafka_topic_info SET progress_offset = 1000000 WHERE topic = :t", t=topic)

    await ground.relayed(**exactly_once(topic))

    assert await ground.values(topic) == [b"1", b"2", b"3"]


async def test_a_batch_of_any_size_fits_its_notes(ground: Ground) -> None:
    """FO3: event ids take room; a batch of thousands takes several notes, and all of them are read."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 4500))
    kept = rows(ground.engine)
    await ground.relayed(**exactly_once(topic, batch_size=4500))
    database = Database(ground.url)
    leases = LaneLeases(database, lease_s=60)
    lease = await leases.acquire(Lane(topic, 0), "reader")
    assert lease is not None
    lease.progress_offset = 0
    noted = await Notes(ground.log, source=f"s-{topic}").read(lease)
    await database.close()

    assert noted == {row["id"]: row["event_id"] for row in kept}


async def test_tables_made_without_the_migrations_get_an_identity(ground: Ground) -> None:
    """FO3: an application may create them from its own metadata; the first lease gives the database its identity."""
    with ground.engine.begin() as db:
        kept = db.execute(text("SELECT database_id FROM kafka_outbox_identity")).scalar_one()
        db.execute(text("DELETE FROM kafka_outbox_identity"))
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 3))
    await ground.relayed(**exactly_once(topic))
    with ground.engine.begin() as db:
        (made,) = db.execute(text("SELECT database_id FROM kafka_outbox_identity")).scalars()

    assert made != kept
    assert len(made) == 36


def test_rows_are_found_by_id_and_event_id() -> None:
    """FO3: both conditions are in every database's delete."""
    for name in ("postgresql", "mysql", "sqlite"):
        condition, _ = dialect_of(name).with_messages({1: "e1", 2: "e2"})
        assert condition.startswith("id ")
        assert " AND event_id " in condition
