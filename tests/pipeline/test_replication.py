"""Replication, by the shipped job in a Spark session."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.pipeline.tier import Seen, Tier, append_all

from headrace.errors import OperationFailed, RecordsLost
from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event, NewRecord, TopicPartition
from headrace.pipeline import Endpoints
from headrace.pipeline.logs import plan as planning
from headrace.pipeline.logs.plan import Plan
from headrace.pipeline.replication.progress import lag_of
from headrace.store import Store

pytestmark = pytest.mark.timeout(300)


async def replicated(store: Store, topic: str, partitions: int = 4) -> list[int]:
    found = [await store.reader.replicated(TopicPartition(topic, partition)) for partition in range(partitions)]
    return [each.offset if each is not None else -1 for each in found]


async def ends(log: Log, topic: str, partitions: int = 4) -> list[int]:
    return [(await log.bounds(TopicPartition(topic, partition))).end for partition in range(partitions)]


def test_marks_make_no_rows(tier: Tier, topic: str) -> None:
    """E2: a log of marks only makes no rows, and the replicated offset follows them."""

    async def mark(journal: Journal, count: int) -> None:
        for _ in range(count):
            await journal.mark("k", "m")

    tier.with_journal(topic, lambda journal: mark(journal, 2), partitions=1)
    tier.replicate(topic)
    assert tier.on(lambda _, store: replicated(store, topic, 1)) == [1]
    tier.with_journal(topic, lambda journal: mark(journal, 10), partitions=1)
    tier.replicate(topic)
    assert tier.on(lambda _, store: replicated(store, topic, 1)) == [11]
    assert tier.dump(topic) == ({}, {})


def test_a_batch_below_the_replicated_offset_changes_nothing(
    tier: Tier, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: a batch that was all replicated before leaves the store as it was, and the query goes on behind it."""
    tier.with_journal(topic, lambda journal: append_all(journal, 5, 4))
    tier.replicate(topic)
    before = tier.dump(topic)
    tier.with_journal(topic, lambda journal: append_all(journal, 1, 1, first=5))
    monkeypatch.setattr(planning, "start_of", lambda *_: 0)
    seen = Seen()
    job = tier.job(topic, watcher=seen, max_records=20)
    stopper = threading.Thread(target=lambda: (_wait(lambda: _records(seen) >= 21), job.stop()))
    stopper.start()
    summary = job.run()
    stopper.join()
    monkeypatch.undo()
    assert summary.records >= 21
    assert summary.rows == 1
    after = tier.dump(topic)
    assert {id_: rows for id_, rows in after[1].items() if id_ != "k0"} == {
        id_: rows for id_, rows in before[1].items() if id_ != "k0"
    }
    assert after == tier.expected(topic)


def _records(seen: Seen) -> int:
    return sum(report.records for report in seen.reports)


def _wait(condition: Any, timeout_s: float = 60.0) -> None:
    event = threading.Event()
    for _ in range(int(timeout_s * 50)):
        if condition():
            return
        event.wait(0.02)
    raise AssertionError("it did not happen in time")


CRASHES = {
    "replicate.before-meta": 2,
    "replicate.before-deletions": 2,
    "replicate.after-key": 2,
    "replicate.before-offset": 1,
    "replicate.after-offset": 1,
}


def test_a_killed_worker_leaves_nothing_wrong(tier: Tier, topic: str) -> None:
    """E5: killed after rows, after meta, after the offset: the replay gives the same rows, none twice."""
    chance = random.Random(5)

    async def change(journal: Journal) -> None:
        for key in range(6):
            pointer = await journal.pointer(f"k{key}") or 0
            await journal.append(f"k{key}", [Event(pointer + n, {"n": n}) for n in (1, 2, 3)])
            if chance.random() < 0.4:
                await journal.delete(f"k{key}", to=pointer + 1)
            if chance.random() < 0.3:
                await journal.purge(f"k{key}")
                await journal.append(f"k{key}", [Event(1, "again")])

    for point, nth in CRASHES.items():
        tier.with_journal(topic, change)
        tier.arm(point, nth=nth)
        summary = tier.replicate(topic)
        assert tier.disarm(), f"nobody passed {point}"
        assert summary.restarts >= 1
        assert tier.dump(topic) == tier.expected(topic)


