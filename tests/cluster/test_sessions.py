"""Sessions of the coordinators whose time is ours to keep: on one machine, and in the log."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.cluster import Coordinator, Identity, LeaseKeeper, ensure_lease_topic, new_process, open_coordinator
from headrace.cluster.coordinators import open_store
from headrace.cluster.coordinators.embedded import EmbeddedCoordinationStore
from headrace.cluster.coordinators.kafka import KafkaCoordinationStore
from headrace.cluster.lease_watch import lease_topic
from headrace.cluster.planning import encode
from headrace.errors import DuplicateNode, UnknownBackend, UnknownTopic, Unreachable
from headrace.log import open_log
from headrace.model import NewRecord, Record
from headrace.testing.clock import SettableClock
from headrace.testing.conformance.coordinator_children import cluster_settings
from headrace.testing.conformance.coordinator_setting import member, until

FACTS = encode(member("node-1", incarnation="first"))
SECOND = encode(member("node-1", incarnation="second"))

OpenStore = Callable[[], Awaitable[KafkaCoordinationStore]]


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest_asyncio.fixture
async def in_log(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """The coordinator of Kafka, on the embedded log."""
    opened: list[KafkaCoordinationStore] = []

    async def open_another() -> KafkaCoordinationStore:
        log = await open_log(f"embedded:{tmp_path}")
        opened.append(await KafkaCoordinationStore.open(log, cluster="c", session_s=0.6))
        return opened[-1]

    yield open_another
    for store in opened:
        await store.close()


async def test_a_session_of_an_earlier_boot_has_ended(tmp_path: Path, clock: SettableClock) -> None:
    """C6: its process has not survived, however much time it had left; the wall clock has no say."""
    one = EmbeddedCoordinationStore(tmp_path / "c.db", session_s=5, clock=clock)
    await one.enter("node-1", "first", FACTS)
    await one.stop_renewing()
    clock.set(clock.now_ms() + 3_600_000)
    assert (await one.read()).is_member
    clock.reboot()
    other = EmbeddedCoordinationStore(tmp_path / "c.db", session_s=5, clock=clock)
    assert not (await other.read()).members
    await other.enter("node-1", "second", SECOND)
    assert (await other.read()).is_member
    assert not (await one.read()).is_member
    await one.close()
    await other.close()


async def test_a_process_that_was_frozen_past_its_session_is_no_member(tmp_path: Path, clock: SettableClock) -> None:
    """C6: it finds its session ended; if another process has the id by now, it can't enter again."""
    one = EmbeddedCoordinationStore(tmp_path / "c.db", session_s=5, clock=clock)
    other = EmbeddedCoordinationStore(tmp_path / "c.db", session_s=5, clock=clock)
    await one.enter("node-1", "first", FACTS)
    await one.stop_renewing()
    clock.advance(5.1)
    assert not (await one.read()).is_member
    await other.enter("node-1", "second", SECOND)
    entering = asyncio.create_task(one.enter("node-1", "first", FACTS))
    while not entering.done():
        clock.advance(0.5)  # the other one renews by its own timer, and shows so that it lives
        await other._write(other._renew)
        await asyncio.sleep(0.01)
    with pytest.raises(DuplicateNode, match="second"):
        await entering
    await one.close()
    await other.close()


async def test_of_two_processes_that_enter_at_once_one_stays(in_log: OpenStore) -> None:
    """C16: whichever the log has first; never both, never none."""
    stores = [await in_log(), await in_log()]
    entries = [
        store.enter("node-1", name, encode(member("node-1", incarnation=name)))
        for store, name in zip(stores, ("first", "second"), strict=True)
    ]
    outcomes = await asyncio.gather(*entries, return_exceptions=True)
    stays = [store for store, outcome in zip(stores, outcomes, strict=True) if outcome is None]
    async with asyncio.timeout(20):
        while len(stays) == 2:
            for store in stays:
                try:
                    await store.read()
                except DuplicateNode:
                    stays.remove(store)
                    await store.leave()
                    break
            await asyncio.sleep(0.02)
    (stayed,) = stays
    for _ in range(20):
        assert (await stayed.read()).is_member
        await asyncio.sleep(0.05)


async def test_a_late_heartbeat_of_a_frozen_process_does_not_depose_its_successor(in_log: OpenStore) -> None:
    """C16: one record that was under way when its process froze is no proof of life."""
    one, other = await in_log(), await in_log()
    await one.enter("node-1", "first", FACTS)
    session = one._session
    assert session is not None
    await one._stop_session()
    await other.enter("node-1", "second", SECOND)
    await one._beat(session)
    await other._topic.read_to_the_end()
    assert (await other.read()).is_member
    await one._beat(session)
    await other._topic.read_to_the_end()
    with pytest.raises(DuplicateNode, match=r"node-1\.example:7000 \(first\)"):
        await other.read()


async def test_a_silent_log_ages_nobody(in_log: OpenStore) -> None:
    """C6: members are missed after a session without a heartbeat, counted only while the topic can be read."""
    one, observer = await in_log(), await in_log()
    await one.enter("node-1", "first", FACTS)
    await observer._topic.read_to_the_end()
    assert set((await observer.read()).members) == {"node-1"}
    observer._topic._looked_s -= 60  # as if this process had been frozen for a minute
    assert set((await observer.read()).members) == {"node-1"}
    await one._stop_session()
    async with asyncio.timeout(10):
        while (await observer.read()).members:  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.02)


async def test_facts_that_a_second_process_overwrote_are_written_again(in_log: OpenStore) -> None:
    """C16: the first one goes on, and is seen as it is."""
    one, other = await in_log(), await in_log()
    await one.enter("node-1", "first", FACTS)
    await other._put_record("node-1", "second", SECOND)
    await one._topic.read_to_the_end()
    assert (await one.read()).members == {}
    async with asyncio.timeout(10):
        while (await one.read()).members != {"node-1": FACTS}:  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.01)


