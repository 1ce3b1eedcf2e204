"""Three brokers, one of which freezes or dies: who leads a partition, who leads the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.log.kafka.conftest import OpenKafka

from headrace.errors import TimedOut, Unavailable, UnknownTopic
from headrace.log import ensure_topic, transaction
from headrace.log.kafka.log import KafkaLog
from headrace.log.kafka.producer import Appender
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.services import RunningService
from headrace.services.nodes import ServerNode
from headrace.testing.conformance.log_setting import eventually, new_topic, numbered, read_all, values

pytestmark = pytest.mark.servers


@contextlib.asynccontextmanager
async def _frozen(brokers: RunningService, number: int) -> AsyncIterator[ServerNode]:
    node = next(node for node in brokers.nodes if node.plan.number == number)
    await asyncio.to_thread(node.pause)
    try:
        yield node
    finally:
        await asyncio.to_thread(node.resume)


async def _leader(log: KafkaLog, topic: str) -> int:
    return int((await log._cluster.layout(topic)).partitions[0].leader.id)


async def test_a_frozen_leader_is_survived(brokers: RunningService, opened: OpenKafka) -> None:
    """FM1, FM4: bounds are true or Unavailable, and an append made meanwhile reaches the next leader in its time."""
    log = await opened(brokers)
    topic = await new_topic(log)
    at = TopicPartition(topic, 0)
    await log.append(numbered(topic, 3))
    await eventually(lambda: _is_in_sync(log, topic))
    async with _frozen(brokers, await _leader(log, topic)):
        impatient = await opened(brokers, request_timeout_s=2, attempt_timeout_s=1)
        append = asyncio.create_task(log.append([NewRecord(topic, b"k", b"after")]))
        with contextlib.suppress(Unavailable):
            assert (await impatient.bounds(at)).end in (3, 4)
        with contextlib.suppress(Unavailable):
            assert await impatient.offset_at(at, timestamp_ms=0) == 0
        assert [position.offset for position in await append] == [3]
        assert (await log.bounds(at)).end == 4
        assert values(await read_all(log, topic)) == [b"0", b"1", b"2", b"after"]
    await eventually(lambda: _is_in_sync(log, topic))


async def _is_in_sync(log: KafkaLog, topic: str) -> bool:
    return all(len(part.isr) == len(part.replicas) for part in (await log._cluster.layout(topic)).partitions)


async def test_a_killed_broker_is_survived(brokers: RunningService, opened: OpenKafka) -> None:
    """A topic with three copies outlives the death of its leader, and the broker comes back."""
    assert len(set(brokers.endpoints)) == 3
    log = await opened(brokers)
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    await eventually(lambda: _is_in_sync(log, topic))
    leader = await _leader(log, topic)
    node = next(node for node in brokers.nodes if node.plan.number == leader)
    await asyncio.to_thread(node.kill)
    try:
        assert [position.offset for position in await log.append([NewRecord(topic, b"k", b"still here")])] == [1]
        assert values(await read_all(log, topic)) == [b"0", b"still here"]
    finally:
        await asyncio.to_thread(node.start)
    await eventually(lambda: _is_in_sync(log, topic))


async def test_a_producer_that_delivers_nothing_is_replaced(brokers: RunningService, opened: OpenKafka) -> None:
    """Appends that time out one after the other while brokers answer get another producer, and all are unknown.

    The topic asks for three replicas in sync, and one is dead: brokers answer, and acknowledge no record.
    """
    log = await opened(brokers, delivery_timeout_s=2)
    topic = await new_topic(log)
    await log.append(numbered(topic, 1))
    await eventually(lambda: _is_in_sync(log, topic))
    (stuck,) = log._producers._appenders.values()
    leader = await _leader(log, topic)
    follower = next(node for node in brokers.nodes if node.plan.number != leader)
    _ask_for_in_sync(brokers, topic, 3)
    await asyncio.to_thread(follower.kill)
    attempts: list[asyncio.Task[object]] = []

    async def is_replaced() -> bool:
        attempts.append(asyncio.create_task(log.append([NewRecord(topic, b"k", b"perhaps")])))
        await asyncio.wait(attempts[-1:], timeout=0.3)  # so that some are always on their way
        return stuck not in log._producers._appenders.values()

    try:
        await eventually(is_replaced)
        failures = await asyncio.gather(*attempts, return_exceptions=True)
    finally:
        await asyncio.to_thread(follower.start)
        _ask_for_in_sync(brokers, topic, 1)
    assert all(isinstance(failure, TimedOut) and not failure.outcome_known for failure in failures), failures
    await eventually(lambda: _is_taken(log, topic))
    assert set(values(await read_all(log, topic))[1:-1]) <= {b"perhaps", b"after"}
    await eventually(lambda: _is_ended(stuck))
    await eventually(lambda: _is_in_sync(log, topic))


def _ask_for_in_sync(brokers: RunningService, topic: str, count: int) -> None:
    entry = ConfigEntry("min.insync.replicas", str(count), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": brokers.address})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


async def _is_taken(log: KafkaLog, topic: str) -> bool:
    with contextlib.suppress(TimedOut):
        await log.append([NewRecord(topic, b"k", b"after")])
        return True
    return False


async def _is_ended(appender: Appender) -> bool:
    return not appender._poller._thread.is_alive()


async def test_a_frozen_controller_holds_nothing_up_for_long(brokers: RunningService, opened: OpenKafka) -> None:
    """FM3: topics are made, changed, described and removed by the next controller, within the request's time."""
    log = await opened(brokers)
    controller = (await log._cluster.metadata()).controller_id
    async with _frozen(brokers, controller):
        topic = await new_topic(log, partitions=2)
        assert (await log.admin.add_partitions(topic, total=3)).partitions == 3
        assert (await log.admin.configure(topic, TopicConfig(retention_ms=5000))).config.retention_ms == 5000
        producer = await log.transactional(f"id-{topic}")
        async with transaction(producer) as opened_one:
            await opened_one.append(NewRecord(topic, b"k", b"v", partition=0))
        await log.admin.delete(topic)


