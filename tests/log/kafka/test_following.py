"""One consumer for all that is followed: places taken up and left again, again and again, lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPlace
from tests.log.kafka.conftest import OpenKafka

from headrace.log import follower as following
from headrace.log.kafka.log import KafkaLog
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import new_topic, numbered, values

pytestmark = pytest.mark.servers


async def _follow(log: KafkaLog, at: TopicPartition, start: int, end: int) -> list[int]:
    found: list[int] = []
    async with contextlib.aclosing(log.read(at, start)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            found += [record.offset for record in batch.records]
            if batch.next_offset >= end:
                return found
    return found


async def test_partitions_are_taken_up_and_left_again_and_again(log: KafkaLog) -> None:
    """FT8: readers come and go, at any place; each gets all that lies between its start and the end."""
    topic = await new_topic(log, partitions=4)
    dice = random.Random(1)
    ends = [0] * 4
    for n in range(200):
        partition = dice.randrange(4)
        at = TopicPartition(topic, partition)
        if dice.random() < 0.5 or not ends[partition]:
            for each in await log.append(numbered(topic, dice.randint(1, 5), partition=partition)):
                ends[partition] = each.offset + 1
        start = dice.randrange(ends[partition])
        async with asyncio.timeout(20):
            found = await _follow(log, at, start, ends[partition])
        assert found == list(range(start, ends[partition])), n


async def test_a_partition_that_was_left_is_followed_from_the_new_place(
    log: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT8: the consumer has just given it back; it does not go on where it was before."""
    monkeypatch.setattr(log._following, "_linger_s", 0.0)
    await log.append(numbered(topic, 20))
    for start in (15, 0, 19, 3):
        async with asyncio.timeout(20):
            assert await _follow(log, TopicPartition(topic, 0), start, 20) == list(range(start, 20))


async def test_who_has_seen_that_a_topic_is_a_new_one_reads_nothing_of_the_old_one(
    log: KafkaLog, topic: str, opened: OpenKafka, kafka: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program replaces a topic that was just followed: the records that were kept of it are forgotten."""
    at, other = TopicPartition(topic, 0), await opened(kafka)
    before = await log.admin.describe(topic)
    await log.append([NewRecord(topic, b"k", b"old")])
    assert await _values(log, at) == [b"old"]
    with monkeypatch.context() as patched:
        # The follower's consumer has not noticed yet: often it does, because its offset is out of range for a moment.
        patched.setattr(log._source, "_take", lambda brought: log._source._ahead.release())
        await other.admin.delete(topic)
        await other.admin.create(topic, partitions=1, config=TopicConfig())
        await other.append([NewRecord(topic, b"k", b"new")])
        assert (await log.admin.describe(topic)).topic_id != before.topic_id
    assert await _values(log, at) == [b"new"]


async def _values(log: KafkaLog, at: TopicPartition) -> list[bytes | None]:
    """Return the values of the first records that a follower gets."""
    async with asyncio.timeout(20), contextlib.aclosing(log.read(at, 0)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            if batch.records:
                return values(batch.records)
    return []


async def test_listeners_at_all_places_get_everything(
    log: KafkaLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT8: more records than are kept, listeners that begin anywhere and take their time: the feed waits, jumps."""
    monkeypatch.setattr(following, "_MOST_RECORDS", 1500)
    many = 6000
    await log.append(numbered(topic, many))
    at = TopicPartition(topic, 0)
    dice = random.Random(2)

    async def listen(start: int) -> None:
        await asyncio.sleep(dice.random() * 0.2)
        found: list[int] = []
        async with contextlib.aclosing(log.read(at, start, max_records=dice.randint(50, 900))) as batches:  # type: ignore[type-var]
            async for batch in batches:
                found += [record.offset for record in batch.records]
                await asyncio.sleep(dice.random() * 0.01)
                if batch.next_offset >= many + 5:
                    break
        assert found == list(range(start, many + 5))

    async with asyncio.timeout(60), asyncio.TaskGroup() as listening:
        for start in (0, *(dice.randrange(many) for _ in range(8)), many):
            listening.create_task(listen(start))
        await asyncio.sleep(0.3)
        await log.append(numbered(topic, 5))


def threads() -> int:
    """Return how many threads the process has, those of drivers included."""
    return len(list(Path("/proc/self/task").iterdir()))


def files() -> int:
    """Return how many files the process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_following_many_partitions_costs_what_one_consumer_costs(log: KafkaLog) -> None:
    """FT8: twenty listeners on each of 48 partitions: one consumer, and two threads more than that at most."""
    topic = await new_topic(log, partitions=48)
    await log.append(numbered(topic, 1, partition=0))
    before = threads(), files()
    raw = Consumer(log._source.config)
    raw.assign([RawPlace(topic, partition, 0) for partition in range(48)])
    while raw.poll(10.0).error() is not None:
        pass
    raw_cost = threads() - before[0], files() - before[1]
    raw.close()
    del raw
    base = threads(), files()
    places = [TopicPartition(topic, partition) for partition in range(48)]
    readers = [log.read(at, 0) for at in places for _ in range(20)]
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting[:20])
    assert log._following.feeds == 48
    assert threads() - base[0] <= raw_cost[0] + 2
    assert files() - base[1] <= raw_cost[1] + 10
    assert not log._pool._lent
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
