"""Queries over several tags: one order, each event once, from any place on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from tests.suites.tags_setting import Follower, Scene, TagSetting, ids, ids_on, take

from headrace.errors import BadArgument, TagGap
from headrace.model import Event
from headrace.store import TagTime
from headrace.tags import TaggedEvent, TagOffset
from headrace.tags.merge import Merge
from headrace.tags.several import PlaceWatch, merge_tags

__all__ = ["SeveralTagsConformance"]

PIDS = [ids_on(partition, 1)[0] for partition in range(4)]


class SeveralTagsConformance(TagSetting):
    """What a query over several tags promises; it is a merge of the queries of the single tags."""

    async def test_events_of_two_tags_come_in_one_order_each_once(self, scene: Scene) -> None:
        """T34: events of two tags come in the order of their places; one with both tags comes once."""
        tags = (("a",), ("b",), ("a", "b"), ("b", "a"))
        for n in range(1, 9):
            await scene.append(PIDS[n % 4], (n + 3) // 4, tags[n % 4])
        expected = [f"{PIDS[n % 4]}{(n + 3) // 4}" for n in range(1, 9)]
        assert ids(await _read(scene, "a", "b")) == expected  # from the log
        await scene.replicate()
        found = await _read(scene, "a", "b")
        assert ids(found) == expected  # from the views
        assert [event.tag for event in found] == [f"{scene.tag}-{t}" for t in "baaabaaa"]
        assert ids(await _read(scene, "b", "a")) == expected

    async def test_events_of_one_record_are_ordered_by_their_seq_nrs(self, scene: Scene) -> None:
        """T5: numbers differ from tag to tag, so within a record the seq_nr decides, also for a query that goes on."""
        await scene.append("x", [1, 2, 3], ["a"])
        await _append_mixed(scene, "x", [(4, "b"), (5, "a"), (6, "b"), (7, "a")])
        for _ in range(2):
            found = await _read(scene, "a", "b")
            assert [event.seq_nr for event in found] == [1, 2, 3, 4, 5, 6, 7]
            for index, event in enumerate(found):
                rest = await _read(scene, "a", "b", after=str(event.tag_offset))
                assert [each.seq_nr for each in rest] == list(range(index + 2, 8))
            await scene.replicate()

    async def test_a_live_query_waits_for_the_tag_that_is_silent(self, scene: Scene) -> None:
        """T34: an event is given once the other tag's query has passed its place, without an event of the other tag."""
        follower = _follow(scene, "a", "b")
        await scene.append(PIDS[0], 1, ["a"])
        assert ids(await follower.next()) == [f"{PIDS[0]}1"]
        await scene.append(PIDS[1], 1, ["b"])
        await scene.append(PIDS[2], 1, ["a", "b"])
        await scene.append(PIDS[3], 1, ["c"])
        assert ids(await follower.next(2)) == [f"{PIDS[1]}1", f"{PIDS[2]}1"]
        await scene.replicate()
        await scene.append(PIDS[0], 2, ["b"])
        assert ids(await follower.next()) == [f"{PIDS[0]}2"]
        assert await follower.is_silent(0.1)
        await follower.stop()

    async def test_a_query_that_has_given_all_can_still_be_asked(self, scene: Scene) -> None:
        """T34: what is written below a place that is asked for is given before the place counts as passed.

        The tags' queries end at different moments. A query from the later end would miss what the other tag got
        between the two.
        """
        await scene.append(PIDS[0], 1, ["a"])
        watch = PlaceWatch()
        follower = Follower(scene.queries.watched(f"{scene.tag}-a", None, watch, live=False))
        assert ids(await follower.next()) == [f"{PIDS[0]}1"]
        assert await follower.is_silent(0.05)
        await _until(lambda: watch.is_spent)
        at = await scene.append(PIDS[2], 1, ["a"])
        await scene.append(PIDS[3], 1, ["a"], at_ms=scene.now_ms + 5000)
        assert await follower.is_silent(0.05)  # a query that ends gives nothing that was written later
        watch.want(TagTime(scene.now_ms + 1, 0, 0, at.offset))
        assert ids(await follower.next()) == [f"{PIDS[2]}1"]
        assert await follower.is_silent(0.05)
        await _until(lambda: watch.passed.log_time_ms == scene.now_ms + 1)
        await follower.stop()

    async def test_a_query_that_has_given_all_rests_until_it_is_asked(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T34: an event that was written after it began, and that nothing holds up, does not keep it busy."""
        passes = 0
        wait = Merge._wait

        async def count(merge: Merge) -> None:
            nonlocal passes
            passes += 1
            assert passes < 1000, "it goes round without a rest"
            await wait(merge)

        await scene.append(PIDS[0], 1, ["a"])
        watch = PlaceWatch()
        follower = Follower(scene.queries.watched(f"{scene.tag}-a", None, watch, live=False))
        assert ids(await follower.next()) == [f"{PIDS[0]}1"]
        assert await follower.is_silent(0.01)
        await _until(lambda: watch.is_spent)
        monkeypatch.setattr(Merge, "_wait", count)
        at = await scene.append(PIDS[0], 2, ["a"])
        place = TagTime(scene.now_ms, 0, 0, at.offset)
        for pid in PIDS:
            await scene.append(pid, 3, ["c"], at_ms=scene.now_ms + 1000)
        live = scene.again().follow("c")  # in another process: Marks of its own would move the end of the query
        assert len(await live.next(4)) == 4  # all partitions have been read
        await live.stop()
        assert await follower.is_silent(0.05)
        watch.want(place._replace(log_time_ms=place.log_time_ms + 1))
        assert ids(await follower.next()) == [f"{PIDS[0]}2"]
        assert await follower.is_silent(0.01)
        await _until(lambda: watch.passed.log_time_ms == place.log_time_ms + 1)
        await follower.stop()

    async def test_a_query_that_ends_gives_what_comes_before_its_last_event(self, scene: Scene) -> None:
        """T34: a tag whose query has ended is asked again before an event of the other tag is given."""
        events = dict(enumerate(await self._some_events(scene), 1))

        async def query(tag: str, _: TagOffset | None, watch: PlaceWatch) -> AsyncGenerator[TaggedEvent, None]:
            if tag == "b":
                yield events[3]
            watch.report_spent()
            asked = asyncio.Event()
            watch.on_want = asked.set
            if watch.wanted is None:
                await asked.wait()
            if tag == "a":
                yield events[2]  # it was written after the query of the tag had ended
            watch.report_passed(events[3].tag_offset.time)
            await asyncio.Event().wait()

        async with asyncio.timeout(5):
            found = [event async for event in merge_tags(("a", "b"), None, query)]
        assert [event.seq_nr for event in found] == [2, 3]

    async def _some_events(self, scene: Scene) -> list[TaggedEvent]:
        for n in range(1, 4):
            await scene.append("x", n)
        return await scene.read()

    async def test_topics_share_the_order(self, scene: Scene) -> None:
        """T34: events of two tags in two topics come in the order of their log times; a new topic is found."""
        other = await scene.new_topic(partitions=2)
        await _read(scene, "a", "b")  # settles where the topics begin
        follower = _follow(scene, "a", "b")
        for n in range(1, 5):
            await scene.append("x", n, ["a"])
            await scene.append("y", n, ["b"], topic=other)
        assert ids(await follower.next(8)) == [f"{id_}{n}" for n in range(1, 5) for id_ in "xy"]
        third = await scene.new_topic(partitions=1)
        await scene.append("z", 1, ["b"], topic=third)
        assert ids(await follower.next()) == ["z1"]
        await follower.stop()

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_history_is_read_alike_from_any_place_on(self, scene: Scene, seed: int) -> None:
        """T34: whatever is replicated, and wherever a query begins again, the events are those of one plain order."""
        dice = random.Random(seed)
        follower, heard = _follow(scene, "a", "b", "c"), 0
        last: dict[str, int] = {}
        expected: set[str] = set()
        for _ in range(12):
            for _ in range(dice.randint(1, 6)):
                pid = dice.choice(PIDS)
                first = last.get(pid, 0) + 1
                last[pid] = first + dice.randint(0, 2)
                mixed = [(n, dice.choice(["a", "b", "c", "ab", "abc", "d"])) for n in range(first, last[pid] + 1)]
                expected |= {f"{pid}{n}" for n, tags in mixed if tags != "d"}
                await _append_mixed(scene, pid, mixed, at_ms=scene.now_ms + dice.randint(-30, 30))
                scene.now_ms += 5
            if dice.random() < 0.4:
                await scene.replicate()
            heard += len(await follower.next(len(expected) - heard))
        whole = await _read(scene, "a", "b", "c")
        assert sorted(ids(whole)) == sorted(expected)
        assert [event.tag_offset for event in whole] == sorted(event.tag_offset for event in whole)
        assert heard == len(expected)
        await follower.stop()
        for event in dice.sample(whole, 6):
            rest = await _read(scene, "a", "b", "c", after=event.tag_offset)
            assert ids(rest) == ids(whole[whole.index(event) + 1 :])
        assert ids(await take(scene.queries.events(_names(scene, "c", "b", "a"), live=True), 5)) == ids(whole[:5])

    async def test_a_slow_reader_holds_up_no_more_than_some_events(self, scene: Scene) -> None:
        """T4: a consumer that takes two gets two; the rest is not read into memory."""
        await scene.append("x", range(1, 1001), ["a"])
        await scene.append("y", range(1, 1001), ["b"])
        await scene.replicate()
        events = scene.queries.events(_names(scene, "a", "b"))
        assert ids([await anext(events) for _ in range(2)]) == ["x1", "x2"]
        found = [event async for event in events]
        assert len(found) == 1998

    async def test_what_ends_one_query_ends_all(self, scene: Scene) -> None:
        """T11: an event that is missing under one tag fails the query, after what comes before it."""
        await scene.append("x", [1, 2, 3], ["a"])
        await scene.append("y", 1, ["b"])
        await scene.replicate()
        views = scene.store.tags.views
        name = f"{scene.tag}-a"
        rows = [row for ms in await views.buckets(name) async for page in views.read(name, ms) for row in page]
        await views.delete([rows[1]], at=rows[2].place._replace(offset=rows[2].offset + 1))
        with pytest.raises(TagGap, match="expected 2, found 3"):
            await _read(scene, "a", "b")

    @pytest.mark.parametrize("wrong", [(), ("",), ("a", ""), ("a", 3), (["a"],), b"ab", 7])
    async def test_what_can_be_no_tags_is_refused(self, scene: Scene, wrong: Any) -> None:
        """The error names the argument; nothing is read."""
        with pytest.raises(BadArgument, match="tag"):
            scene.queries.events(wrong)

    async def test_an_offset_without_a_seq_nr_is_refused(self, scene: Scene) -> None:
        """A text of the first version counts by one tag's numbers, which say nothing about another tag's."""
        with pytest.raises(BadArgument, match="six numbers"):
            scene.queries.events(("a", "b"), after=str(TagOffset(5, 0, 0, 0, 3)))
        assert await _read(scene, "a", "b", after=TagOffset.at(5)) == []

    async def test_a_query_can_be_cancelled_at_any_moment(self, scene: Scene) -> None:
        """Nothing is left running: no task of a query that was given up."""
        await scene.append("x", [1, 2, 3], ["a"])
        before = len(asyncio.all_tasks())
        for turns in range(0, 40, 3):
            reading = asyncio.create_task(_read(scene, "a", "b"))
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        async with asyncio.timeout(5):
            while len(asyncio.all_tasks()) > before + 1:  # noqa: ASYNC110 - one that writes Marks may be at it
                await asyncio.sleep(0.01)


def _names(scene: Scene, *tags: str) -> tuple[str, ...]:
    return scene.tags(tags)


async def _read(scene: Scene, *tags: str, **options: Any) -> list[TaggedEvent]:
    return [event async for event in scene.queries.events(_names(scene, *tags), **options)]


def _follow(scene: Scene, *tags: str) -> Follower:
    return Follower(scene.queries.events(_names(scene, *tags), live=True))


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _append_mixed(scene: Scene, id_: str, events: Sequence[tuple[int, str]], *, at_ms: int | None = None) -> None:
    """Append one record whose events have tags of their own."""
    made = [Event(seq_nr, None, scene.tags(tuple(tags))) for seq_nr, tags in events]
    await scene.append_events(id_, made, at_ms=at_ms)
