"""What live queries of a process share of a partition: one reader, and nothing that one of them does to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.suites.tags_setting import Follower, Scene, ids, ids_on

from headrace.config import EmbeddedLogSettings, EmbeddedStoreSettings, LogSettings, StoreSettings
from headrace.errors import HeadraceError, JournalHeld, OperationFailed, UnknownTopic
from headrace.log import open_log
from headrace.model import NewRecord, Topic
from headrace.protocol.actions import Purge
from headrace.protocol.fold import Entry
from headrace.protocol.headers import encode_action
from headrace.store import TagTime, open_store
from headrace.store.rows import FIRST_TAG_TIME
from headrace.tags import TaggedEvent, followed, merge, seams
from headrace.tags import key_states as key_lookup
from headrace.tags.key_states import KeyState, load_key
from headrace.tags.partitions import SharedPartitions
from headrace.tags.registry import TagFacts
from headrace.tags.seams import Announcements
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.conformance.store_rows import counted

LISTENERS = "headrace_log_listeners"
PARTITIONS = 2


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Return a topic of two partitions, read with pages of five events."""
    log_settings = LogSettings(embedded=EmbeddedLogSettings(fsync=False))
    store_settings = StoreSettings(embedded=EmbeddedStoreSettings(fsync=False))
    log = await open_log(f"embedded:{tmp_path}", settings=log_settings)
    store = await open_store(f"embedded:{tmp_path}", settings=store_settings)
    scene = Scene(log, store, page_size=5)
    await scene.new_topic(partitions=PARTITIONS)
    yield scene
    await store.close()
    await log.close()


def shared(scene: Scene) -> SharedPartitions:
    return scene.queries._sources.partitions


async def served(scene: Scene, queries: int) -> None:
    """Wait until all heads of some queries are served."""

    async def are_served() -> bool:
        return shared(scene).served == queries * PARTITIONS

    await eventually(are_served, every_s=0.005)


async def begin(scene: Scene, *tags: str) -> list[Follower]:
    """Begin live queries, each with an event that it has seen, and wait until the readers serve them."""
    followers = [scene.follow(tag) for tag in tags]
    for n, tag in enumerate(tags):
        await scene.append(f"first-{tag}-{n}", 1, [tag])
    await asyncio.gather(*(follower.next() for follower in followers))
    await served(scene, len(tags))
    return followers


async def stop(*followers: Follower) -> None:
    await asyncio.gather(*(follower.stop() for follower in followers))


async def test_one_reader_a_partition_serves_all_queries(scene: Scene) -> None:
    """Many queries that have come to the end of the log are as many listeners as there are partitions."""
    followers = await begin(scene, *(f"t{n}" for n in range(10)))
    assert counted(LISTENERS) == PARTITIONS
    await stop(*followers)
    assert len(shared(scene)) == 0
    assert counted(LISTENERS) == 0


async def test_a_query_that_starts_late_gets_what_was_written_before(scene: Scene) -> None:
    """It reads by itself up to where the others are, and is served then; each event comes once, in order."""
    (early,) = await begin(scene, "x")
    for n in range(1, 21):
        await scene.append("k", n, ["x"])
        await early.next()
    late = scene.follow("x")
    found = await late.next(21)
    await served(scene, 2)
    await scene.append("k", 21, ["x"])
    found += await late.next()
    assert ids(await early.next()) == ["k21"]
    assert found == await scene.read("x")
    await stop(early, late)


async def test_a_query_that_ends_takes_nothing_from_the_others(scene: Scene) -> None:
    """The one that began first, and started the readers, is stopped: the other goes on without a gap."""
    first, second = await begin(scene, "x", "y")
    await scene.append("k", 1, ["x", "y"])
    assert ids(await second.next()) == ["k1"]
    await first.stop()
    await scene.append("k", 2, ["x", "y"])
    assert ids(await second.next()) == ["k2"]
    assert shared(scene).served == PARTITIONS
    await second.stop()
    assert len(shared(scene)) == 0


async def test_a_query_that_is_cancelled_takes_nothing_from_the_others(scene: Scene) -> None:
    """Its task ends while it waits for an event; no task of it is left, and the other goes on."""
    first, second = await begin(scene, "x", "y")
    assert await first.is_silent(0.0)
    await first.stop()
    assert shared(scene).served == PARTITIONS
    await scene.append("k", 1, ["y"])
    assert ids(await second.next()) == ["k1"]
    await second.stop()

    async def is_none_left() -> bool:  # the Marks that the event needed may be written to their end
        return not [task for task in asyncio.all_tasks() if "headrace-tag" in task.get_name()]

    await eventually(is_none_left, every_s=0.005, what="the end of the queries' tasks")


