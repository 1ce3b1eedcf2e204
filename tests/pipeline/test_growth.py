"""Topics that grow while the shipped job replicates them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.pipeline.tier import LEASE_S, Seen, Tier, append_all

from headrace.errors import WrongPartitionCount
from headrace.journal import Journal, grow_topic
from headrace.log import Log
from headrace.model import Event, NewRecord, partition_of
from headrace.protocol.headers import append_headers
from headrace.store import Store
from headrace.testing.conformance.log_setting import eventually

pytestmark = pytest.mark.timeout(300)

KEYS = 24


def test_a_topic_grows_under_load(tier: Tier, topic: str) -> None:
    """E12: 4 to 6 to 8 partitions under load: no event lost, order kept, reads right meanwhile."""
    written = dict.fromkeys((f"k{key}" for key in range(KEYS)), 0)
    is_grown = threading.Event()

    async def load(log: Log, store: Store) -> None:
        journal = Journal(log, store, topic, cache=None, partitions=4, lease_s=LEASE_S)
        while not is_grown.is_set():
            for id_ in written:
                await journal.append(id_, [Event(written[id_] + 1, {"n": written[id_] + 1})])
                written[id_] += 1
            id_ = f"k{written['k0'] % KEYS}"
            assert [event.seq_nr async for event in journal.read(id_)] == list(range(1, written[id_] + 1))
            await asyncio.sleep(0.1)  # a steady load: how much it is does not depend on how slow Spark is

    async def grow(log: Log, store: Store, seen: Seen) -> None:
        for partitions in (6, 8):
            await _more_batches(seen)
            await grow_topic(log, store.settings, topic, partitions=partitions, lease_s=LEASE_S)
        await _more_batches(seen)
        is_grown.set()

    async def both(log: Log, store: Store, seen: Seen) -> None:
        await asyncio.gather(load(log, store), grow(log, store, seen))

    tier.with_journal(topic, lambda journal: append_all(journal, 1, 1))
    written["k0"] = 1
    with tier.replicating(topic) as seen:
        tier.on(lambda log, store: both(log, store, seen))
    tier.replicate(topic)
    _, rows = tier.dump(topic)
    for id_, last in written.items():
        assert [row.seq_nr for row in rows[id_]] == list(range(1, last + 1))
        assert tier.numbers(topic, id_) == list(range(1, last + 1))


async def _more_batches(seen: Seen) -> None:
    """Wait until replication has done another batch."""
    before = len(seen.reports)

    async def are_there() -> bool:
        return len(seen.reports) > before

    await eventually(are_there, within_s=90)


def test_partitions_added_behind_our_back_stop_replication(tier: Tier, topic: str) -> None:
    """E12: the error says what to run."""
    tier.with_journal(topic, lambda journal: append_all(journal, 4, 1))
    tier.apply(topic)
    tier.on(lambda log, _: log.admin.add_partitions(topic, total=6))
    with pytest.raises(WrongPartitionCount, match=f"run: headrace topic grow {topic} --partitions 6"):
        tier.replicate(topic)


def test_a_stray_record_of_a_moved_key_is_named(tier: Tier, topic: str) -> None:
    """E12: a producer with old metadata writes a moved key to its old partition: void, and reported by name."""
    tier.with_journal(topic, lambda journal: append_all(journal, 8, 1))
    tier.apply(topic)
    tier.on(lambda log, store: grow_topic(log, store.settings, topic, partitions=6, lease_s=0.1))
    moved = next(f"k{n}" for n in range(8) if partition_of(b"k%d" % n, 4) != partition_of(b"k%d" % n, 6))
    old = partition_of(moved.encode(), 4)
    record = NewRecord(
        topic, moved.encode(), b'{"events":[{"seqNr":2}]}', append_headers(2, 2, "json", None, None), partition=old
    )
    tier.on(lambda log, _: log.append([record]))
    with tier.replicating(topic) as seen:
        _until(lambda: any(f"{moved} at offset" in event for event in seen.events))
    assert tier.numbers(topic, moved) == [1]


def _until(condition: object, timeout_s: float = 90.0) -> None:
    waiting = threading.Event()
    for _ in range(int(timeout_s * 20)):
        if condition():  # type: ignore[operator]
            return
        waiting.wait(0.05)
    raise AssertionError("it did not happen in time")