async def test_foreign_records_in_the_topic_are_passed_over(in_log: OpenStore) -> None:
    """C6: whatever somebody else writes there, members are seen."""
    one = await in_log()
    for key in ("beat/node-9", "member/node-9", "nonsense"):
        await one._topic.put(key, b"\xff\xfe")
    await one.enter("node-1", "first", FACTS)
    assert set((await one.read()).members) == {"node-1"}


async def test_the_only_member_notices_the_end_of_an_outage(in_log: OpenStore) -> None:
    """C6: nobody else writes a record that would show it."""
    one = await in_log()
    one._topic.failure = Unreachable("kafka", "gone")
    assert not (await one.read()).is_member
    await one.enter("node-1", "first", FACTS)
    assert (await one.read()).is_member


async def test_a_topic_that_cannot_be_read_is_an_error(in_log: OpenStore) -> None:
    """C6: the topic was deleted; the coordinator says so instead of showing what was."""
    one = await in_log()
    await one._log.admin.delete("c-cluster")
    async with asyncio.timeout(10):
        while one._topic.failure is None:  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.01)
    with pytest.raises(UnknownTopic):
        await one.read()


def test_a_coordinator_of_another_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: an entry point of the group headrace.coordinator, named by its scheme."""
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = "[headrace.coordinator]\ntheirs = their_coordinator:open_store\n"
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text(points)
    (tmp_path / "their_coordinator.py").write_text(
        "async def open_store(address, settings):\n    return (address, settings.cluster.name)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert asyncio.run(open_store("theirs://here")) == ("theirs://here", "headrace")  # type: ignore[comparison-overlap]
    with pytest.raises(UnknownBackend, match="known: embedded:, kafka:, theirs:, zookeeper:"):
        asyncio.run(open_store("others://here"))


async def test_a_fresh_view_shows_what_others_have_just_written(
    in_log: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: however far behind this node is with reading what all nodes share."""
    one, two = await in_log(), await in_log()
    await two.enter("node-1", "first", FACTS)
    coordinator = Coordinator(one)
    take = one._topic._take

    async def take_late(records: Iterable[Record], next_offset: int) -> None:
        await asyncio.sleep(0.2)
        await take(records, next_offset)

    monkeypatch.setattr(one._topic, "_take", take_late)
    assert set((await coordinator.fresh_view()).members) == {"node-1"}
    await two.leave()
    assert not (await coordinator.fresh_view()).members
    await coordinator.close()


async def test_a_cluster_is_the_same_one_after_its_coordinator_has_lost_everything(tmp_path: Path) -> None:
    """C16: its nodes know its id, and those that start afterwards get it from them."""
    coordinator = Coordinator(EmbeddedCoordinationStore(tmp_path / "c.db", session_s=0.5))
    await coordinator.join(member("node-1"))
    before = await until(coordinator, lambda view: bool(view.cluster_id))
    with contextlib.closing(sqlite3.connect(tmp_path / "c.db", isolation_level=None)) as db:
        for table in ("sessions", "leader", "requests", "plan"):
            db.execute(f"DELETE FROM {table}")
    async with asyncio.timeout(10):
        while not (after := await coordinator.fresh_view()).cluster_id:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert after.cluster_id == before.cluster_id
    await coordinator.close()


async def test_records_of_others_among_the_leases_are_passed_over(tmp_path: Path) -> None:
    """C15: no node stops because somebody has written there, and leases go on."""
    log = await open_log(f"embedded:{tmp_path}")
    await ensure_lease_topic(log, "c", partitions=1)
    await log.append([NewRecord(lease_topic("c"), None, b"hello", partition=0)])
    keeper = LeaseKeeper(log, "c", Identity("cluster", "node-1", new_process()))
    keeping = asyncio.create_task(keeper.run())
    lease = await keeper.held()
    await log.append([NewRecord(lease_topic("c"), None, b"hello again", partition=0)])
    await asyncio.sleep(0.3)
    assert not keeping.done()
    assert keeper.lease is lease
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await log.close()


async def test_leaving_while_entering_leaves_no_session(tmp_path: Path) -> None:
    """C6: the session that was just being entered is ended, too."""
    dead = EmbeddedCoordinationStore(tmp_path / "c.db", session_s=0.5)
    await dead.enter("node-1", "first", FACTS)
    await dead.stop_renewing()
    coordinator = Coordinator(EmbeddedCoordinationStore(tmp_path / "c.db", session_s=0.5))
    joining = asyncio.create_task(coordinator.join(member("node-1", incarnation="second"), timeout_s=5))
    for _ in range(20):  # it waits for the dead one by now
        await asyncio.sleep(0.005)
    assert not joining.done()
    await coordinator.leave()
    joining.cancel()
    async with asyncio.timeout(5):
        while (await coordinator.fresh_view()).members:  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.01)
    for _ in range(20):
        assert not (await coordinator.fresh_view()).members
        await asyncio.sleep(0.01)
    await coordinator.close()
    await dead.close()


async def test_the_coordinator_does_not_wait_for_the_log(tmp_path: Path) -> None:
    """C6: it has a file of its own; commits of the log, however long, hold no session up."""
    log = await open_log(f"embedded:{tmp_path}")
    blocking = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    blocking.execute("BEGIN EXCLUSIVE")
    settings = cluster_settings("c", 1.0)
    coordinator = await open_coordinator(f"embedded:{tmp_path}", settings=settings)
    await coordinator.join(member("node-1"), timeout_s=5)
    await until(coordinator, lambda view: "accounts" in view.placements)
    await coordinator.close()
    blocking.close()
    await log.close()
