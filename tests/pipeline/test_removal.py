"""What replication removes from the log, and what it never does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.tier import Tier
from tests.suites.journal_retention import DAY_MS, append_aged
from tests.suites.journal_setting import replicate
from tests.suites.tags_trimming import Minutes

from headrace.config import HeadraceSettings
from headrace.errors import RecordsLost, RetentionTooLong
from headrace.journal import JOURNAL_TOPIC, TopicTerms, Topology, grow_topic
from headrace.journal.retention import change_terms
from headrace.log import Log
from headrace.model import TopicConfig, TopicPartition
from headrace.pipeline import Endpoints, Selection
from headrace.pipeline.logs.plan import plan_of
from headrace.pipeline.replication.removal import check_plan, remove_old
from headrace.pipeline.replication.replication import accept_loss
from headrace.pipeline.spark.process import close_all, log_of, run, store_of
from headrace.store import ReplicatedOffset, Store, open_store

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[Endpoints]:
    yield Endpoints.of(f"embedded:{tmp_path}")
    close_all()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_run_of_replication_removes_what_it_carried_and_is_old(tier: Tier, topic: str) -> None:
    """E18: FN1, what is in the store and older than the retention leaves the log; the young stay."""

    async def write(log: Log, store: Store) -> None:
        await log.admin.create(topic, partitions=1, config=JOURNAL_TOPIC)
        for n in range(1, 7):
            await append_aged(log, topic, "k", n, days=8 if n <= 4 else 0)

    tier.on(write)
    tier.replicate(topic)
    assert tier.on(lambda log, _: log.bounds(TopicPartition(topic, 0))).start == 4
    assert tier.numbers(topic, "k") == [1, 2, 3, 4, 5, 6]


def test_each_topic_has_its_own_retention_and_a_shared_one_is_left_alone(endpoints: Endpoints) -> None:
    """FN1: the terms in the store decide; what goes wrong with one topic is told, and the others go on."""

    async def scene() -> tuple[list[str], dict[str, int]]:
        log, store = await log_of(endpoints), await store_of(endpoints)
        for topic, config in (("a", JOURNAL_TOPIC), ("b", JOURNAL_TOPIC), ("shared", TopicConfig())):
            await log.admin.create(topic, partitions=1, config=config)
            await append_aged(log, topic, "k", 1, days=6)
            await replicate(log, store, topic)
        await append_aged(log, "shared", "k", 2, days=6)
        await change_terms(store.settings, "a", lambda _: TopicTerms(retention_ms=2 * DAY_MS))
        await change_terms(store.settings, "shared", lambda _: TopicTerms(is_shared=True))
        notices = await remove_old(endpoints, ["a", "gone", "b", "shared"], now_ms=now_ms())
        return notices, {topic: (await log.bounds(TopicPartition(topic, 0))).start for topic in ("a", "b", "shared")}

    notices, starts = run(scene())
    assert starts == {"a": 1, "b": 0, "shared": 0}
    assert len(notices) == 2
    assert "old records of gone stay in the log: there is no topic 'gone'" in notices[0]
    assert "the log drops records of shared[0] that the store lacks in" in notices[1]


def test_a_shared_topic_that_takes_any_time_is_told(endpoints: Endpoints) -> None:
    """FN1: a record of another service with a time in microseconds lies beyond what the order by tag can hold."""

    async def scene() -> list[str]:
        log, store = await log_of(endpoints), await store_of(endpoints)
        for topic, ahead_ms in (("bounded", 3_600_000), ("unbounded", (1 << 63) - 1)):
            await log.admin.create(topic, partitions=1, config=TopicConfig(timestamp_ahead_ms=ahead_ms))
            await change_terms(store.settings, topic, lambda _: TopicTerms(is_shared=True))
        return await remove_old(endpoints, ["bounded", "unbounded"], now_ms=now_ms())

    (notice,) = run(scene())
    assert "topic unbounded takes records of any time in the future" in notice
    assert "bound message.timestamp.after.max.ms" in notice


def test_a_retention_beyond_what_the_store_remembers_is_refused(endpoints: Endpoints) -> None:
    """FN1: deletions and purge markers must outlive what the log holds; the message names the setting."""

    async def scene() -> None:
        log, store = await log_of(endpoints), await store_of(endpoints)
        await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        await Topology(log, store.settings, "t").layout()
        plan = await plan_of(log, store, Selection(("t",)))
        await check_plan(endpoints, plan, now_ms=now_ms())
        await change_terms(store.settings, "t", lambda _: TopicTerms(retention_ms=11 * DAY_MS))
        await check_plan(endpoints, plan, now_ms=now_ms())

    with pytest.raises(RetentionTooLong, match=r"raise store\.gc_grace_s above the retention"):
        run(scene())


def test_old_buckets_of_views_by_tag_go_on_the_same_occasion(tmp_path: Path) -> None:
    """T39: where the settings name a retention, replication trims; a failure is told, and does not stop it."""
    tags = {"bucket": "MINUTE", "retention_s": {"*": 120.0}}
    endpoints = Endpoints.of(f"embedded:{tmp_path}", settings=HeadraceSettings.model_validate({"tags": tags}))

    async def scene() -> list[int]:
        minutes = Minutes(await log_of(endpoints), await store_of(endpoints), bucket="MINUTE")
        await minutes.new_topic()
        await minutes.begin()
        await minutes.fill("a")
        now = minutes.began_ms + 6 * 60_000
        assert await remove_old(endpoints, [], now_ms=now) == []
        assert await remove_old(endpoints, [], now_ms=now) == []
        await (await store_of(endpoints)).close()
        (notice,) = await remove_old(endpoints, [], now_ms=now + 600_000)
        assert "old events stay in the views by tag" in notice
        return await minutes_of(tmp_path, minutes)

    try:
        assert run(scene()) == [4, 5]
    finally:
        close_all()


async def minutes_of(folder: Path, minutes: Minutes) -> list[int]:
    """Return the minutes that a view has, seen by another process."""
    store = await open_store(f"embedded:{folder}")
    try:
        buckets = await store.tags.views.buckets(minutes.tag)
    finally:
        await store.close()
    return [(ms - minutes.began_ms) // 60_000 for ms in buckets]


def test_replication_claims_its_topics_before_it_begins(endpoints: Endpoints, tmp_path: Path) -> None:
    """A second store that has only begun holds removal back in the first, which is told why and goes on."""
    second = Endpoints.of(endpoints.log, store=f"embedded:{tmp_path}/second")

    async def begin(at: Endpoints) -> None:
        log, store = await log_of(at), await store_of(at)
        await Topology(log, store.settings, "t").layout()
        await check_plan(at, await plan_of(log, store, Selection(("t",))), now_ms=now_ms())

    async def scene() -> tuple[list[str], int]:
        log, store = await log_of(endpoints), await store_of(endpoints)
        await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        await append_aged(log, "t", "k", 1, days=8)
        await begin(endpoints)
        await begin(second)
        await replicate(log, store, "t")
        notices = await remove_old(endpoints, ["t"], now_ms=now_ms())
        return notices, (await log.bounds(TopicPartition("t", 0))).start

    notices, start = run(scene())
    assert start == 0
    assert len(notices) == 1
    assert "old records of t stay in the log: topic 't' is replicated by this store" in notices[0]


def test_a_loss_in_a_topic_that_was_made_again_can_be_accepted(endpoints: Endpoints) -> None:
    """The store is far along in a topic that is gone: what the new one lost is behind it only after the command."""

    async def scene() -> ReplicatedOffset | None:
        log, store = await log_of(endpoints), await store_of(endpoints)
        at = TopicPartition("t", 0)
        await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        for n in range(1, 9):
            await append_aged(log, "t", "k", n, days=0)
        await replicate(log, store, "t")
        await log.admin.delete("t")
        await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        for n in range(9, 13):
            await append_aged(log, "t", "k", n, days=0)
        await log.retention.truncate(at, before=2)
        with pytest.raises(RecordsLost, match="offsets 0 to 1"):
            await plan_of(log, store, Selection(("t",)))
        await accept_loss(endpoints, "t", 0, 1)
        assert (await plan_of(log, store, Selection(("t",)))).starts == {at: 2}
        return await store.reader.replicated(at)

    replicated = run(scene())
    assert replicated is not None
    assert (replicated.generation, replicated.offset) == (1, 1)


def test_a_loss_beyond_a_boundary_is_accepted_in_the_generation_behind_it(endpoints: Endpoints) -> None:
    """The mark that began a generation is among what was lost: what follows is of that generation all the same."""

    async def scene() -> ReplicatedOffset | None:
        log, store = await log_of(endpoints), await store_of(endpoints)
        at = TopicPartition("t", 0)
        await log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        await append_aged(log, "t", "k", 1, days=0)
        grown = await grow_topic(log, store.settings, "t", partitions=2, lease_s=0.0)
        await append_aged(log, "t", "k", 2, days=0)
        boundary = grown.generations[1].boundaries[0]
        await log.retention.truncate(at, before=boundary + 1)
        await accept_loss(endpoints, "t", 0, boundary)
        return await store.reader.replicated(at)

    replicated = run(scene())
    assert replicated is not None
    assert replicated.generation == 1