def test_two_replicators_at_once_converge(tier: Tier, topic: str) -> None:
    """E6: two jobs on one topic move no offset back and bring no purged row back."""

    async def live(journal: Journal) -> None:
        for n in range(12):
            await asyncio.gather(*(_step(journal, f"k{key}", n) for key in range(8)))

    async def _step(journal: Journal, id_: str, n: int) -> None:
        pointer = await journal.pointer(id_) or 0
        await journal.append(id_, [Event(pointer + 1, n)])
        if n % 4 == 3:
            await journal.purge(id_)

    with tier.replicating(topic_made(tier, topic), max_records=7), tier.replicating(topic, max_records=11):
        tier.with_journal(topic, live)
    tier.replicate(topic)
    assert tier.dump(topic) == tier.expected(topic)


def topic_made(tier: Tier, topic: str) -> str:
    tier.with_journal(topic, lambda journal: journal.mark("k", "m"))
    return topic


def test_a_key_that_fails_stops_nobody_else(tier: Tier, topic: str) -> None:
    """E8: other keys of its partition, and other partitions, are replicated all the same.

    FP5: they are counted though their micro-batch failed, and in the end each record is counted once.
    """
    faulty = Endpoints(
        tier.endpoints.log, f"faulty:{tier.endpoints.store}", tier.endpoints.log_settings, tier.endpoints.store_settings
    )

    async def fill(journal: Journal) -> None:
        await append_all(journal, 20, 2)
        await journal.append("bad-1", [Event(1)])

    tier.with_journal(topic, fill)
    with pytest.raises(OperationFailed, match="bad-1"):
        tier.replicate(topic, endpoints=faulty, attempts=1)
    metas, rows = tier.dump(topic)
    assert {f"k{key}" for key in range(20)} <= metas.keys()
    assert "bad-1" not in metas
    counted = REGISTRY.get_sample_value("headrace_pipeline_records_total", {"topic": topic})
    assert counted is not None
    tier.replicate(topic)
    assert tier.dump(topic) == tier.expected(topic)
    assert len(rows["k1"]) == 2
    assert REGISTRY.get_sample_value("headrace_pipeline_records_total", {"topic": topic}) == 41


def test_reads_answer_the_same_before_and_after(tier: Tier, topic: str) -> None:
    """E10: append, read, delete, purge are right from the log alone; replicated, the answers are the same."""

    async def fill(journal: Journal) -> None:
        await append_all(journal, 6, 5)
        await journal.delete("k1", to=3)
        await journal.purge("k2")
        await journal.purge("k3")
        await journal.append("k3", [Event(1, "new")])

    async def answers(journal: Journal) -> dict[str, Any]:
        return {
            f"k{key}": ([event async for event in journal.read(f"k{key}")], await journal.pointer(f"k{key}"))
            for key in range(7)
        }

    tier.with_journal(topic, fill)
    before = tier.with_journal(topic, answers)
    tier.replicate(topic)
    assert tier.with_journal(topic, answers) == before
    assert tier.dump(topic) == tier.expected(topic)


def test_lost_records_are_an_error_that_names_them(tier: Tier, topic: str) -> None:
    """E11: a log that begins above the replicated offset stops replication, naming the lost range."""
    tier.with_journal(topic, lambda journal: append_all(journal, 1, 3), partitions=1)
    tier.replicate(topic)
    tier.with_journal(topic, lambda journal: append_all(journal, 1, 4, first=4), partitions=1)
    at = TopicPartition(topic, 0)
    tier.on(lambda log, _: log.retention.release(at, below=6))
    tier.on(lambda log, _: log.retention.truncate(at, before=5))
    with pytest.raises(RecordsLost, match=rf"offsets 3 to 4 of {topic}\[0\].*--accept-loss {topic}:0:4"):
        tier.replicate(topic)
    from headrace.pipeline import accept_loss
    from headrace.pipeline.spark.process import run

    run(accept_loss(tier.endpoints, topic, 0, 4))
    tier.replicate(topic)
    assert tier.on(lambda _, store: replicated(store, topic, 1)) == [6]


def test_aborted_records_are_passed_and_raise_no_alarm(tier: Tier, topic: str) -> None:
    """E16, E11: aborted transactions are not replicated, the offset passes them; emptied by retention, all is well."""

    async def abort(log: Log, store: Store) -> None:
        producer = await log.transactional(f"t-{topic}")
        await producer.begin()
        record = next(iter(await _records_of(log, topic)))
        await producer.append([NewRecord(topic, b"aborted", record.value, record.headers, partition=0)])
        await producer.abort()
        await producer.close()

    tier.with_journal(topic, lambda journal: append_all(journal, 1, 2), partitions=1)
    tier.on(abort)
    tier.replicate(topic)
    (end,) = tier.on(lambda log, _: ends(log, topic, 1))
    assert end > 2
    assert tier.on(lambda _, store: replicated(store, topic, 1)) == [end - 1]
    assert set(tier.dump(topic)[0]) == {"k0"}
    tier.on(abort)  # nothing but an aborted one
    tier.replicate(topic)
    (later,) = tier.on(lambda log, _: ends(log, topic, 1))
    assert later > end
    assert tier.on(lambda _, store: replicated(store, topic, 1)) == [later - 1]
    tier.on(lambda log, _: log.retention.truncate(TopicPartition(topic, 0), before=later))
    assert tier.replicate(topic).records == 0


