"""Appends to Kafka: batches and limits, full queues, cancelled callers, other people's producers."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, Producer
from tests.log.kafka.conftest import OpenKafka

from headrace.errors import BadArgument, RecordTooLarge, TimedOut, TimestampTooFarAhead, UnknownTopic
from headrace.log import transaction
from headrace.log.kafka.deliveries import DeliveryFailed
from headrace.log.kafka.log import KafkaLog
from headrace.log.metrics import APPENDED, FETCHED, FETCHES
from headrace.model import NewRecord, Position, TopicConfig, TopicPartition
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import eventually, new_topic, numbered, read_all, values

pytestmark = pytest.mark.servers


async def test_a_plain_producer_and_ours_agree_on_partitions(log: KafkaLog, kafka: RunningService) -> None:
    """C1: for 10 000 random keys a plain producer with Kafka's default partitioner and ours choose the same."""
    topic = await new_topic(log, partitions=7)
    chance = random.Random(1)
    keys = list({chance.randbytes(chance.randrange(1, 40)) for _ in range(10_500)})[:10_000]
    plain: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": kafka.address, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=lambda _, sent: plain.update({sent.key(): sent.partition()}))
        producer.poll(0)
    assert producer.flush(30) == 0
    positions = await log.append([NewRecord(topic, key, b"") for key in keys])
    assert {key: position.partition for key, position in zip(keys, positions, strict=True)} == plain


async def test_a_full_queue_delays_and_keeps_the_order(kafka: RunningService, opened: OpenKafka) -> None:
    """Appends that find the driver's queue full wait their turn; none is lost, none overtakes."""
    log = await opened(kafka, queue_records=10)
    topic = await new_topic(log)
    appends = [log.append(numbered(topic, 7, first=7 * n)) for n in range(60)]
    positions = await asyncio.gather(*appends)
    assert [position.offset for landed in positions for position in landed] == list(range(420))
    assert values(await read_all(log, topic)) == [b"%d" % n for n in range(420)]


async def test_a_late_append_does_not_slip_into_one_that_waits(kafka: RunningService, opened: OpenKafka) -> None:
    """While an append waits for room, those that come later wait behind it, even when there is room again."""
    log = await opened(kafka, queue_records=10)
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    first = asyncio.create_task(log.append(numbered(topic, 500)))
    later = []
    while not first.done():
        await asyncio.sleep(0.001)
        later.append(asyncio.create_task(log.append(numbered(topic, 1))))
    landed = [(await task)[0].offset for task in later]
    assert max(position.offset for position in await first) < min(landed)
    assert landed == sorted(landed)


async def test_appends_keep_their_order_while_the_description_of_their_topic_is_renewed(
    kafka: RunningService, opened: OpenKafka
) -> None:
    """It is read again once in a while, and those that begin when it has just come wait behind those that asked."""
    log = await opened(kafka, metadata_max_age_s=0.002)
    topics = [await new_topic(log) for _ in range(2)]
    for topic in topics:
        await log.append(numbered(topic, 1))  # now the producer knows it, too
    renewals: list[str] = []
    log._topic_cache.on_described = lambda topic: renewals.append(topic.name)
    appends: list[asyncio.Task[Sequence[Position]]] = []
    while len(renewals) < 20:
        n = len(appends)
        both = numbered(topics[0], 1) + numbered(topics[1], 1)
        records = both[n % 2 :][:1] if n % 5 else both
        appends.append(asyncio.create_task(log.append(records)))
        await asyncio.sleep(0)
    landed = [position for positions in await asyncio.gather(*appends) for position in positions]
    for topic in topics:
        offsets = [position.offset for position in landed if position.topic == topic]
        assert offsets == sorted(offsets)


async def test_what_a_replaced_producer_held_timed_out(log: KafkaLog, topic: str) -> None:
    """The outcome is unknown; brokers answered, so the error does not say that they can't be reached."""
    purged = KafkaError(KafkaError._PURGE_QUEUE)
    error = await log._producers.named(DeliveryFailed(NewRecord(topic, b"k", b"v"), purged, brokers_down=True))
    assert isinstance(error, TimedOut)
    assert not error.outcome_known


