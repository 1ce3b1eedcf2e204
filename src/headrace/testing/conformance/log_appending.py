"""Appends: records come back in order, and a refused append writes nothing."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from headrace.errors import (
    BadArgument,
    RecordTooLarge,
    Refused,
    TimestampTooFarAhead,
    UnknownPartition,
    UnknownTopic,
)
from headrace.log import Log
from headrace.model import Cleanup, NewRecord, TopicConfig, TopicPartition, partition_of, size_of
from headrace.testing.conformance.log_setting import LogSetting, new_topic, numbered, read_all, values

__all__ = ["Appending"]


class Appending(LogSetting):
    """The tests of `Log.append`."""

    async def test_what_was_appended_comes_back_the_same(self, log: Log) -> None:
        """Key, value, headers and timestamp survive, and empty differs from absent."""
        topic = await new_topic(log, config=TopicConfig(retention_ms=None))  # or such old records are dropped soon
        headers = (("a", b"1"), ("a", b"2"), ("none", None), ("empty", b""))
        given = [
            NewRecord(topic, b"k", b"v", headers, 0, 1_700_000_000_000),
            NewRecord(topic, b"", b"", partition=0, timestamp_ms=1),
            NewRecord(topic, "ключ".encode(), None, partition=0, timestamp_ms=2),
            NewRecord(topic, None, bytes(range(256)), partition=0, timestamp_ms=3),
        ]
        positions = await log.append(given)
        found = await read_all(log, topic)
        assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in found] == [
            (r.key, r.value, r.headers, r.timestamp_ms) for r in given
        ]
        assert [(p.topic, p.partition, p.offset, p.timestamp_ms) for p in positions] == [
            (r.topic, r.partition, r.offset, r.timestamp_ms) for r in found
        ]

    async def test_records_of_a_partition_keep_the_order_of_their_append(self, log: Log, topic: str) -> None:
        """Offsets rise in the order given, within and between appends."""
        first = await log.append(numbered(topic, 500))
        second = await log.append(numbered(topic, 500, first=500))
        offsets = [position.offset for position in (*first, *second)]
        assert offsets == sorted(set(offsets))
        assert values(await read_all(log, topic)) == [b"%d" % n for n in range(1000)]

    async def test_an_empty_append_does_nothing(self, log: Log, topic: str) -> None:
        """No records, no positions, no offset spent."""
        assert list(await log.append([])) == []
        assert (await log.bounds(TopicPartition(topic, 0))).end == 0

    async def test_appends_at_once_are_each_acknowledged_with_their_own_place(self, log: Log, topic: str) -> None:
        """500 concurrent appends: every position is unique and holds its record."""
        acknowledged = await asyncio.gather(*(log.append([record]) for record in numbered(topic, 500)))
        by_offset = {positions[0].offset: b"%d" % n for n, positions in enumerate(acknowledged)}
        assert len(by_offset) == 500
        assert {record.offset: record.value for record in await read_all(log, topic)} == by_offset

    async def test_the_key_decides_the_partition_as_in_kafka(self, log: Log) -> None:
        """C1: a key goes where Kafka's default partitioner sends it."""
        topic = await new_topic(log, partitions=4)
        keys = [b"test-value-for-partitioner", *(random.randbytes(n % 40 + 1) for n in range(300))]
        positions = await log.append([NewRecord(topic, key) for key in keys])
        assert positions[0].partition == 3
        assert [position.partition for position in positions] == [partition_of(key, 4) for key in keys]

    async def test_a_given_partition_wins_over_the_key(self, log: Log) -> None:
        """The caller may place a record itself."""
        topic = await new_topic(log, partitions=4)
        (position,) = await log.append([NewRecord(topic, b"test-value-for-partitioner", partition=1)])
        assert position.partition == 1

    async def test_records_without_key_and_partition_find_a_place(self, log: Log) -> None:
        """The log chooses a partition of the topic."""
        topic = await new_topic(log, partitions=4)
        positions = await log.append([NewRecord(topic, None, b"v") for _ in range(20)])
        assert len(positions) == 20
        assert all(0 <= position.partition < 4 for position in positions)

    async def test_without_a_timestamp_the_clock_is_used(self, log: Log, topic: str) -> None:
        """The record is stamped with the time of the append."""
        before = int(time.time() * 1000)
        (position,) = await log.append([NewRecord(topic, b"k")])
        assert before - 5 <= position.timestamp_ms <= int(time.time() * 1000) + 5

    async def test_an_unknown_topic_is_refused_and_not_created(self, log: Log) -> None:
        """Appending never makes a topic."""
        with pytest.raises(UnknownTopic, match="t-nowhere"):
            await log.append([NewRecord("t-nowhere", b"k")])
        assert "t-nowhere" not in await log.admin.topics()

    async def test_one_bad_record_keeps_all_of_its_append_out(self, log: Log, topic: str) -> None:
        """Everything is checked before anything is written."""
        good = NewRecord(topic, b"k", b"v")
        for bad, error in (
            (NewRecord("t-nowhere", b"k"), UnknownTopic),
            (NewRecord(topic, b"k", partition=7), UnknownPartition),
            (NewRecord(topic, b"k", partition=-2), UnknownPartition),
            (NewRecord(topic, b"k", bytes(2_000_000)), RecordTooLarge),
        ):
            with pytest.raises(error):
                await log.append([good, bad])
        assert await read_all(log, topic) == []
        await log.append([good])
        assert values(await read_all(log, topic)) == [b"v"]

    async def test_a_record_at_the_limit_fits_and_one_above_is_refused_with_both_sizes(self, log: Log) -> None:
        """The error names the size and the topic's limit."""
        topic = await new_topic(log, config=TopicConfig(max_record_bytes=20_000))
        overhead = size_of(NewRecord(topic, b"k"))
        await log.append([NewRecord(topic, b"k", bytes(20_000 - overhead))])
        with pytest.raises(RecordTooLarge) as refused:
            await log.append([NewRecord(topic, b"k", bytes(20_001 - overhead))])
        assert (refused.value.size_bytes, refused.value.limit_bytes) == (20_001, 20_000)
        assert len(await read_all(log, topic)) == 1

    async def test_small_records_of_a_topic_with_a_low_limit_are_taken_in_bulk(self, log: Log) -> None:
        """A limit on records is no limit on how many are sent at once."""
        topic = await new_topic(log, config=TopicConfig(max_record_bytes=5_000))
        await log.append([NewRecord(topic, b"k", random.randbytes(1000), partition=0) for _ in range(100)])
        assert len(await read_all(log, topic)) == 100

    async def test_a_record_from_the_future_is_refused(self, log: Log) -> None:
        """A timestamp further ahead than the topic allows would push log time ahead for all journals."""
        topic = await new_topic(log, config=TopicConfig(timestamp_ahead_ms=60_000))
        now_ms = int(time.time() * 1000)
        await log.append([NewRecord(topic, b"k", b"near", timestamp_ms=now_ms + 30_000)])
        with pytest.raises(TimestampTooFarAhead, match="60000 ms ahead"):
            await log.append([NewRecord(topic, b"k", b"far", timestamp_ms=now_ms + 120_000)])
        assert values(await read_all(log, topic)) == [b"near"]

    async def test_a_compacted_topic_refuses_records_without_a_key(self, log: Log) -> None:
        """Nothing could ever replace them."""
        topic = await new_topic(log, config=TopicConfig(cleanup=Cleanup.COMPACT))
        with pytest.raises(BadArgument, match="key"):
            await log.append([NewRecord(topic, None, b"v")])
        assert await read_all(log, topic) == []

    async def test_a_refusal_does_not_harm_its_neighbours(self, log: Log, topic: str) -> None:
        """Appends that share a group or a batch with a refused one succeed."""
        outcomes = await asyncio.gather(
            *(log.append([NewRecord(topic, b"k", bytes(2_000_000) if n % 3 == 0 else b"%d" % n)]) for n in range(30)),
            return_exceptions=True,
        )
        assert [isinstance(outcome, Refused) for outcome in outcomes] == [n % 3 == 0 for n in range(30)]
        assert len(await read_all(log, topic)) == 20