async def _records_of(log: Log, topic: str) -> list[Any]:
    at = TopicPartition(topic, 0)
    return [record async for batch in log.read(at, 0, (await log.bounds(at)).end) for record in batch.records]


def test_a_purge_split_over_batches_converges(tier: Tier, topic: str) -> None:
    """E13, E14: 100 events in one append, a purge in the next batch, a replay of both: purged."""

    async def fill(journal: Journal) -> None:
        await journal.append("k", [Event(n, n) for n in range(1, 101)])
        await journal.append("other", [Event(n, n) for n in range(1, 101)])
        await journal.purge("k")

    tier.with_journal(topic, fill, partitions=1)
    tier.arm("replicate.after-key", nth=2)
    summary = tier.replicate(topic, max_records=2)
    assert tier.disarm()
    assert summary.batches >= 2
    metas, rows = tier.dump(topic)
    assert (metas["k"].is_purged, rows["k"]) == (True, [])
    assert (metas["other"].seq_nr, len(rows["other"])) == (100, 100)
    assert tier.dump(topic) == tier.expected(topic)


def test_one_task_has_one_partition(tier: Tier, topic: str) -> None:
    """K1, K10, K17: each task of a micro-batch had one partition; lag, rates and times are told for each batch."""
    seen = Seen()
    tier.with_journal(topic, lambda journal: append_all(journal, 40, 3))
    tier.replicate(topic, watcher=seen, max_records=60)
    assert len(seen.reports) > 1
    for report in seen.reports:
        tasks = [(outcome.task, outcome.at) for outcome in report.outcomes]
        assert len({task for task, _ in tasks}) == len({at for _, at in tasks}) == len(tasks)
        assert all(task >= 0 for task, _ in tasks)  # numbers that Spark gave: the fold ran inside its tasks
        assert report.records == sum(outcome.records for outcome in report.outcomes)
        assert report.took_s > 0
    assert {at.partition for report in seen.reports for at in report.lag} == {0, 1, 2, 3}
    behind = 120
    for report in seen.reports:
        behind -= report.records
        assert sum(report.lag.values()) == behind
    assert behind == 0
    assert Counter({"rows": 120}) == Counter({"rows": sum(report.rows for report in seen.reports)})


def test_the_lag_is_behind_whoever_saw_most_of_the_log() -> None:
    """K17: a source that saw less than the plan, or more: what is not replicated is told."""
    one, other = TopicPartition("t", 0), TopicPartition("t", 1)
    plan = Plan({}, starts={one: 0, other: 0}, ends={one: 27, other: 5})
    assert lag_of(plan, latest={one: 24, other: 9}, ends={one: 12, other: 9}) == {one: 15, other: 0}
    assert lag_of(plan, latest={one: 30}, ends={one: 12, other: 2}) == {one: 18, other: 3}


def test_the_store_is_the_only_memory(tier: Tier, topic: str) -> None:
    """K12: with no checkpoint at all the job goes on from the stored offsets, and writes nothing twice."""
    tier.with_journal(topic, lambda journal: append_all(journal, 10, 3))
    assert tier.replicate(topic).rows == 30
    assert tier.replicate(topic).records == 0
    tier.with_journal(topic, lambda journal: append_all(journal, 10, 1, first=4))
    assert tier.replicate(topic).rows == 10
    assert tier.dump(topic) == tier.expected(topic)


def test_new_topics_are_picked_up_while_running(tier: Tier, topic: str) -> None:
    """K2: a journal that appears while the job runs is replicated by the same job."""
    tier.with_journal(f"{topic}-a", lambda journal: append_all(journal, 3, 1))
    from headrace.config import PipelineSettings
    from headrace.pipeline import Replication, Selection

    job = Replication(
        tier.spark,
        tier.endpoints,
        Selection(prefix=topic),
        settings=PipelineSettings(interval_s=0, discover_every_s=0.3),
    )
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        tier.with_journal(f"{topic}-b", lambda journal: append_all(journal, 3, 1))
        _wait(lambda: len(tier.dump(f"{topic}-a")[0]) == len(tier.dump(f"{topic}-b")[0]) == 3)
    finally:
        job.stop()
        thread.join(60)
    assert not thread.is_alive()
