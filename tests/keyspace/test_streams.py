"""Input streams: a function for each record of a topic, in the order of its partition, and every record handled."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.keyspace import InputStream, KeyspaceClient
from headrace.log import Log, open_log
from headrace.model import NewRecord, Record, TopicPartition
from headrace.testing.conformance.log_setting import eventually, new_topic


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    """Either tier."""
    is_kafka = request.param == "kafka"
    address = f"kafka://{request.getfixturevalue('kafka').address}" if is_kafka else f"embedded:{tmp_path}"
    opened = await open_log(address)
    yield opened
    await opened.close()


def _nobody(kind: Any) -> KeyspaceClient:
    raise AssertionError(f"{kind} is not asked here")


@contextlib.asynccontextmanager
async def _running(stream: InputStream, log: Log) -> AsyncIterator[None]:
    """Run a stream while the block runs, then end it as a node that stops would."""
    running = asyncio.create_task(stream.run(log, None, _nobody))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _append(log: Log, topic: str, partition: int, *values: bytes) -> None:
    await log.append([NewRecord(topic, b"k", value, partition=partition) for value in values])


async def test_a_record_that_takes_long_holds_up_its_own_partition_only(log: Log) -> None:
    """G12: records of other partitions that come meanwhile are handled and committed; after a restart it goes on."""
    topic = await new_topic(log, partitions=2)
    handled: list[bytes | None] = []
    is_stuck, may_go = asyncio.Event(), asyncio.Event()

    async def take(record: Record, context: object) -> None:
        if record.value == b"slow":
            is_stuck.set()
            await may_go.wait()
        handled.append(record.value)

    group = f"g-{uuid.uuid4().hex[:8]}"
    await _append(log, topic, 0, b"slow", b"behind")
    async with _running(InputStream(topic, take, group=group), log):
        await asyncio.wait_for(is_stuck.wait(), 60)
        for value in (b"one", b"two", b"three"):
            await _append(log, topic, 1, value)
            await eventually(partial(_has, handled, value), every_s=0.01, what="the other partition")
    places = [TopicPartition(topic, n) for n in range(2)]
    assert await log.groups.committed(group, places) == {places[1]: 3}
    may_go.set()
    async with _running(InputStream(topic, take, group=group), log):
        await eventually(partial(_has, handled, b"behind"), every_s=0.01, what="the end of the slow partition")
    assert handled == [b"one", b"two", b"three", b"slow", b"behind"]


async def _has(handled: list[bytes | None], value: bytes) -> bool:
    return value in handled


@pytest.mark.parametrize("log", ["embedded"], indirect=True)
async def test_a_record_that_fails_stops_its_own_partition_only(log: Log) -> None:
    """G12: it is tried again until it is handled, in order; other partitions go on meanwhile."""
    topic = await new_topic(log, partitions=2)
    handled: list[bytes | None] = []
    attempts = 0

    async def take(record: Record, context: object) -> None:
        nonlocal attempts
        if record.value == b"bad":
            attempts += 1
            if b"other" not in handled:
                raise ValueError("not yet")
        handled.append(record.value)

    await _append(log, topic, 0, b"bad", b"behind")
    async with _running(InputStream(topic, take), log):

        async def has_failed() -> bool:
            return attempts > 0

        await eventually(has_failed, every_s=0.01, what="the first attempt")
        await _append(log, topic, 1, b"other")
        await eventually(partial(_has, handled, b"behind"), every_s=0.01, what="the record behind")
    assert attempts > 1
    assert handled == [b"other", b"bad", b"behind"]


async def test_records_that_were_removed_before_they_were_read_do_not_stop_a_stream(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """No node ran for longer than the topic keeps records: that is told, and each partition goes on where it begins.

    The last offset of a transaction is no record: a stream that has read all comes back to a removed offset, too.
    """
    topic = await new_topic(log, partitions=2)
    handled: list[bytes | None] = []

    async def take(record: Record, context: object) -> None:
        handled.append(record.value)

    group = f"g-{uuid.uuid4().hex[:8]}"
    producer = await log.transactional(f"id-{group}")
    for partition in range(2):
        await producer.begin()
        await producer.append([NewRecord(topic, b"k", b"read", partition=partition)])
        await producer.commit()
    async with _running(InputStream(topic, take, group=group), log):
        await eventually(partial(_has_committed, log, group, topic, {0: 1, 1: 1}), every_s=0.01, what="the commits")
    await _append(log, topic, 1, b"removed")
    for partition in range(2):
        at = TopicPartition(topic, partition)
        await log.retention.truncate(at, before=(await log.bounds(at)).end)
    async with _running(InputStream(topic, take, group=group), log):
        for partition, value in ((0, b"one"), (1, b"two")):
            await _append(log, topic, partition, value)
            await eventually(partial(_has, handled, value), every_s=0.01, what="the next record", within_s=30)
    assert handled == [b"read", b"read", b"one", b"two"]
    assert "records were removed before they were read" in caplog.text


async def _has_committed(log: Log, group: str, topic: str, offsets: dict[int, int]) -> bool:
    wanted = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    return await log.groups.committed(group, wanted) == wanted
