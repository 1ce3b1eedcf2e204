"""Reads from Kafka: ends that nobody sees, consumers used again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headrace.errors import Closed, OffsetOutOfRange, TimedOut
from headrace.log import transaction
from headrace.log.kafka.log import KafkaLog
from headrace.model import Batch, NewRecord, TopicPartition
from headrace.testing.conformance.log_setting import eventually, new_topic, numbered, values

pytestmark = pytest.mark.servers


async def _drop(log: KafkaLog, topic: str, count: int) -> None:
    """Leave an aborted transaction behind."""
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append(numbered(topic, count))
    await producer.abort()
    await producer.close()


async def _read(log: KafkaLog, topic: str, start: int, end: int) -> list[Batch]:
    return [batch async for batch in log.read(TopicPartition(topic, 0), start, end, timeout_s=10)]


async def test_a_read_ends_behind_aborted_records(log: KafkaLog, topic: str) -> None:
    """The end-of-partition event moves the position over aborted records and markers, up to the high watermark."""
    await log.append(numbered(topic, 2))
    await _drop(log, topic, 5)
    bounds = await log.bounds(TopicPartition(topic, 0))
    assert (bounds.end, bounds.high_watermark) == (8, 8)
    batches = await _read(log, topic, 0, bounds.high_watermark)
    assert values([record for batch in batches for record in batch.records]) == [b"0", b"1"]
    assert batches[-1].next_offset == 8


async def test_a_read_may_begin_and_end_among_aborted_records(log: KafkaLog, topic: str) -> None:
    """Bounds that lie between records nobody sees: nothing is yielded twice, nothing beyond the end."""
    await _drop(log, topic, 5)
    await log.append(numbered(topic, 2))
    batches = await _read(log, topic, 2, 4)
    assert [record for batch in batches for record in batch.records] == []
    assert batches[-1].next_offset >= 4
    seen = [record.offset for batch in await _read(log, topic, 3, 7) for record in batch.records]
    assert seen == [6]


async def test_an_open_transaction_stops_a_bounded_read(log: KafkaLog, topic: str) -> None:
    """What lies behind an open transaction is waited for, until the time is up or the transaction ends."""
    producer = await log.transactional(f"id-{topic}")
    await producer.begin()
    await producer.append([NewRecord(topic, b"k", b"open")])
    at = TopicPartition(topic, 0)

    async def landed() -> bool:
        return (await log.bounds(at)).high_watermark == 1

    await eventually(landed)
    await log.append([NewRecord(topic, b"k", b"behind")])
    with pytest.raises(TimedOut, match="from 0 to 2"):
        [batch async for batch in log.read(at, 0, 2, timeout_s=0.5)]
    waiting = asyncio.create_task(_read(log, topic, 0, 2))
    await producer.commit()
    assert values([record for batch in await waiting for record in batch.records]) == [b"open", b"behind"]


async def test_retention_that_overtakes_a_reader_is_an_error(log: KafkaLog, topic: str) -> None:
    """A reader that sits on a batch while the log loses its tail hears of the range."""
    await log.append([NewRecord(topic, b"k", bytes(500_000)) for _ in range(90)])
    at = TopicPartition(topic, 0)
    reader = log.read(at, 0, 90, max_records=1)
    assert (await anext(reader)).next_offset == 1
    await log.retention.truncate(at, before=89)
    with pytest.raises(OffsetOutOfRange) as lost:
        async for _ in reader:
            pass
    assert (lost.value.start, lost.value.end) == (89, 90)
    assert 1 <= lost.value.offset < 89


async def test_consumers_are_used_again(log: KafkaLog) -> None:
    """Reads one after the other share a consumer, whatever they read; reads at the same time do not."""
    topics = [await new_topic(log) for _ in range(3)]
    for topic in topics:
        await log.append([NewRecord(topic, b"k", topic.encode())] * 3)
    for topic in topics * 3:
        assert values([r for batch in await _read(log, topic, 0, 3) for r in batch.records]) == [topic.encode()] * 3

        async def rested() -> bool:
            return log._pool.idle == 1

        await eventually(rested)
    await asyncio.gather(*(_read(log, topic, 0, 3) for topic in topics * 5))

    async def bounded() -> bool:
        return not log._pool._lent and log._pool.idle <= log._settings.idle_consumers

    await eventually(bounded)


async def test_leaving_a_read_gives_the_consumer_back(log: KafkaLog, topic: str) -> None:
    """Closing an iterator half-way frees its consumer; cancelling one that waits ends the following."""
    await log.append(numbered(topic, 3))
    reader = log.read(TopicPartition(topic, 0), 0, 3, max_records=1)
    await anext(reader)
    await reader.aclose()  # type: ignore[attr-defined]
    waiting = asyncio.ensure_future(anext(log.read(TopicPartition(topic, 0), 3)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting

    async def free() -> bool:
        return not log._pool._lent and log._pool.idle >= 1 and log._following.feeds == 0

    await eventually(free)


async def test_a_waiting_reader_hears_that_the_log_was_closed(log: KafkaLog, topic: str) -> None:
    """One that waits for records, and one that was left half-way, get Closed."""
    await log.append(numbered(topic, 3))
    half_way = log.read(TopicPartition(topic, 0), 0, max_records=1)
    await anext(half_way)
    waiting = asyncio.ensure_future(anext(log.read(TopicPartition(topic, 0), 3)))
    await asyncio.sleep(0.05)
    await log.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await anext(half_way)


async def test_positions_of_a_transaction_are_in_the_order_of_its_records(log: KafkaLog) -> None:
    """Over several partitions and appends, each record's position says where it is found."""
    topic = await new_topic(log, partitions=3)
    producer = await log.transactional(f"id-{topic}")
    async with transaction(producer) as opened:
        for first in (0, 10):
            await opened.append(*numbered(topic, 10, first=first))
    for n, position in enumerate(opened.positions):
        at = TopicPartition(topic, position.partition)
        batches = [batch async for batch in log.read(at, position.offset, position.offset + 1)]
        assert values([record for batch in batches for record in batch.records]) == [b"%d" % n]