async def test_a_slow_query_holds_up_nobody_and_loses_nothing(scene: Scene) -> None:
    """It takes no events while the other takes a hundred: its own memory is bounded, and all come later, in order."""
    slow, quick = await begin(scene, "x", "y")
    for n in range(1, 101):
        await scene.append("k", n, ["x", "y"])
        assert ids(await quick.next()) == [f"k{n}"]
    assert shared(scene).served < 2 * PARTITIONS  # the slow one reads by itself
    found = await slow.next(100)
    await served(scene, 2)
    await scene.append("k", 101, ["x", "y"])
    found += await slow.next()
    assert ids(await quick.next()) == ["k101"]
    assert found == (await scene.read("x"))[1:]
    await stop(slow, quick)


async def test_a_fold_that_fails_ends_its_own_query_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action can't be judged for one tag: that query fails with the error, the other one gets the event."""
    broken, sound = await begin(scene, "x", "y")
    await scene.append("k", 1, ["x", "y"])
    await asyncio.gather(broken.next(), sound.next())
    number_events = KeyState.number_events

    def fail(state: KeyState, entry: Entry, time: TagTime) -> list[TaggedEvent]:
        if state.tag.endswith("-x"):
            raise JournalHeld(entry.id, entry.topic, entry.partition, entry.offset, "it can't be decoded")
        return number_events(state, entry, time)

    monkeypatch.setattr(KeyState, "number_events", fail)
    await scene.append("k", 2, ["x", "y"])
    assert ids(await sound.next()) == ["k2"]
    with pytest.raises(JournalHeld):
        await broken.next()
    await scene.append("k", 3, ["y"])
    assert ids(await sound.next()) == ["k3"]
    await stop(broken, sound)


async def test_what_happens_to_a_key_while_its_state_is_loaded_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first tagged event of a journal come a purge and more appends, before the store has answered."""
    (follower,) = await begin(scene, "x")
    is_written = asyncio.Event()

    async def load_late(*arguments: Any) -> KeyState:
        state = await load_key(*arguments)
        await is_written.wait()
        return state

    monkeypatch.setattr(key_lookup, "load_key", load_late)
    await scene.append("k", 1, ["x"])
    await scene.append("k", 2, [])
    await scene.append("k", 2, ["x"])  # void
    at = (await scene.layout()).route("k")
    await scene.put(NewRecord(scene.topic, b"k", None, encode_action(Purge()), partition=at.partition))
    await scene.append("k", 1, ["x"], at_ms=scene.now_ms + 1)
    assert await follower.is_silent(0.05)
    is_written.set()
    found = await follower.next(2)
    assert [(event.seq_nr, event.number) for event in found] == [(1, 1), (1, 2)]
    await follower.stop()
    await scene.replicate()
    assert found == (await scene.read("x"))[1:]


async def test_an_event_whose_journal_is_being_loaded_holds_later_ones_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes its time for a journal of one partition: a later event of the other partition waits for it."""
    (follower,) = await begin(scene, "x")
    (slow,), (known,) = ids_on(0, 1, partitions=PARTITIONS), ids_on(1, 1, partitions=PARTITIONS)
    await scene.append(known, 1, ["x"])
    await follower.next()
    may_load = asyncio.Event()

    async def load_late(*arguments: Any) -> KeyState:
        await may_load.wait()
        return await load_key(*arguments)

    monkeypatch.setattr(key_lookup, "load_key", load_late)
    await scene.append(slow, 1, ["x"])
    await scene.append(known, 2, ["x"])
    for partition, id_ in enumerate(ids_on(0, 2, partitions=PARTITIONS)[1:] + ids_on(1, 2, partitions=PARTITIONS)[1:]):
        await scene.append(id_, 1, [], at_ms=scene.now_ms + 1000 + partition)  # time goes on in both
    assert await follower.is_silent(0.05)
    may_load.set()
    assert ids(await follower.next(2)) == [f"{slow}1", f"{known}2"]
    await follower.stop()


