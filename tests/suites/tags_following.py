"""Many live queries over one log: what they cost together, and what they live through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.suites.tags_setting import DAY_MS, Follower, Scene, TagSetting, ids, ids_on

from headrace.errors import BadArgument, HeadraceError, TimedOut, Unreachable
from headrace.journal.marks import write_mark
from headrace.log import Log
from headrace.model import TopicConfig, TopicPartition
from headrace.protocol.actions import Mark
from headrace.protocol.fold import Entry
from headrace.store import Store
from headrace.tags import TagQueries, followed, heads, partitions
from headrace.tags import marks as marking
from headrace.tags.key_states import KeyLookup, Scanned
from headrace.tags.seams import SeamReader
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.conformance.store_rows import counted

__all__ = ["TagFollowingConformance"]

MARKS = "headrace_tags_marks_total"
FEEDS = "headrace_log_feeds"
MANY = 20


class TagFollowingConformance(TagSetting):
    """What live queries share, and how they go on after trouble."""

    async def test_partitions_are_followed_once_whoever_listens(self, scene: Scene) -> None:
        """FT8: twenty live queries over four partitions are four feeds; a query that joins them makes none."""
        await eventually(_nobody_follows)  # those of other tests stay for a moment
        followers = [scene.follow() for _ in range(MANY)]
        await scene.append("a", 1)
        assert {ids(found)[0] for found in await asyncio.gather(*(each.next() for each in followers))} == {"a1"}
        assert counted(FEEDS) == 4
        late = scene.follow()
        assert ids(await late.next()) == ["a1"]
        assert counted(FEEDS) == 4
        await asyncio.gather(*(each.stop() for each in (*followers, late)))
        await eventually(_nobody_follows)

    async def test_one_set_of_marks_serves_all_queries_of_a_process(self, scene: Scene) -> None:
        """FT8: events of twenty tags that wait at the same time, one query each: one Mark a partition, at most."""
        await eventually(_nobody_follows)
        gathering = scene.again(gather_ms=500.0)
        followers = [gathering.follow(f"t{n}") for n in range(MANY)]
        for each in followers:
            assert await each.is_silent(0.0)
        await eventually(lambda: _all_are_served(gathering))
        before = counted(MARKS)
        names = ids_on(0, MANY)
        await asyncio.gather(*(scene.append(id_, 1, [f"t{n}"]) for n, id_ in enumerate(names)))
        found = await asyncio.gather(*(each.next() for each in followers))
        assert [event.id for (event,) in found] == names
        assert counted(MARKS) - before <= 2 * 3  # a second set, where appending them took longer than the gathering
        await asyncio.gather(*(each.stop() for each in followers))

    async def test_one_process_writes_the_marks_that_all_wait_for(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FT8: two processes wait for the same lone events: the Marks of one move the other."""
        monkeypatch.setattr(marking, "_LEAVE_S", 2.0)
        monkeypatch.setattr(marking, "_LEAVE_FOR_S", 60.0)
        followers = [scene.follow(), scene.again().follow()]
        (id_,) = ids_on(0, 1)
        await scene.append(id_, 1)
        await asyncio.gather(*(each.next() for each in followers))
        before = counted(MARKS)
        for n in range(2, 12):
            await scene.append(id_, n)
            for found in await asyncio.gather(*(each.next() for each in followers)):
                assert ids(found) == [f"{id_}{n}"]
        assert counted(MARKS) - before <= 10 * 3
        await asyncio.gather(*(each.stop() for each in followers))

    async def test_marks_of_journals_that_are_read_are_not_taken_for_those_of_queries(self, scene: Scene) -> None:
        """FT8: reads write Marks of their own; they don't say that another process marks idle partitions."""
        follower = scene.follow()
        await scene.append("a", 1)
        await follower.next()
        for n in range(20):
            await write_mark(scene.log, TopicPartition(scene.topic, n % 4), "a", Mark(id="0" * 32))
        await scene.append("a", 2)
        await follower.next()
        assert not scene.queries._marker.leaves_to_others
        await follower.stop()

    async def test_new_journals_cost_no_pass_over_what_a_query_forgot(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FT9: the head is longer than what is kept: only journals that were forgotten are looked for in the log."""
        monkeypatch.setattr(partitions, "_MOST_ACTIONS", 5)
        monkeypatch.setattr(heads, "_MOST_KEYS", 5)
        monkeypatch.setattr(partitions, "_TRIM_FROM", 1)
        monkeypatch.setattr(partitions, "_TRIM_EVERY_S", 0.0)
        scanned: list[str] = []
        scan = KeyLookup.scan

        async def watched(lookup: KeyLookup, entry: Entry) -> Scanned:
            scanned.append(entry.id)
            return await scan(lookup, entry)

        monkeypatch.setattr(KeyLookup, "scan", watched)
        follower = scene.follow()
        names = ids_on(0, 40)
        for id_ in names:
            await scene.append(id_, 1)
            assert ids(await follower.next()) == [f"{id_}1"]
        assert scanned == []
        await scene.append(names[0], 2)
        (again,) = await follower.next()
        assert (again.id, again.number, scanned) == (names[0], 2, [names[0]])
        await follower.stop()

    async def test_a_live_query_goes_on_when_its_store_is_back(self, scene: Scene) -> None:
        """FM5: the store is away; the query waits for it, and gives each event once, in order, afterwards."""
        store = AbsentStore(scene.store)
        queries = TagQueries(scene.log, store, scene.settings)  # type: ignore[arg-type]
        follower = Follower(queries.events(scene.tag, live=True))
        await scene.append("a", 1)
        seen = await follower.next()
        store.is_away = True
        for n in range(2, 5):
            await scene.append("a", n)
            await scene.append("b", n - 1)
        assert await follower.is_silent()
        assert store.refused > 1
        await scene.replicate()
        store.is_away = False
        seen += await follower.next(6)
        await follower.stop()
        assert seen == await scene.read()

    async def test_a_live_query_begins_when_its_store_is_there(self, scene: Scene) -> None:
        """FM5: a query that is opened during an outage is as good as one before it; one that ends fails at once."""
        store = AbsentStore(scene.store)
        store.is_away = True
        queries = TagQueries(scene.log, store, scene.settings)  # type: ignore[arg-type]
        await scene.append("a", 1)
        follower = Follower(queries.events(scene.tag, live=True))
        assert await follower.is_silent(0.05)
        with pytest.raises(Unreachable):
            await anext(queries.events(scene.tag))
        store.is_away = False
        assert ids(await follower.next()) == ["a1"]
        await follower.stop()

    async def test_a_query_that_may_not_write_does_not_end_without_its_events(self, scene: Scene) -> None:
        """FT8: partitions are idle: it waits until they move, and fails after a while; it never leaves events out."""
        (id_, *_), others = ids_on(0, 1), [ids_on(partition, 1)[0] for partition in range(1, 4)]
        await scene.append(id_, 1)
        with pytest.raises(TimedOut, match="read_only"):
            await scene.again(gap_timeout_s=0.2).read(read_only=True)
        reading = asyncio.ensure_future(scene.again(gap_timeout_s=30.0).read(read_only=True))
        for other in others:
            await scene.append(other, 1, [])
        assert ids(await asyncio.wait_for(reading, 30)) == [f"{id_}1"]

    async def test_an_offset_that_the_log_never_held_is_refused(self, scene: Scene) -> None:
        """FT6: in the future, of a place behind the end, of a topic that is not there; what the log gave is taken."""
        await scene.append("a", 1)
        (event,) = await scene.read()
        given = event.tag_offset
        for wrong in (
            given._replace(log_time_ms=given.log_time_ms + 365 * DAY_MS),
            given._replace(offset=given.offset + 1000),
            given._replace(topic_number=given.topic_number + 1000),
        ):
            with pytest.raises(BadArgument, match="after"):
                await scene.read(after=wrong)
        assert await scene.read(after=given) == []

    async def test_a_topic_that_an_old_list_lacks_is_followed_on(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T34: the list of topics may be older than a topic that is followed already, which is not gone for that."""
        old = frozenset(await scene.log.admin.topics())

        async def topics_before(_: SeamReader) -> frozenset[str]:
            return old

        monkeypatch.setattr(SeamReader, "topics", topics_before)
        monkeypatch.setattr(followed, "LOOK_FOR_TOPICS_S", 0.02)
        follower = scene.follow()
        await scene.append("a", 1)
        seen = await follower.next()
        other = await scene.new_topic(partitions=1)
        for number in range(1, 6):
            await scene.append("b", number, topic=other)
            await scene.append("a", number + 1)
            seen += await follower.next(2)
            assert await follower.is_silent(0.03)  # it looks which topics are there
        await follower.stop()
        assert sorted(ids(seen)) == sorted([f"a{n}" for n in range(1, 7)] + [f"b{n}" for n in range(1, 6)])

    @pytest.mark.parametrize("is_replicated", [True, False])
    async def test_a_topic_that_is_made_again_is_followed_again(self, scene: Scene, is_replicated: bool) -> None:
        """FT6: its events come, above all that the old topic of that name had, though their timestamps are older."""
        other = await scene.new_topic(partitions=2)
        follower = scene.follow()
        await scene.append("old", 1, topic=other)
        await scene.append("a", 1)
        if is_replicated:
            await scene.replicate()
        seen = await follower.next(2)
        await scene.log.admin.delete(other)
        await scene.append("a", 2)
        seen += await follower.next(within_s=90)  # a broker may take half a minute to say that it is gone
        await make_again(scene.log, other)
        layout = await scene.layout(other)
        assert layout.generation == 1
        await scene.append("new", 1, topic=other, at_ms=scene.now_ms - 50_000)
        await scene.append("new", 2, topic=other, at_ms=scene.now_ms - 50_000)
        seen += await follower.next(2)
        await scene.append("a", 3)
        seen += await follower.next()
        await follower.stop()
        assert ids(seen)[3:] == ["new1", "new2", "a3"]
        assert [event.tag_offset for event in seen] == sorted(event.tag_offset for event in seen)
        await scene.replicate()
        kept = seen if is_replicated else [event for event in seen if event.id != "old"]
        assert await scene.read() == kept
        assert await scene.read(after=seen[2].tag_offset) == seen[3:]

    async def test_a_new_topic_that_is_replicated_before_it_is_noticed_loses_nothing(self, scene: Scene) -> None:
        """A live query meets a topic whose first event is in the views already: the event comes all the same."""
        follower = scene.follow()
        await scene.append("a", 1)
        seen = await follower.next()
        other = await scene.new_topic(partitions=2)
        await scene.append("new", 1, topic=other)
        await scene.replicate()
        await scene.append("a", 2)
        seen += await follower.next(2)
        await follower.stop()
        assert ids(seen) == ["a1", "new1", "a2"]
        assert await scene.read() == seen

    async def test_a_topic_that_was_not_listed_for_a_moment_is_followed_again(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FT6: a broker that has just started may not know of it yet: that is no reason to forget it."""
        follower = scene.follow()
        await scene.append("a", 1)
        assert ids(await follower.next()) == ["a1"]
        known, looks = scene.log.admin.topics, 0

        async def forgetful() -> Sequence[str]:
            nonlocal looks
            looks += 1
            return [name for name in await known() if name != scene.topic or looks > 2]

        monkeypatch.setattr(scene.log.admin, "topics", forgetful)
        assert await follower.is_silent(0.0)

        async def is_listed_again() -> bool:
            return looks > 2

        await eventually(is_listed_again)
        await scene.append("a", 2)
        assert ids(await follower.next()) == ["a2"]
        await follower.stop()

    async def test_a_topic_that_is_another_one_by_now_is_noticed(self, scene: Scene) -> None:
        """FT6: it was deleted and made again between two looks: the ids tell, and nothing of the new one is missed."""
        other = await scene.new_topic(partitions=1)
        follower = scene.follow()
        await scene.append("old", 1, topic=other)
        await scene.append("a", 1)
        await follower.next(2)
        await scene.log.admin.delete(other)
        await make_again(scene.log, other)
        assert (await scene.layout(other)).generation == 1
        await scene.append("new", 1, topic=other)
        await scene.append("a", 2)
        found = await follower.next(2, within_s=90)
        await follower.stop()
        assert sorted(ids(found)) == ["a2", "new1"]


async def _nobody_follows() -> bool:
    return counted(FEEDS) == 0


async def _all_are_served(scene: Scene) -> bool:
    return scene.queries._sources.partitions.served == MANY * 4


async def make_again(log: Log, topic: str) -> None:
    """Create a topic of a name that was just deleted; a broker needs a moment to let go of it."""

    async def is_made() -> bool:
        try:
            await log.admin.create(topic, partitions=2, config=TopicConfig())
        except HeadraceError:
            return False
        return True

    await eventually(is_made, within_s=30)


class AbsentStore:
    """A store that does not answer while `is_away`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False
        self.refused = 0

    def __getattr__(self, name: str) -> object:
        return _AbsentPart(self, getattr(self._store, name))


class _AbsentPart:
    def __init__(self, store: AbsentStore, part: object) -> None:
        self._store = store
        self._part = part

    def __getattr__(self, name: str) -> object:
        found = getattr(self._part, name)
        if not callable(found):
            return _AbsentPart(self._store, found)
        if self._store.is_away:
            self._store.refused += 1
            raise Unreachable("the store", "it is away")
        return found