async def test_thousands_at_once_land_in_the_order_of_their_appends(log: KafkaLog, topic: str) -> None:
    """With many on their way the loop serves the deliveries; when they are done the thread does again."""
    tasks = [asyncio.create_task(log.append(numbered(topic, 1 + n % 2))) for n in range(3_000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (appender,) = log._producers._appenders.values()
    assert not appender._poller._thread_polls.is_set()
    offsets = [position.offset for landed in await asyncio.gather(*tasks) for position in landed]
    assert offsets == list(range(4_500))

    async def rested() -> bool:
        return appender._poller._thread_polls.is_set() and appender._poller._in_flight == 0

    await eventually(rested)


async def test_large_records_do_not_wait_for_the_end_of_a_turn(log: KafkaLog, topic: str) -> None:
    """A burst of large appends is handed to the driver in parts, while the rest of it is still being made."""
    await log.append(numbered(topic, 1))
    (appender,) = log._producers._appenders.values()
    appends = [log._producers.append([NewRecord(topic, b"k", bytes(100_000))]) for _ in range(7)]
    assert len(appender._waiting) == 1
    assert [position.offset for append in appends for position in await append] == list(range(1, 8))


async def test_a_thread_that_computes_does_not_stop_the_loop(log: KafkaLog, topic: str) -> None:
    """While another thread keeps the interpreter busy, deliveries are served in turns with it, not one at a time."""
    await log.append(numbered(topic, 1))
    computing = threading.Event()
    busy = threading.Thread(target=lambda: [sum(range(1_000)) for _ in iter(computing.is_set, True)])
    busy.start()
    try:
        appends = asyncio.gather(*(log.append(numbered(topic, 1)) for _ in range(500)))
        longest_s, last = 0.0, time.monotonic()
        while not appends.done():
            await asyncio.sleep(0.001)
            longest_s, last = max(longest_s, time.monotonic() - last), time.monotonic()
    finally:
        computing.set()
        busy.join()
    assert len(await appends) == 500
    assert longest_s < 1  # 500 deliveries at 5 ms each would be two and a half


async def test_a_batch_never_outgrows_a_small_topic(log: KafkaLog) -> None:
    """A topic that takes 5 000 bytes takes a hundred records of 1 000 in one append, plain or in a transaction."""
    topic = await new_topic(log, config=TopicConfig(max_record_bytes=5_000))
    await log.append([NewRecord(topic, b"k", bytes(1_000)) for _ in range(100)])
    producer = await log.transactional(f"id-{topic}")
    async with transaction(producer) as opened:
        await opened.append(*(NewRecord(topic, b"k", bytes(1_000)) for _ in range(100)))
    assert len(opened.positions) == 100
    assert len(await read_all(log, topic)) == 200
    with pytest.raises(RecordTooLarge) as refused:
        await log.append([NewRecord(topic, b"k", bytes(5_000))])
    assert (refused.value.size_bytes > 5_000, refused.value.limit_bytes) == (True, 5_000)


async def test_topics_of_all_sizes_share_an_append(log: KafkaLog) -> None:
    """Records for a small, a usual and a large topic go through three producers and come back in order."""
    sizes = {2_000: 1_500, 1_048_588: 500_000, 8_000_000: 6_000_000}
    topics = [await new_topic(log, config=TopicConfig(max_record_bytes=limit)) for limit in sizes]
    records = [NewRecord(topic, b"k", bytes(size)) for topic, size in zip(topics, sizes.values(), strict=True)] * 2
    positions = await log.append(records)
    assert [(at.topic, at.offset) for at in positions] == [(topic, n) for n in range(2) for topic in topics]
    for topic, size in zip(topics, sizes.values(), strict=True):
        assert [len(record.value or b"") for record in await read_all(log, topic)] == [size, size]


async def test_a_cancelled_append_does_not_harm_its_neighbours(log: KafkaLog, topic: str) -> None:
    """Whoever shares a batch with an append whose caller went away still hears of its own."""
    tasks = [asyncio.create_task(log.append(numbered(topic, 1, first=n))) for n in range(200)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, list) for outcome in outcomes[1::2])
    assert len(await read_all(log, topic)) >= 100


async def test_nothing_is_made_by_asking_for_it(log: KafkaLog) -> None:
    """An append to a topic that isn't there is refused, although the broker would make it."""
    with pytest.raises(UnknownTopic, match="t-nowhere"):
        await log.append([NewRecord("t-nowhere", b"k", b"v")])
    assert "t-nowhere" not in await log.admin.topics()


async def test_a_topic_deleted_by_others_is_noticed(log: KafkaLog, topic: str, kafka: RunningService) -> None:
    """An append to a topic that is remembered but gone ends as unknown, long before the delivery time-out."""
    await log.append(numbered(topic, 1))
    remembered = log._topic_cache.fresh(topic)
    assert remembered is not None
    await log.admin.delete(topic)
    log._topic_cache.remember(remembered)
    with pytest.raises(UnknownTopic):
        await asyncio.wait_for(log.append(numbered(topic, 1)), 20)
    assert log._topic_cache.fresh(topic) is None


async def test_what_the_broker_refuses_has_a_name(log: KafkaLog, topic: str) -> None:
    """A timestamp that only the broker finds too far ahead, because the topic was changed behind our back."""
    remembered = log._topic_cache.fresh(topic)
    assert remembered is not None
    await log.admin.configure(topic, TopicConfig(timestamp_ahead_ms=1))
    log._topic_cache.remember(remembered)
    landed = await log.append([NewRecord(topic, b"k", b"v")])
    ahead_ms = landed[0].timestamp_ms + 30_000
    with pytest.raises(TimestampTooFarAhead) as refused:
        await log.append([NewRecord(topic, b"k", b"v", timestamp_ms=ahead_ms)])
    assert refused.value.timestamp_ms == ahead_ms


async def test_text_is_not_bytes(log: KafkaLog, topic: str) -> None:
    """Keys and values must be bytes; what is not is refused by name."""
    for record in (NewRecord(topic, "k", b"v"), NewRecord(topic, b"k", "v")):  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="must be bytes"):
            await log.append([record])


async def test_appends_and_reads_are_counted(log: KafkaLog, topic: str) -> None:
    """Counters tell what was appended and fetched, and that a look at the bounds fetches nothing."""

    def counted() -> list[float]:
        return [metric.labels("kafka", topic)._value.get() for metric in (APPENDED, FETCHES, FETCHED)]

    await log.append(numbered(topic, 3))
    await log.bounds(TopicPartition(topic, 0))
    assert counted() == [3, 0, 0]
    await read_all(log, topic)
    appended, fetches, fetched = counted()
    assert (appended, fetched) == (3, 3)
    assert fetches >= 1
