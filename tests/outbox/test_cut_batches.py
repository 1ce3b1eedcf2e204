"""Batches that a broker takes in part: nothing else is lost, doubled, reordered or held up by it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.outbox.conftest import GROUNDS
from tests.outbox.setting import Ground, count, first_times, numbered, publish, rows
from tests.outbox.test_exactly_once import FailingCommits
from tests.outbox.test_relay import change

from headrace.errors import BadArgument
from headrace.model import NewRecord, TopicConfig
from headrace.outbox import Message
from headrace.outbox.leases import LaneLease
from headrace.testing.conformance.log_setting import eventually

SQLITE_AND_KAFKA = GROUNDS[-1]
QUICKLY = {"first_retry_s": 0.01, "max_retry_s": 0.05}


async def lower_the_limit(ground: Ground, topic: str, max_bytes: int) -> None:
    """Change the topic behind the log's back: it goes on with the limit that it remembers."""
    entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": ground.address.removeprefix("kafka://")})
    (changed,) = admin.incremental_alter_configs([resource]).values()
    await asyncio.to_thread(changed.result, 30)


async def arrived(ground: Ground, topic: str, delivery: str) -> list[int]:
    """Return the numbers that arrived, each the first time.

    Sorted unless a transaction holds the batch together: the driver sends a batch in several requests, and the broker
    takes a later one while it refuses the one before.
    """
    found = [int((record.value or b"").split()[0]) for record in first_times(await ground.records(topic))]
    return found if delivery == "exactly_once" else sorted(found)


def noise(size_bytes: int, seed: int) -> bytes:
    """Bytes that no codec makes smaller, beginning with their number."""
    return b"%d " % seed + random.Random(seed).randbytes(size_bytes)


