"""Transactions on Kafka: fencing by others, expiry, cancelled callers."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from confluent_kafka import Producer

from headrace.errors import (
    BadArgument,
    Fenced,
    TimestampTooFarAhead,
    TransactionFailed,
    TransactionMisused,
)
from headrace.log import TransactionalProducer
from headrace.log.kafka.log import KafkaLog
from headrace.log.kafka.open_transaction import TransactionStage
from headrace.log.metrics import TRANSACTIONS
from headrace.model import NewRecord, TopicConfig
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import new_topic, numbered, read_all, values

pytestmark = pytest.mark.servers


async def test_a_plain_producer_fences_ours(log: KafkaLog, topic: str, kafka: RunningService) -> None:
    """Whoever takes the id with any Kafka client fences this owner: for good, and counted."""
    before = TRANSACTIONS.labels("kafka", "fenced")._value.get()
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 1))
    other = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"id-{topic}"})
    await asyncio.to_thread(other.init_transactions, 30)
    with pytest.raises(Fenced, match=topic):
        await producer.commit()
    for call in (producer.begin, producer.commit, producer.abort):
        with pytest.raises(Fenced):
            await call()
    await producer.close()
    assert await read_all(log, topic) == []
    assert TRANSACTIONS.labels("kafka", "fenced")._value.get() == before + 1


async def test_an_expired_transaction_was_not_committed_and_the_producer_lives(log: KafkaLog, topic: str) -> None:
    """The commit of a transaction that was open for too long says that nothing was done; the next one works."""
    producer = await log.transactional(f"id-{topic}", timeout_s=0.5)
    await producer.begin()
    await producer.append(numbered(topic, 1))
    deadline = time.monotonic() + 10
    while producer._state.state is not TransactionStage.EXPIRED:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    with pytest.raises(TransactionMisused):
        await producer.begin()
    with pytest.raises(TransactionFailed, match=r"longer than its 0\.5 s"):
        await producer.append(numbered(topic, 1))
    with pytest.raises(TransactionFailed) as failed:
        await producer.commit()
    assert failed.value.outcome_known
    await producer.begin()
    await producer.append([NewRecord(topic, b"k", b"next")])
    await producer.commit()
    assert values(await read_all(log, topic)) == [b"next"]


async def test_a_cancelled_commit_goes_to_its_end(log: KafkaLog, topic: str) -> None:
    """The producer's state stays true when the caller of a commit goes away: the next transaction just begins."""
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, 1))
    commit = asyncio.create_task(producer.commit())
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    await producer.begin()
    await producer.append(numbered(topic, 1, first=1))
    await producer.commit()
    assert values(await read_all(log, topic)) == [b"0", b"1"]


async def test_what_only_the_broker_refuses_fails_the_commit_by_name(log: KafkaLog) -> None:
    """A record that the broker refuses aborts its transaction by name; at the latest the next but one works."""
    topic = await new_topic(log)
    remembered = log._topic_cache.fresh(topic)
    assert remembered is not None
    await log.admin.configure(topic, TopicConfig(timestamp_ahead_ms=1))
    log._topic_cache.remember(remembered)
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append([NewRecord(topic, b"k", b"v", timestamp_ms=int(time.time() * 1000) + 30_000)])
    with pytest.raises(TimestampTooFarAhead):
        await producer.commit()
    with contextlib.suppress(TransactionFailed):
        await _commit_one(producer, topic)
    await _commit_one(producer, topic)
    assert set(values(await read_all(log, topic))) == {b"fine"}


async def _commit_one(producer: TransactionalProducer, topic: str) -> None:
    await producer.begin()
    await producer.append([NewRecord(topic, b"k", b"fine")])
    await producer.commit()


async def test_a_time_out_that_the_brokers_do_not_allow_is_refused(log: KafkaLog) -> None:
    """More than transaction.max.timeout.ms, nothing at all, and no id."""
    for transactional_id, timeout_s in (("x", 100_000.0), ("x", 0.0), ("", 60.0)):
        with pytest.raises(BadArgument):
            await log.transactional(transactional_id, timeout_s=timeout_s)


async def test_an_id_is_taken_soon_while_its_last_owner_has_a_transaction_open(log: KafkaLog, topic: str) -> None:
    """The client is asked again at once instead of after its own pause of 500 ms, which one attempt always took."""
    took_s = []
    for n in range(5):
        old = await log.transactional(f"id-{topic}-{n}")
        await old.begin()
        await old.append(numbered(topic, 1))
        began_s = time.monotonic()
        new = await log.transactional(f"id-{topic}-{n}")
        took_s.append(time.monotonic() - began_s)
        await _commit_one(new, topic)
        with pytest.raises(Fenced):
            await old.commit()
    assert min(took_s) < 0.45
    assert values(await read_all(log, topic)) == [b"fine"] * 5
