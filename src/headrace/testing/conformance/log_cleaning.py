"""Retention and compaction, which a log applies at its own times: the tests wait, and trigger them where possible."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeAlias

import pytest

from headrace.log import Log
from headrace.model import Cleanup, NewRecord, TopicConfig, TopicPartition
from headrace.testing.conformance.log_setting import LogSetting, eventually, new_topic, read_all

__all__ = ["Cleaning"]

CleanClaim: TypeAlias = Callable[[list[tuple[int, bytes, bytes | None]]], bool]

# Brokers clean closed segments only: these properties make segments close soon. Other logs ignore them.
QUICK_SEGMENTS = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "100"}


class Cleaning(LogSetting):
    """The tests of what happens to old records."""

    @pytest.mark.timeout(180)
    async def test_compaction_keeps_the_newest_record_of_each_key(self, log: Log) -> None:
        """Older values are removed, offsets do not change, readers pass the removed records."""
        topic = await new_topic(log, config=TopicConfig(cleanup=Cleanup.COMPACT, extra=QUICK_SEGMENTS))
        for n in range(3):
            await log.append([NewRecord(topic, key, b"%d" % n) for key in (b"a", b"b", b"c")])
        await self.until(log, topic, lambda found: [offset for offset, _, _ in found] == [6, 7, 8])
        bounds = await log.bounds(TopicPartition(topic, 0))
        assert bounds.start == 0
        kept = {record.key: record.value for record in await read_all(log, topic, start=0)}
        assert {key: kept[key] for key in (b"a", b"b", b"c")} == {b"a": b"2", b"b": b"2", b"c": b"2"}

    @pytest.mark.timeout(180)
    async def test_compaction_drops_tombstones_after_their_time(self, log: Log) -> None:
        """A deleted key leaves nothing behind once its tombstone was there long enough; others stay."""
        config = TopicConfig(cleanup=Cleanup.COMPACT, tombstone_retention_ms=100, extra=QUICK_SEGMENTS)
        topic = await new_topic(log, config=config)
        await log.append([NewRecord(topic, b"gone", b"1"), NewRecord(topic, b"kept", b"1"), NewRecord(topic, b"gone")])
        await self.until(log, topic, lambda found: [key for _, key, _ in found] == [b"kept"])

    @pytest.mark.timeout(180)
    async def test_a_tombstone_stays_for_its_time(self, log: Log) -> None:
        """A reader within that time sees the deletion, with its headers."""
        topic = await new_topic(log, config=TopicConfig(cleanup=Cleanup.COMPACT, extra=QUICK_SEGMENTS))
        headers = (("h", b"kept"),)
        await log.append([NewRecord(topic, b"x", b"1"), NewRecord(topic, b"x", None, headers)])
        await self.until(log, topic, lambda found: found == [(1, b"x", None)])
        assert [r.headers for r in await read_all(log, topic, start=0) if r.key == b"x"] == [headers]

    @pytest.mark.timeout(180)
    async def test_compaction_leaves_young_records_alone(self, log: Log) -> None:
        """A record that is younger than the minimum lag replaces nothing; one topic shows it while another compacts."""
        lagging = TopicConfig(cleanup=Cleanup.COMPACT, min_compaction_lag_ms=3_600_000, extra=QUICK_SEGMENTS)
        waiting = await new_topic(log, config=lagging)
        topic = await new_topic(log, config=TopicConfig(cleanup=Cleanup.COMPACT, extra=QUICK_SEGMENTS))
        for name in (waiting, topic):
            await log.append([NewRecord(name, b"x", b"1"), NewRecord(name, b"x", b"2"), NewRecord(name, b"x", None)])
        await self.until(log, topic, lambda found: found == [(2, b"x", None)])
        assert [record.offset for record in await read_all(log, waiting, start=0)] == [0, 1, 2]

    @pytest.mark.timeout(180)
    async def test_retention_moves_the_start_of_the_log(self, log: Log) -> None:
        """Old records go from the front, young ones stay, offsets go on."""
        topic = await new_topic(log, config=TopicConfig(retention_ms=1000, extra=QUICK_SEGMENTS))
        at = TopicPartition(topic, 0)
        await log.append([NewRecord(topic, b"old", b"%d" % n, timestamp_ms=1000) for n in range(5)])

        async def is_moved() -> bool:
            await log.append([NewRecord(topic, b"young", b"x")])
            await log.retention.enforce()
            return (await log.bounds(at)).start >= 5

        await eventually(is_moved, within_s=120, every_s=0.3, what="retention")
        bounds = await log.bounds(at)
        assert all(record.key == b"young" for record in await read_all(log, topic, start=bounds.start))
        assert (await log.append([NewRecord(topic, b"young")]))[0].offset == bounds.end

    async def test_records_without_retention_stay(self, log: Log) -> None:
        """Without retention the age of a record does not matter."""
        topic = await new_topic(log, config=TopicConfig(retention_ms=None))
        await log.append([NewRecord(topic, b"old", b"v", timestamp_ms=1000)])
        await log.retention.enforce()
        assert len(await read_all(log, topic)) == 1

    async def until(self, log: Log, topic: str, is_clean: CleanClaim) -> None:
        """Wait until the log is clean; new records make brokers close the segment before."""
        fillers = itertools.count()

        async def is_done() -> bool:
            await log.append([NewRecord(topic, b"filler-%d" % next(fillers), b"x")])
            await asyncio.sleep(0.15)
            await log.retention.enforce()
            found = [(r.offset, r.key or b"", r.value) for r in await read_all(log, topic, start=0)]
            return is_clean([entry for entry in found if not entry[1].startswith(b"filler")])

        await eventually(is_done, within_s=120, every_s=0.3, what="compaction")
