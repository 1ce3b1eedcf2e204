"""Topics: create, describe, change and delete; refusals say what to do instead."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from headrace.errors import (
    BadArgument,
    ImpossibleTopicChange,
    OffsetOutOfRange,
    TopicExists,
    UnknownTopic,
    WrongPartitionCount,
)
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, TopicConfig, TopicPartition
from headrace.testing.conformance.log_setting import LogSetting, OpenAnother, new_topic, numbered, read_all

__all__ = ["Topics"]


class Topics(LogSetting):
    """The tests of `Log.admin`."""

    async def test_a_topic_is_what_was_asked_for(self, log: Log, another: OpenAnother) -> None:
        """Created with its partitions and configuration, for every client to see."""
        config = TopicConfig(
            cleanup=Cleanup.COMPACT_DELETE,
            retention_ms=123_000,
            tombstone_retention_ms=45_000,
            min_compaction_lag_ms=6_000,
            max_record_bytes=99_000,
            timestamp_ahead_ms=60_000,
        )
        name = await new_topic(log, partitions=3, config=config)
        described = await (await another()).admin.describe(name)
        assert (described.name, described.partitions, described.config) == (name, 3, config)
        assert name in await log.admin.topics()

    async def test_records_can_be_kept_forever(self, log: Log) -> None:
        """No retention is a setting of its own, not a large number."""
        name = await new_topic(log, config=TopicConfig(retention_ms=None))
        assert (await log.admin.describe(name)).config.retention_ms is None

    async def test_a_topic_is_made_once(self, log: Log, topic: str) -> None:
        """A second creation is refused and changes nothing."""
        with pytest.raises(TopicExists, match=topic):
            await log.admin.create(topic, partitions=5, config=TopicConfig())
        assert (await log.admin.describe(topic)).partitions == 1

    async def test_bad_topics_are_refused(self, log: Log) -> None:
        """Names that Kafka would not take, and topics without partitions."""
        for name in ("", ".", "..", "white space", "slash/ed", "x" * 250, "ümlaut"):
            with pytest.raises(BadArgument, match="topic"):
                await log.admin.create(name, partitions=1, config=TopicConfig())
        for partitions in (0, -1):
            with pytest.raises(BadArgument, match="partitions"):
                await log.admin.create(f"t-{uuid.uuid4().hex}", partitions=partitions, config=TopicConfig())

    async def test_a_deleted_topic_is_gone_and_its_successor_is_another(self, log: Log, topic: str) -> None:
        """Its records are gone with it, and the topic id tells the two apart."""
        await log.append(numbered(topic, 3))
        before = (await log.admin.describe(topic)).topic_id
        await log.admin.delete(topic)
        assert topic not in await log.admin.topics()
        with pytest.raises(UnknownTopic):
            await log.admin.describe(topic)
        with pytest.raises(UnknownTopic):
            await log.append(numbered(topic, 1))
        after = await log.admin.create(topic, partitions=1, config=TopicConfig())
        assert after.topic_id != before
        assert await read_all(log, topic) == []

    async def test_what_is_not_there_can_not_be_changed(self, log: Log) -> None:
        """Every operation names the unknown topic."""
        for call in (
            log.admin.describe("t-nowhere"),
            log.admin.delete("t-nowhere"),
            log.admin.configure("t-nowhere", TopicConfig()),
            log.admin.add_partitions("t-nowhere", total=3),
        ):
            with pytest.raises(UnknownTopic, match="t-nowhere"):
                await call

    async def test_the_configuration_can_be_changed(self, log: Log, topic: str) -> None:
        """The whole configuration is replaced, and limits are in force at once."""
        config = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None, max_record_bytes=10_000)
        assert (await log.admin.configure(topic, config)).config == config
        assert (await log.admin.describe(topic)).config == config

    async def test_ensuring_a_topic_creates_it_or_brings_it_into_line(self, log: Log, another: OpenAnother) -> None:
        """Several clients at once: one topic, as asked for; later calls change the configuration."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        clients = [log, await another(), await another()]
        made = await asyncio.gather(
            *(ensure_topic(client.admin, name, partitions=2, config=TopicConfig()) for client in clients)
        )
        assert {topic.topic_id for topic in made} == {(await log.admin.describe(name)).topic_id}
        changed = TopicConfig(retention_ms=60_000)
        assert (await ensure_topic(log.admin, name, partitions=2, config=changed)).config == changed

    async def test_ensuring_never_changes_the_number_of_partitions(self, log: Log) -> None:
        """More or fewer: an error with both numbers and what to do."""
        name = await new_topic(log, partitions=4)
        with pytest.raises(WrongPartitionCount, match=f"headrace topic grow {name} --partitions 8"):
            await ensure_topic(log.admin, name, partitions=8, config=TopicConfig())
        with pytest.raises(WrongPartitionCount, match="can't be removed"):
            await ensure_topic(log.admin, name, partitions=2, config=TopicConfig())

    async def test_partitions_can_be_added_but_not_taken_away(self, log: Log) -> None:
        """New partitions start empty and take records at once; old ones keep theirs."""
        name = await new_topic(log, partitions=2)
        await log.append(numbered(name, 4, partition=1))
        assert (await log.admin.add_partitions(name, total=4)).partitions == 4
        await log.append([NewRecord(name, b"k", b"v", partition=3)])
        assert len(await read_all(log, name, 1)) == 4
        assert len(await read_all(log, name, 3)) == 1
        for total in (4, 3):
            with pytest.raises(ImpossibleTopicChange, match=name):
                await log.admin.add_partitions(name, total=total)

    async def test_truncating_moves_the_start_and_nothing_else(self, log: Log, topic: str) -> None:
        """The start never goes back, nor past the end."""
        at = TopicPartition(topic, 0)
        await log.append(numbered(topic, 10))
        assert await log.retention.truncate(at, before=6) == 6
        assert await log.retention.truncate(at, before=2) == 6
        assert [record.offset for record in await read_all(log, topic)] == [6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRange, match=r"offset 11 .*\[6, 10\)"):
            await log.retention.truncate(at, before=11)
        assert await log.retention.truncate(at, before=10) == 10
        assert (await log.append(numbered(topic, 1)))[0].offset == 10