@pytest.mark.servers
@pytest.mark.parametrize("ground", [SQLITE_AND_KAFKA], indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_record_that_only_the_broker_finds_too_large_is_buried_alone(ground: Ground, delivery: str) -> None:
    """L12: the topic's limit fell since the relay asked; the others of its batch arrive."""
    topic = await ground.topic()
    async with ground.relay(delivery=delivery, source=topic, **QUICKLY) as relay:
        publish(ground.engine, topic, [Message(b"0 ", "k")])
        await relay.drain()
        await lower_the_limit(ground, topic, 5000)
        messages = [Message(noise(40_000 if n == 7 else 100, n), "k") for n in range(1, 21)]
        publish(ground.engine, topic, messages)
        await relay.drain()

    assert await arrived(ground, topic, delivery) == [n for n in range(21) if n != 7]
    assert [int(row["message"].split()[0]) for row in rows(ground.engine, "kafka_dead_messages")] == [7]
    if delivery == "exactly_once":
        assert len(await ground.records(topic)) == 20


@pytest.mark.servers
@pytest.mark.parametrize("ground", [SQLITE_AND_KAFKA], indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_requests_that_the_broker_finds_too_large_are_sent_in_smaller_ones(ground: Ground, delivery: str) -> None:
    """L2, L16: every message fits, but not as many at a time as before; nothing is dead, and in a transaction the order
    holds.
    """
    topic = await ground.topic()
    async with ground.relay(delivery=delivery, source=topic, **QUICKLY) as relay:
        publish(ground.engine, topic, [Message(b"0 ", "k")])
        await relay.drain()
        await lower_the_limit(ground, topic, 100_000)
        publish(ground.engine, topic, [Message(noise(50_000, n), "k") for n in range(1, 42)])
        await relay.drain()

    assert await arrived(ground, topic, delivery) == list(range(42))
    assert count(ground.engine, "kafka_dead_messages") == 0


@pytest.mark.servers
@pytest.mark.parametrize("ground", [SQLITE_AND_KAFKA], indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_refusal_in_the_middle_of_a_transaction_condemns_no_other_record(ground: Ground, delivery: str) -> None:
    """L12: the batch goes out in pieces, and the first of them is refused while the others are still being added."""
    topic = await ground.topic(config=TopicConfig(max_record_bytes=20_000))
    async with ground.relay(delivery=delivery, source=topic, **QUICKLY) as relay:
        publish(ground.engine, topic, [Message(b"0 ", "k")])
        await relay.drain()
        await lower_the_limit(ground, topic, 5000)
        messages = [Message(noise(10_000 if n == 2 else 1000, n), "k") for n in range(1, 61)]
        publish(ground.engine, topic, messages)
        await relay.drain()

    assert [int(row["message"].split()[0]) for row in rows(ground.engine, "kafka_dead_messages")] == [2]
    assert await arrived(ground, topic, delivery) == [n for n in range(61) if n != 2]


class Refusing:
    """A log whose brokers refuse one value, when the transaction is half done, and do not say which it was."""

    def __init__(self, log: Any, value: bytes) -> None:
        self._log, self._value = log, value
        self.taken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> Any:
        self.taken += 1
        producer = await self._log.transactional(transactional_id, timeout_s=timeout_s)
        added: list[bytes | None] = []
        append, commit, begin = producer.append, producer.commit, producer.begin

        async def begin_anew() -> None:
            added.clear()
            await begin()

        async def add(records: Sequence[NewRecord]) -> None:
            added.extend(record.value for record in records)
            await append(records)

        async def refuse() -> Any:
            if self._value in added:
                await producer.abort()
                raise BadArgument("record", None, "the broker takes no such record there")
            return await commit()

        producer.begin, producer.append, producer.commit = begin_anew, add, refuse
        return producer


@pytest.mark.parametrize("ground", ["sqlite-embedded"], indirect=True)
@pytest.mark.parametrize("culprit", [1, 7, 20])
async def test_a_culprit_that_no_broker_names_is_found_by_halves(ground: Ground, culprit: int) -> None:
    """L12: it is buried, and all others are there once and in order."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 20))
    relay = ground.relay(delivery="exactly_once", source=topic, **QUICKLY)
    relay._relay_loop.sender._log = Refusing(ground.log, b"%d" % culprit)  # type: ignore[attr-defined]

    async with relay:
        await relay.drain()

    assert await ground.values(topic) == [b"%d" % n for n in range(1, 21) if n != culprit]
    assert [row["message"] for row in rows(ground.engine, "kafka_dead_messages")] == [b"%d" % culprit]


@pytest.mark.parametrize("ground", ["sqlite-embedded"], indirect=True)
async def test_a_batch_that_somebody_else_sent_meanwhile_is_not_sent_again(ground: Ground) -> None:
    """L22: a refusal, then another relay has the lane for a moment: who takes the id again looks at the notes."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 5))
    slow = ground.relay(delivery="exactly_once", source=topic, **QUICKLY)
    log = Refusing(ground.log, b"3")
    slow._relay_loop.sender._log = log  # type: ignore[attr-defined]
    take = log.transactional

    async def take_late(transactional_id: str, *, timeout_s: float = 60.0) -> Any:
        if log.taken == 1:
            change(ground.engine, "UPDATE kafka_topic_info SET locked_at = 0 WHERE topic = :t", t=topic)
            await ground.relayed(delivery="exactly_once", source=topic)
            log._value = b""
        return await take(transactional_id, timeout_s=timeout_s)

    log.transactional = take_late  # type: ignore[method-assign]
    async with slow:
        await eventually(lambda: _is(log.taken >= 2))
        await slow.drain()

    assert await ground.values(topic) == [b"1", b"2", b"3", b"4", b"5"]


async def _is(claim: bool) -> bool:
    return claim


@pytest.mark.parametrize("ground", ["sqlite-embedded"], indirect=True)
async def test_waits_grow_when_one_exactly_once_batch_fails_after_another(ground: Ground) -> None:
    """L9: the note of an earlier batch, which is read at each try, does not pass for a success."""
    topic = await ground.topic()
    relay = ground.relay(delivery="exactly_once", source=topic, **QUICKLY)
    hold, retries = relay._relay_loop.leases.hold, list[int]()

    async def hold_and_note(lease: LaneLease, error: str, *, delay_s: float) -> None:
        retries.append(lease.retries)
        await hold(lease, error, delay_s=delay_s)

    relay._relay_loop.leases.hold = hold_and_note  # type: ignore[method-assign]
    async with relay:
        publish(ground.engine, topic, numbered(1, 2))
        await relay.drain()
        failing = FailingCommits(ground.log, outcomes=["aborted"] * 3)
        relay._relay_loop.sender._log = failing  # type: ignore[attr-defined]
        relay._relay_loop.sender._owned.clear()  # type: ignore[attr-defined]
        publish(ground.engine, topic, numbered(3, 4))
        await relay.drain()

    assert retries == [0, 1, 2]
    assert await ground.values(topic) == [b"1", b"2", b"3", b"4"]
