"""What a read costs: counted, not assumed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.suites.journal_faults import StoreOnTop, StuckLog, WatchedLog, WatchedReader
from tests.suites.journal_holds import poison
from tests.suites.journal_setting import JournalSetting, numbers, read, replicate

from headrace.errors import HeadraceError, JournalHeld, OffsetOutOfRange, RecordsLost, TimedOut, Unavailable
from headrace.journal import HeadCache, Journal, read_many
from headrace.log import Log
from headrace.log.metrics import FETCHES
from headrace.model import MAX_SEQ_NR, Batch, Event, TopicPartition
from headrace.store import Store
from headrace.testing.conformance.log_on_top import LogOnTop, ReadCall

__all__ = ["Economy"]


def fetches(topic: str) -> float:
    """Return how many batches were taken from a topic so far."""
    samples = [sample for metric in FETCHES.collect() for sample in metric.samples]
    return sum(s.value for s in samples if s.name.endswith("_total") and s.labels["topic"] == topic)


class Economy(JournalSetting):
    """The tests of what a read does not do."""

    async def test_a_new_id_is_not_searched_for_twice(self, log: Log, store: Store, topic: str) -> None:
        """J18: a new id in a topic with 1000 foreign events: [] twice, the second time without scanning it."""
        watched = WatchedLog(log)
        cache = HeadCache(watched, store.reader)
        journal = Journal(watched, store, topic, cache=cache)
        await asyncio.gather(*(journal.append(f"other{n}", [Event(1)]) for n in range(1000)))
        assert await numbers(journal, "k") == []
        delivered = watched.delivered
        assert await numbers(journal, "k") == []
        assert watched.delivered - delivered <= 5
        await cache.close()

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    async def test_a_mark_at_the_beginning_needs_no_log(
        self, log: Log, store: Store, topic: str, is_cached: bool
    ) -> None:
        """J21: the mark lands at offset 0: the read answers from the store and reads no log."""
        cache = HeadCache(log, store.reader) if is_cached else None
        journal = Journal(log, store, topic, cache=cache)
        before = fetches(topic)
        assert await numbers(journal, "k") == []
        assert fetches(topic) == before
        if cache is not None:
            await cache.close()

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    async def test_what_is_replicated_needs_no_log(self, log: Log, store: Store, topic: str, is_cached: bool) -> None:
        """J22: a mark at or below the stored pointer, or right behind it: the log is not consumed at all."""
        cache = HeadCache(log, store.reader) if is_cached else None
        journal = Journal(log, store, topic, cache=cache)
        await journal.append("k", [Event(1), Event(2)])
        await replicate(log, store, topic)
        before = fetches(topic)
        assert await Journal(log, store, topic, cache=cache, read_only=True).pointer("other") is None
        assert await numbers(journal, "k") == [1, 2]
        assert fetches(topic) == before
        if cache is not None:
            await cache.close()

    async def test_the_store_is_asked_while_the_mark_is_written(self, log: Log, store: Store, topic: str) -> None:
        """J23: the two run in parallel: the mark waits here until the store was asked."""
        watched, reader = WatchedLog(log), WatchedReader(store.reader)
        journal = Journal(watched, StoreOnTop(store, reader), topic, cache=None)
        await journal.append("k", [Event(1)])

        async def until_asked() -> None:
            async with asyncio.timeout(10):
                await reader.asked.wait()

        watched.before_append = until_asked
        assert await numbers(journal, "k") == [1]

    async def test_a_cold_read_scans_the_window_once(self, log: Log, store: Store, topic: str) -> None:
        """J24: what was buffered while looking for deletes is used to answer."""
        watched = WatchedLog(log)
        journal = Journal(watched, store, topic, cache=None)
        for n in range(1, 11):
            await journal.append("k", [Event(n, n)])
            await journal.append("other", [Event(n)])
        await journal.delete("k", to=2)
        watched.readings.clear()
        watched.delivered = 0
        assert await numbers(journal, "k") == list(range(3, 11))
        assert len(watched.readings) == 1
        assert watched.delivered <= 25

    @pytest.mark.parametrize("keep_bytes", [1 << 20, 1], ids=["all fit", "one fits"])
    async def test_many_journals_are_read_in_one_pass(
        self, log: Log, store: Store, topic: str, monkeypatch: pytest.MonkeyPatch, keep_bytes: int
    ) -> None:
        """J24: what is not replicated is read once for all of them; if memory is short, one less often than one by one.

        Deleted, purged, held and replicated ones among them are as single reads show them.
        """
        monkeypatch.setattr(read_many, "_KEEP_BYTES", keep_bytes)
        watched = WatchedLog(log)
        journal = Journal(watched, store, topic, cache=None, read_only=True)
        writer = Journal(log, store, topic, cache=None)
        ids = [f"k{n}" for n in range(5)]
        for seq_nr in range(1, 4):
            for id_ in ids:
                await writer.append(id_, [Event(seq_nr, id_)])
            if seq_nr == 1:
                await replicate(log, store, topic)
        await writer.delete("k1", to=2)
        await writer.purge("k2")
        await poison(log, topic, "k3")
        single: dict[str, Any] = {}
        for id_ in (*ids, "nobody"):
            try:
                single[id_] = await read(journal, id_)
            except JournalHeld as error:
                single[id_] = str(error)
        watched.readings.clear()
        many: dict[str, Any] = {}
        async for id_, events in journal.read_many([*ids, "nobody", "k0"]):
            try:
                many[id_] = [event async for event in events]
            except JournalHeld as error:
                many[id_] = str(error)
        assert many == single
        assert [event.seq_nr for event in many["k1"]] == [3]
        assert isinstance(many["k3"], str)
        assert len(watched.readings) == (1 if keep_bytes > 1 else 5)

    async def test_many_journals_of_a_topic_that_nobody_wrote_are_empty(self, log: Log, store: Store) -> None:
        """J1: as for a single one."""
        journal = Journal(log, store, "j-nobody", cache=None, read_only=True)
        assert [(id_, [event async for event in events]) async for id_, events in journal.read_many(["k"])] == [
            ("k", [])
        ]

    @pytest.mark.parametrize(("kept_bytes", "readings"), [(1 << 20, []), (0, [(200, 202)])], ids=["records", "headers"])
    async def test_a_warm_read_takes_its_own_records_only(
        self, log: Log, store: Store, topic: str, kept_bytes: int, readings: list[tuple[int, int]]
    ) -> None:
        """J24: of a head whose records are kept nothing is read; else the log, from the first event to the last."""
        watched = WatchedLog(log)
        cache = HeadCache(watched, store.reader, max_record_bytes=kept_bytes)
        journal = Journal(watched, store, topic, cache=cache)
        await asyncio.gather(*(journal.append(f"other{n}", [Event(1)]) for n in range(200)))
        await journal.append("k", [Event(1)])
        await journal.append("k", [Event(2)])
        await numbers(journal, "k")
        watched.readings.clear()
        assert await numbers(journal, "k") == [1, 2]
        assert [(r.start, r.end) for r in watched.readings] == readings
        await cache.close()

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    async def test_a_read_that_cannot_get_to_its_mark_fails_in_time(
        self, log: Log, store: Store, topic: str, is_cached: bool
    ) -> None:
        """J25: the broker is gone: a typed error comes at the deadline, and no call waits forever."""
        stuck = StuckLog(log)
        cache = HeadCache(stuck, store.reader) if is_cached else None
        journal = Journal(stuck, store, topic, cache=cache, timeout_s=0.6)
        await journal.append("k", [Event(1)])
        started_s = time.monotonic()
        with pytest.raises(TimedOut):
            await read(journal, "k")
        assert time.monotonic() - started_s < 5
        if cache is not None:
            await cache.close()

    @pytest.mark.parametrize("is_cached", [False, True], ids=["no cache", "cache"])
    async def test_a_read_of_a_truncated_log_names_what_is_gone(
        self, log: Log, store: Store, topic: str, is_cached: bool
    ) -> None:
        """J25: records left the log that the store never got: the error names the range."""
        cache = HeadCache(log, store.reader) if is_cached else None
        journal = Journal(log, store, topic, cache=cache)
        for n in range(1, 6):
            await journal.append("k", [Event(n)])
        await log.retention.truncate(TopicPartition(topic, 0), before=3)
        for _ in range(2):
            with pytest.raises(RecordsLost) as lost:
                await read(journal, "k")
            assert (lost.value.first, lost.value.last) == (0, 2)
        with pytest.raises(RecordsLost):
            await replicate(log, store, topic)
        if cache is not None:
            await cache.close()

    async def test_a_head_known_to_the_cache_survives_no_truncation(self, log: Log, store: Store, topic: str) -> None:
        """J25: the cache knows the actions, but their events are gone: an error, not a hole."""
        cache = HeadCache(log, store.reader, max_record_bytes=0)
        journal = Journal(log, store, topic, cache=cache)
        for n in range(1, 6):
            await journal.append("k", [Event(n)])
        assert await journal.pointer("k") == 5
        await log.retention.truncate(TopicPartition(topic, 0), before=3)
        with pytest.raises(HeadraceError):
            await read(journal, "k")
        await cache.close()

    async def test_a_head_whose_records_are_kept_outlives_their_truncation(
        self, log: Log, store: Store, topic: str, journal: Journal
    ) -> None:
        """J25: what the cache kept of the events is whole, and the log is not needed for them."""
        for n in range(1, 6):
            await journal.append("k", [Event(n)])
        assert await journal.pointer("k") == 5
        await log.retention.truncate(TopicPartition(topic, 0), before=3)
        assert await numbers(journal, "k") == [1, 2, 3, 4, 5]

    async def test_replication_and_retention_that_overtake_a_read_do_no_harm(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """J25: what left the log meanwhile is in the store: the read goes there instead of crying loss."""
        overtaken = OvertakenLog(log, store, topic)
        journal = Journal(overtaken, store, topic, cache=None)
        for n in range(1, 6):
            await journal.append("k", [Event(n)])
        overtaken.is_armed = True
        assert await numbers(journal, "k") == [1, 2, 3, 4, 5]

    async def test_a_read_from_the_end_of_all_numbers_asks_for_none_beyond(
        self, log: Log, store: Store, topic: str, journal: Journal
    ) -> None:
        """J4: read(from=max), and beyond, of a replicated journal: [], and no number that a store can't hold."""
        await journal.append("k", [Event(1), Event(2)])
        await replicate(log, store, topic)
        for first in (MAX_SEQ_NR - 1, MAX_SEQ_NR, MAX_SEQ_NR + 1, 1 << 70):
            assert await numbers(journal, "k", first) == []

    async def test_a_store_that_is_ahead_of_its_log_is_not_believed(
        self, log: Log, store: Store, topic: str, journal: Journal
    ) -> None:
        """J25: the log lost its end: what is appended now would never be seen, so reads fail and say why."""
        at = TopicPartition(topic, 0)
        await journal.append("k", [Event(1)])
        await replicate(log, store, topic)
        done = await store.reader.replicated(at)
        assert done is not None
        await store.writer.move_replicated(msgspec.structs.replace(done, offset=1000))
        await journal.append("k", [Event(2)])
        with pytest.raises(OffsetOutOfRange) as ahead:
            await read(journal, "k")
        assert (ahead.value.offset, ahead.value.end < 10) == (1000, True)

    async def test_nothing_is_known_of_an_outcome_that_could_not_be_looked_up(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """J28: the record is in the log, but reading it back fails: the error must not say that nothing was done."""
        stuck = StuckLog(log)
        journal = Journal(stuck, store, topic, cache=None)
        with pytest.raises(Unavailable) as failed:
            await journal.append("k", [Event(1)], expected=0, append_id="a")
        assert not failed.value.outcome_known
        stuck.is_stuck = False
        await journal.append("k", [Event(1)], expected=0, append_id="a")
        assert await numbers(journal, "k") == [1]


class OvertakenLog(LogOnTop):
    """Before a read reaches the log, replication carries all of it into the store and retention empties it."""

    def __init__(self, log: Log, store: Store, topic: str) -> None:
        super().__init__(log)
        self.is_armed = False
        self._store = store
        self._topic = topic

    async def batches(self, reading: ReadCall) -> AsyncIterator[Batch]:
        if self.is_armed:
            self.is_armed = False
            bounds = await self.log.bounds(reading.at)
            await replicate(self.log, self._store, self._topic)
            await self.log.retention.truncate(reading.at, before=bounds.end)
        async for batch in super().batches(reading):
            yield batch
