"""Records of journals stay in the log until the store has them, however the topic was made."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.suites.journal_script import Script
from tests.suites.journal_setting import JournalSetting, new_topic, numbers, replicate

from headrace.errors import JournalTopicExpires, RecordsExpireSoon, ReplayTooOld, SeveralStores, TopicShared
from headrace.journal import Journal, Layout, TopicTerms, Topology, replicate_batch, retention_probe, time_left
from headrace.journal.retention import (
    CLAIMS_TOPIC,
    JOURNAL_TOPIC,
    change_terms,
    check_replay,
    claim_topic,
    drop_other_claims,
    journal_config,
    read_terms,
    remove_replicated,
    why_records_expire,
)
from headrace.log import Log
from headrace.model import Cleanup, Event, NewRecord, TopicConfig, TopicPartition
from headrace.store import JournalMeta, Store, open_store

__all__ = ["KeptRecords"]

DAY_MS = 24 * 60 * 60 * 1000
EXPIRING = {
    "by time": TopicConfig(),
    "by compaction": TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None),
    "by size": TopicConfig(retention_ms=None, extra={"retention.bytes": "1000000"}),
}


async def append_aged(log: Log, topic: str, id_: str, seq_nr: int, *, days: float) -> None:
    """Write an append that is some days old."""
    script = Script(topic)
    record = script.append(id_, seq_nr)
    timestamp_ms = time.time_ns() // 1_000_000 - int(days * DAY_MS)
    await log.append([NewRecord(topic, record.key, record.value, record.headers, 0, timestamp_ms)])


async def layout_of(log: Log, store: Store, topic: str) -> Layout:
    return await Topology(log, store.settings, topic).layout()


async def remove(log: Log, store: Store, topic: str, *, days: float = 7) -> int:
    """Remove what is older than some days, as replication would."""
    layout, now_ms = await layout_of(log, store, topic), time.time_ns() // 1_000_000
    return await remove_replicated(log, store, layout, retention_ms=int(days * DAY_MS), now_ms=now_ms)


class KeptRecords(JournalSetting):
    """E18, by tier."""

    @pytest.mark.parametrize("config", EXPIRING.values(), ids=list(EXPIRING))
    async def test_a_topic_that_would_lose_records_is_refused(
        self, log: Log, store: Store, config: TopicConfig
    ) -> None:
        """FN1: a topic that was made first, with a retention, drops what was never replicated: no journal takes it."""
        topic = await new_topic(log, config=config)
        journal = Journal(log, store, topic, cache=None, partitions=1)
        with pytest.raises(JournalTopicExpires, match=f"headrace topic configure {topic} --journal"):
            await journal.append("k", [Event(1)])
        await log.admin.configure(topic, journal_config(config))
        await journal.append("k", [Event(1)])
        assert await numbers(journal, "k") == [1]

    async def test_a_topic_made_by_a_journal_keeps_its_records(self, log: Log, store: Store) -> None:
        """FN1: the log itself removes nothing of it, by time or by size."""
        topic = f"{await new_topic(log)}-made"
        await Journal(log, store, topic, cache=None, partitions=2).append("k", [Event(1)])
        found = await log.admin.describe(topic)
        assert (found.partitions, found.config.retention_ms, why_records_expire(found.config)) == (2, None, None)

    async def test_only_what_is_replicated_and_old_is_removed(self, log: Log, store: Store, topic: str) -> None:
        """E18: FN1, of ten records eight are old and five replicated: five go; the journal is whole all the same."""
        at = TopicPartition(topic, 0)
        for n in range(1, 11):
            await append_aged(log, topic, "k", n, days=8 if n <= 8 else 1)
        assert await remove(log, store, topic) == 0
        await replicate(log, store, topic, up_to=4)
        assert await remove(log, store, topic) == 5
        assert (await log.bounds(at)).start == 5
        assert await remove(log, store, topic) == 0
        journal = Journal(log, store, topic, cache=None)
        assert await numbers(journal, "k") == list(range(1, 11))
        await replicate(log, store, topic)
        assert await remove(log, store, topic) == 3
        assert await numbers(journal, "k") == list(range(1, 11))
        await journal.append("k", [Event(11)], expected=10)

    async def test_an_offset_of_an_earlier_topic_of_that_name_removes_nothing(self, log: Log, store: Store) -> None:
        """FN1: the topic was deleted and made again: what the store has of the old one is not in the new one."""
        topic = await new_topic(log)
        for n in range(1, 6):
            await append_aged(log, topic, "k", n, days=9)
        await replicate(log, store, topic)
        await log.admin.delete(topic)
        await log.admin.create(topic, partitions=1, config=JOURNAL_TOPIC)
        for n in range(6, 9):
            await append_aged(log, topic, "k", n, days=8)
        assert await remove(log, store, topic) == 0
        await replicate_again(log, store, topic)
        assert await remove(log, store, topic) == 3

    async def test_a_store_removes_nothing_that_another_one_may_lack(
        self, log: Log, store: Store, topic: str, tmp_path: Path
    ) -> None:
        """Two stores replicate a topic and one stands still: the other removes nothing until an operator allows it."""
        for n in range(1, 4):
            await append_aged(log, topic, "k", n, days=8)
        slow = await open_store(f"embedded:{tmp_path}/slow")
        try:
            for each in (store, slow):
                await claim_topic(log, each.settings, await layout_of(log, each, topic))
            await replicate(log, store, topic)
            with pytest.raises(SeveralStores, match="--only-store"):
                await remove(log, store, topic)
            await replicate(log, slow, topic)
            assert await numbers(Journal(log, slow, topic, cache=None, read_only=True), "k") == [1, 2, 3]
            assert CLAIMS_TOPIC not in await log.admin.topics()
            assert await drop_other_claims(log, store.settings, await layout_of(log, store, topic)) == 1
            assert await remove(log, store, topic) == 3
            await claim_topic(log, slow.settings, await layout_of(log, slow, topic))  # it was not gone after all
            await append_aged(log, topic, "k", 4, days=8)
            await replicate(log, store, topic)
            with pytest.raises(SeveralStores):
                await remove(log, store, topic)
        finally:
            await slow.close()

    async def test_a_claim_on_an_earlier_topic_of_that_name_holds_nothing_back(
        self, log: Log, store: Store, tmp_path: Path
    ) -> None:
        """A store that replicated a topic which was deleted since has no part in the one made after it."""
        topic = await new_topic(log)
        other = await open_store(f"embedded:{tmp_path}/other")
        try:
            await claim_topic(log, other.settings, await layout_of(log, other, topic))
        finally:
            await other.close()
        await log.admin.delete(topic)
        await log.admin.create(topic, partitions=1, config=JOURNAL_TOPIC)
        await append_aged(log, topic, "k", 1, days=8)
        await claim_topic(log, store.settings, await layout_of(log, store, topic))
        await replicate(log, store, topic)
        assert await remove(log, store, topic) == 1

    async def test_a_growing_topic_is_left_alone(self, log: Log, store: Store, topic: str) -> None:
        """FN1: the process that finishes the growth looks for boundaries from before it began."""
        await append_aged(log, topic, "k", 1, days=9)
        await replicate(log, store, topic)
        growing = (await layout_of(log, store, topic)).growing(2, {0: 0})
        assert await remove_replicated(log, store, growing, retention_ms=1, now_ms=time.time_ns()) == 0

    async def test_a_shared_topic_keeps_its_retention_and_its_time_is_counted(self, log: Log, store: Store) -> None:
        """FN1: other services own it: it is used as it is, and a probe fails before records are lost."""
        topic = await new_topic(log, config=TopicConfig(retention_ms=7 * DAY_MS))
        await change_terms(store.settings, topic, lambda _: TopicTerms(is_shared=True))
        assert (await read_terms(store.settings, topic)).is_shared
        journal = Journal(log, store, topic, cache=None, partitions=1)
        await append_aged(log, topic, "k", 1, days=6)
        assert await numbers(journal, "k") == [1]
        now_ms = time.time_ns() // 1_000_000
        (left,) = await time_left(log, store, await log.admin.describe(topic), now_ms=now_ms)
        assert left.left_s == pytest.approx(DAY_MS / 1000, abs=60)
        clock = {"now_ms": lambda: now_ms}
        await retention_probe(log, store, topic, least_s=3600, **clock)()
        with pytest.raises(RecordsExpireSoon, match="headrace pipeline replicate"):
            await retention_probe(log, store, topic, least_s=2 * DAY_MS / 1000, **clock)()
        await replicate(log, store, topic)
        assert await time_left(log, store, await log.admin.describe(topic), now_ms=now_ms) == []

    async def test_a_compacted_topic_is_refused_also_if_it_is_shared(self, log: Log, store: Store) -> None:
        """E18: it drops all events of a journal but the last, at any time, and no probe could say when."""
        topic = await new_topic(log, config=TopicConfig(cleanup=Cleanup.COMPACT))
        await change_terms(store.settings, topic, lambda _: TopicTerms(is_shared=True))
        journal = Journal(log, store, topic, cache=None, partitions=1)
        with pytest.raises(JournalTopicExpires, match="drops all but the last record of a key"):
            await journal.append("k", [Event(1)])
        assert (await log.bounds(TopicPartition(topic, 0))).end == 0

    async def test_what_waits_is_counted_in_a_topic_that_was_made_again(self, log: Log, store: Store) -> None:
        """FN1: the store is at offset 4 of a topic that is gone: all of the new one waits, and its time is counted."""
        topic = await new_topic(log, config=TopicConfig(retention_ms=7 * DAY_MS))
        await change_terms(store.settings, topic, lambda _: TopicTerms(is_shared=True))
        for n in range(1, 6):
            await append_aged(log, topic, "k", n, days=6)
        await replicate(log, store, topic)
        await log.admin.delete(topic)
        described = await log.admin.create(topic, partitions=1, config=TopicConfig(retention_ms=7 * DAY_MS))
        for n in range(6, 9):
            await append_aged(log, topic, "k", n, days=6)
        now_ms = time.time_ns() // 1_000_000
        for _ in range(2):  # before anybody has looked at the new topic, and after
            (left,) = await time_left(log, store, described, now_ms=now_ms)
            assert left.left_s == pytest.approx(DAY_MS / 1000, abs=60)
            (stats,) = await Journal(log, store, topic, cache=None).stats()
            assert (stats.end, stats.replicated, stats.lag) == (3, None, 3)

    async def test_a_shared_topic_refuses_checked_appends(self, log: Log, store: Store, topic: str) -> None:
        """J26: services that don't know `expected` would show an append that was refused, so nothing is written."""
        await change_terms(store.settings, topic, lambda _: TopicTerms(is_shared=True))
        journal = Journal(log, store, topic, cache=None)
        await journal.append("k", [Event(1)])
        end = (await log.bounds(TopicPartition(topic, 0))).end
        prepared = await journal.prepare("k")
        for refused in (
            journal.append("k", [Event(2)], expected=1),
            journal.append("k", [Event(2)], expected=0),
            journal.append("k", [Event(2)], expected=1, append_id="a"),
            journal.append("k", [Event(2)], expected=1, attempt=prepared),
            journal.append_next("k", ["x"]),
        ):
            with pytest.raises(TopicShared, match="shared with services"):
                await refused
        assert (await log.bounds(TopicPartition(topic, 0))).end == end
        await journal.append("k", [Event(2)], append_id="a")
        assert await numbers(journal, "k") == [1, 2]

    async def test_a_replay_from_before_what_the_store_remembers_is_refused(
        self, log: Log, store: Store, topic: str
    ) -> None:
        """FN1: a store with journals and no offset forgot deletions; a first replication may die and go on."""
        kept = {"marker_ttl_s": 86400.0, "gc_grace_s": 2 * 86400.0}
        await append_aged(log, topic, "k", 1, days=3)
        layout, now_ms = await layout_of(log, store, topic), time.time_ns() // 1_000_000
        await check_replay(log, store, layout, now_ms=now_ms, **kept)
        await replicate(log, store, topic, move_to=-1)  # died before its first offset
        await check_replay(log, store, layout, now_ms=now_ms, **kept)
        with pytest.raises(ReplayTooOld, match="pointer2"):
            await check_replay(log, store, layout, now_ms=now_ms + 2 * DAY_MS, **kept)
        other = await new_topic(log)
        await append_aged(log, other, "k", 1, days=3)
        await store.writer.write_meta(_stray_meta(other))
        with pytest.raises(ReplayTooOld):
            await check_replay(log, store, await layout_of(log, store, other), now_ms=now_ms, **kept)


async def replicate_again(log: Log, store: Store, topic: str) -> None:
    """Replicate a topic that was made again: its offsets begin at 0."""
    layout, at = await layout_of(log, store, topic), TopicPartition(topic, 0)
    end = (await log.bounds(at)).end
    records = [record async for batch in log.read(at, 0, end) for record in batch.records]
    await replicate_batch(store, layout, at, records, up_to=end - 1)


def _stray_meta(topic: str) -> JournalMeta:
    return JournalMeta(topic=topic, id="k", generation=0, partition=0, offset=0, seq_nr=1, segment_size=10)