async def test_a_topic_that_was_made_is_known(brokers: RunningService, opened: OpenKafka) -> None:
    """FM3: each broker hears of a topic in its own time; whoever made it is not told that it is not there."""
    log = await opened(brokers)
    for _ in range(15):
        topic = await new_topic(log, partitions=3)
        await log.append([NewRecord(topic, b"k", b"v", partition=n) for n in range(3)])


class _LateBrokers:
    """The admin client of brokers that hear of a topic late: the next answers about it are that it is unknown."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in {"describe_topics", "describe_configs", "list_offsets"}:
            return call
        return functools.partial(self._asked, call)

    def _asked(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.left == 0:
            return call(*args, **options)
        self.left -= 1
        unknown: Future[Any] = Future()
        unknown.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return {"": unknown}


async def test_whoever_made_a_topic_waits_for_brokers_that_do_not_know_it_yet(
    brokers: RunningService, opened: OpenKafka
) -> None:
    """FM3: describing, changing, reading and appending right after the creation; a deleted topic is unknown at once."""
    log = await opened(brokers)
    log._cluster._clients[0] = late = _LateBrokers(log._cluster.client)
    topic = await new_topic(log)
    config = TopicConfig(retention_ms=5000)
    for ask in (
        lambda: log.admin.describe(topic),
        lambda: ensure_topic(log.admin, topic, partitions=1, config=config),
        lambda: log.admin.configure(topic, config),
        lambda: log.bounds(TopicPartition(topic, 0)),
        lambda: log.append(numbered(topic, 1)),
    ):
        log._topic_cache.forget(topic)
        late.left = 2
        await ask()
        assert late.left == 0
    await log.admin.delete(topic)
    late.left = 1
    with pytest.raises(UnknownTopic):
        await log.admin.describe(topic)


async def test_a_topic_has_copies_on_all_brokers(brokers: RunningService, opened: OpenKafka) -> None:
    """FM2: whatever the brokers' default is; asking for the topic again, or changing it, leaves them as they are."""
    log = await opened(brokers)
    name, config = f"copies-{time.monotonic_ns()}", TopicConfig(retention_ms=5000)
    made = await ensure_topic(log.admin, name, partitions=2, config=config)
    assert made.config.extra == {"min.insync.replicas": "2"}
    assert {len(part.replicas) for part in (await log._cluster.layout(name)).partitions} == {3}
    assert await ensure_topic(log.admin, name, partitions=2, config=config) == made
    changed = await ensure_topic(log.admin, name, partitions=2, config=TopicConfig(retention_ms=6000))
    assert (changed.config.retention_ms, changed.config.extra) == (6000, made.config.extra)
    own = await log.admin.configure(name, TopicConfig(extra={"min.insync.replicas": "1"}))
    assert own.config.extra == {"min.insync.replicas": "1"}


async def test_one_copy_on_several_brokers_is_warned_of(
    brokers: RunningService, opened: OpenKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """FM2: once by each process that uses the topic."""
    alone = await new_topic(await opened(brokers, replication_factor=1))
    log = await opened(brokers)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="headrace"):
        await log.append(numbered(alone, 1))
        await log.admin.describe(alone)
        await new_topic(log)
    assert caplog.text.count("keeps one copy of its records") == 1