async def test_a_reader_that_fails_gives_each_query_its_error(scene: Scene) -> None:
    """The topic is deleted under two served queries: both notice, and go on with the topics that are left."""
    other = await scene.new_topic(partitions=1)
    first, second = [scene.follow(tag) for tag in ("x", "y")]
    await scene.append("k", 1, ["x", "y"], topic=other)
    await asyncio.gather(first.next(), second.next())
    await scene.log.admin.delete(other)
    await scene.append("a", 1, ["x", "y"])
    for follower in (first, second):
        assert ids(await follower.next()) == ["a1"]
    await stop(first, second)


async def test_a_topic_that_was_not_listed_for_a_moment_keeps_what_is_remembered_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a journal did before is not replicated: an append that it makes void is void afterwards too."""
    for module in (followed, merge):
        monkeypatch.setattr(module, "LOOK_FOR_TOPICS_S", 0.02)
    monkeypatch.setattr(seams, "_LATELY_S", 0.0)
    (follower,) = await begin(scene, "x")
    await scene.append("k", [1, 2], [])
    await scene.append("a", 1, ["x"])  # Marks of our own follow
    await follower.next()
    known, described, is_listed = scene.log.admin.topics, scene.log.admin.describe, False

    async def forgetful() -> Sequence[str]:
        return await known() if is_listed else []

    async def forgetful_of(topic: str) -> Topic:
        if not is_listed:
            raise UnknownTopic(topic)
        return await described(topic)

    monkeypatch.setattr(scene.log.admin, "topics", forgetful)
    monkeypatch.setattr(scene.log.admin, "describe", forgetful_of)
    assert await follower.is_silent(0.0)
    await served(scene, 0)
    is_listed = True
    await served(scene, 1)
    await scene.append("k", 2, ["x"])
    await scene.append("a", 2, ["x"])
    assert ids(await follower.next()) == ["a2"]
    await follower.stop()


class Facts:
    """Facts to look at, given when the test says so."""

    def __init__(self) -> None:
        self.looks: list[asyncio.Future[TagFacts]] = []
        self.read_up_to = FIRST_TAG_TIME

    async def ask(self) -> TagFacts:
        look: asyncio.Future[TagFacts] = asyncio.get_running_loop().create_future()
        self.looks.append(look)
        return await look


def place(log_time_ms: int) -> TagTime:
    return TagTime(log_time_ms, 0, 0, 0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_look_serves_what_was_read_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who need no more share it, also while it goes on; who has read further needs another one."""
    facts = Facts()
    announcements = Announcements(facts.ask, lambda: facts.read_up_to)
    facts.read_up_to = place(10)
    announcements.begin(place(10), since_s=0.0)
    await settle()
    facts.read_up_to = place(20)
    covered = asyncio.create_task(announcements.covering(place(10), since_s=0.0))
    beyond = asyncio.create_task(announcements.covering(place(15), since_s=0.0))
    await settle()
    assert len(facts.looks) == 1
    registry = TagFacts("HOUR", "epoch")
    facts.looks[0].set_result(registry)
    assert (await covered).up_to == place(10)
    await settle()
    assert len(facts.looks) == 2
    facts.looks[1].set_result(registry)
    assert (await beyond).up_to == place(20)
    assert (await announcements.covering(place(18), since_s=0.0)).up_to == place(20)
    assert len(facts.looks) == 2


async def test_a_look_from_before_a_query_began_is_not_used() -> None:
    """The facts that the query began with may be newer: it would take them for changed."""
    facts = Facts()
    announcements = Announcements(facts.ask, lambda: place(10))
    first = asyncio.create_task(announcements.covering(place(1), since_s=0.0))
    await settle()
    facts.looks[0].set_result(TagFacts("HOUR", "old"))
    look = await first
    later = asyncio.create_task(announcements.covering(place(1), since_s=look.began_s + 1e-9))
    await settle()
    facts.looks[1].set_result(TagFacts("HOUR", "new"))
    assert (await later).facts.epoch == "new"


async def test_a_look_that_fails_is_not_remembered() -> None:
    """Who waits for it gets the error; the next one looks again."""
    facts = Facts()
    announcements = Announcements(facts.ask, lambda: place(10))
    failing = asyncio.create_task(announcements.covering(place(1), since_s=0.0))
    await settle()
    facts.looks[0].set_exception(OperationFailed("looking", "it is away"))
    with pytest.raises(HeadraceError):
        await failing
    again = asyncio.create_task(announcements.covering(place(1), since_s=0.0))
    await settle()
    facts.looks[1].set_result(TagFacts("HOUR", "epoch"))
    assert (await again).facts.epoch == "epoch"
