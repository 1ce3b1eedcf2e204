"""Reading: from an offset to an end, in batches, in order, to the last committed record and not past it."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time

import pytest

from headrace.errors import BadArgument, OffsetOutOfRange, TimedOut, UnknownPartition, UnknownTopic
from headrace.log import Log
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.testing.conformance.log_setting import LogSetting, OpenAnother, new_topic, numbered, read_all, values

__all__ = ["Reading"]


class Reading(LogSetting):
    """The tests of `Log.read`, `bounds` and `offset_at`."""

    async def test_a_read_takes_start_and_leaves_end(self, log: Log, topic: str) -> None:
        """[start, end) in order, whatever the size of the batches."""
        await log.append(numbered(topic, 100))
        at = TopicPartition(topic, 0)
        for start, end, most in ((0, 100, 1000), (10, 20, 3), (99, 100, 1), (0, 1, 7), (37, 100, 10)):
            batches = [batch async for batch in log.read(at, start, end, max_records=most)]
            records = [record for batch in batches for record in batch.records]
            assert [record.offset for record in records] == list(range(start, end))
            assert all(len(batch.records) <= most for batch in batches)
            assert batches[-1].next_offset == end

    async def test_an_empty_range_yields_nothing(self, log: Log, topic: str) -> None:
        """start == end is a question with an empty answer, at both ends of the log."""
        at = TopicPartition(topic, 0)
        assert [batch async for batch in log.read(at, 0, 0)] == []
        await log.append(numbered(topic, 5))
        for offset in (0, 3, 5):
            assert [batch async for batch in log.read(at, offset, offset)] == []

    async def test_offsets_out_of_range_are_refused_with_the_range(self, log: Log, topic: str) -> None:
        """Beyond the end and below the start: an error that names what the log holds."""
        await log.append(numbered(topic, 10))
        at = TopicPartition(topic, 0)
        await log.retention.truncate(at, before=4)
        for offset in (11, 500, 3, 0):
            with pytest.raises(OffsetOutOfRange) as refused:
                await anext(log.read(at, offset, max(offset, 10)))
            assert (refused.value.offset, refused.value.start, refused.value.end) == (offset, 4, 10)
        assert "from 0 to 3 are gone" in str(refused.value)

    async def test_nonsense_is_refused_before_anything_is_read(self, log: Log, topic: str) -> None:
        """Negative offsets, an end below the start, batches of nothing."""
        at = TopicPartition(topic, 0)
        for wrong in (log.read(at, -1), log.read(at, 5, 4), log.read(at, 0, max_records=0)):
            with pytest.raises(BadArgument):
                await anext(wrong)

    async def test_unknown_places_are_refused(self, log: Log, topic: str) -> None:
        """A topic or a partition that isn't there, in every question."""
        for at, error in ((TopicPartition("t-nowhere", 0), UnknownTopic), (TopicPartition(topic, 9), UnknownPartition)):
            with pytest.raises(error):
                await anext(log.read(at, 0, 1))
            with pytest.raises(error):
                await log.bounds(at)
            with pytest.raises(error):
                await log.offset_at(at, timestamp_ms=0)

    async def test_a_header_only_read_leaves_the_values_out(self, log: Log, topic: str) -> None:
        """Keys, headers and offsets are there; values are not."""
        await log.append([NewRecord(topic, b"k", b"v" * 1000, (("h", b"x"),))])
        batches = [batch async for batch in log.read(TopicPartition(topic, 0), 0, 1, headers_only=True)]
        (record,) = [record for batch in batches for record in batch.records]
        assert (record.key, record.value, record.headers, record.offset) == (b"k", None, (("h", b"x"),), 0)

    async def test_a_reader_follows_the_log(self, log: Log, topic: str, another: OpenAnother) -> None:
        """Without an end a reader waits for what comes, also from other clients, in order."""
        writer = await another()
        await writer.append(numbered(topic, 3))
        reader = log.read(TopicPartition(topic, 0), 1)
        found = [record.value for record in (await anext(reader)).records]
        for n in range(3, 10):
            await writer.append(numbered(topic, 1, first=n))
        while len(found) < 9:
            found += values((await asyncio.wait_for(anext(reader), 20)).records)
        assert found == [b"%d" % n for n in range(1, 10)]
        await reader.aclose()  # type: ignore[attr-defined]

    async def test_a_waiting_reader_is_woken_within_milliseconds(self, log: Log, topic: str) -> None:
        """The median time from append to a waiting reader is far below any polling interval one would notice."""
        reader = log.read(TopicPartition(topic, 0), 0)
        delays = []
        for record in numbered(topic, 21):
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0.01)
            await log.append([record])
            acknowledged = time.perf_counter()
            assert values((await asyncio.wait_for(waiting, 20)).records) == [record.value]
            delays.append(time.perf_counter() - acknowledged)
        await reader.aclose()  # type: ignore[attr-defined]
        assert statistics.median(delays) < 0.05

    async def test_a_bounded_read_waits_for_its_end_and_gives_up_in_time(self, log: Log, topic: str) -> None:
        """An end that is not there yet is waited for; without progress the read times out."""
        await log.append(numbered(topic, 2))
        at = TopicPartition(topic, 0)
        reader = log.read(at, 0, 4, timeout_s=30)
        assert len((await anext(reader)).records) == 2
        waiting = asyncio.ensure_future(anext(reader))
        await log.append(numbered(topic, 2, first=2))
        assert (await asyncio.wait_for(waiting, 20)).records
        with pytest.raises(TimedOut) as gave_up:
            async for _ in log.read(at, 2, 9, timeout_s=0.3):
                pass
        assert gave_up.value.timeout_s == 0.3

    async def test_abandoned_readers_leave_nothing_behind(self, log: Log, topic: str) -> None:
        """50 readers cancelled while waiting: the log still reads, and can be closed."""
        readers = [asyncio.ensure_future(anext(log.read(TopicPartition(topic, 0), 0))) for _ in range(50)]
        await asyncio.sleep(0.05)
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        await log.append(numbered(topic, 1))
        assert values(await read_all(log, topic)) == [b"0"]

    async def test_readers_do_not_disturb_one_another(self, log: Log) -> None:
        """20 reads of 4 partitions at once each get their own partition, whole."""
        topic = await new_topic(log, partitions=4)
        for partition in range(4):
            await log.append(numbered(topic, 200, partition=partition, first=partition * 1000))
        found = await asyncio.gather(*(read_all(log, topic, n % 4) for n in range(20)))
        for n, records in enumerate(found):
            assert values(records) == [b"%d" % m for m in range(n % 4 * 1000, n % 4 * 1000 + 200)]

    async def test_retention_that_overtakes_a_reader_is_an_error(self, log: Log, topic: str) -> None:
        """A reader never skips silently what was removed before it came by."""
        at = TopicPartition(topic, 0)
        await log.append(numbered(topic, 10))
        reader = log.read(at, 0)
        assert (await anext(reader)).next_offset == 10
        await log.append(numbered(topic, 10, first=10))
        await log.retention.truncate(at, before=20)
        late = log.read(at, 10, 20)
        with pytest.raises(OffsetOutOfRange):
            await anext(late)
        await reader.aclose()  # type: ignore[attr-defined]

    async def test_bounds_tell_what_a_partition_holds(self, log: Log, topic: str) -> None:
        """Start and end move with appends and truncation."""
        at = TopicPartition(topic, 0)
        assert tuple(await log.bounds(at)) == (0, 0, 0)
        await log.append(numbered(topic, 7))
        assert tuple(await log.bounds(at)) == (0, 7, 7)
        assert await log.retention.truncate(at, before=5) == 5
        assert tuple(await log.bounds(at)) == (5, 7, 7)

    async def test_an_offset_can_be_found_by_time(self, log: Log) -> None:
        """The first record stamped at or after the time; None past the last."""
        topic = await new_topic(log, config=TopicConfig(retention_ms=None))  # or such old records are dropped soon
        at = TopicPartition(topic, 0)
        await log.append([NewRecord(topic, b"k", timestamp_ms=stamp) for stamp in (1000, 2000, 3000)])
        asked = (0, 1000, 1001, 3000, 3001)
        assert [await log.offset_at(at, timestamp_ms=stamp) for stamp in asked] == [0, 0, 1, 2, None]
