"""Queries by tag: what they give, in which order, where they go on and where they stop."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from tests.suites.tags_scattering import ScatteredStore, WriteTimedOut, last_rows
from tests.suites.tags_setting import DAY_MS, Scene, TagSetting, ids, ids_on, numbers_of, take

from headrace.errors import BadArgument, TagGap, TagsDisabled, WrongBucketSize
from headrace.model import Bounds, TopicPartition
from headrace.tags import TagOffset
from headrace.testing.conformance.store_rows import counted
from headrace.testing.plugin import Size

__all__ = ["TagQueryConformance"]

MARKS = "headrace_tags_marks_total"


class TagQueryConformance(TagSetting):
    """The T lines."""

    @pytest.mark.parametrize("is_replicated", [True, False])
    async def test_current_queries_give_what_is_there_and_complete(self, scene: Scene, is_replicated: bool) -> None:
        """T1: green gives a2, a4, b2; black gives b1; apple gives a2; replicated or not."""
        await scene.append("a", 1, [], payload="hello")
        await scene.append("a", 2, ["green", "apple"], payload="green apple")
        await scene.append("b", 1, ["black"], payload="black car")
        await scene.append("a", 3, [], payload="x")
        await scene.append("a", 4, ["green"], payload="green banana")
        await scene.append("b", 2, ["green"], payload="green leaf")
        if is_replicated:
            await scene.replicate()
        green = await scene.read("green")
        assert ids(green) == ["a2", "a4", "b2"]
        assert [event.payload for event in green] == ["green apple", "green banana", "green leaf"]
        assert [event.number for event in green] == [1, 2, 1]
        assert ids(await scene.read("black")) == ["b1"]
        assert ids(await scene.read("apple")) == ["a2"]

    async def test_an_unknown_tag_is_empty(self, scene: Scene) -> None:
        """T2: a current query completes at once; a live one neither emits nor completes."""
        await scene.append("a", 1, ["known"])
        assert await scene.read("unknown") == []
        follower = scene.follow("unknown")
        assert await follower.is_silent()
        await follower.stop()

    async def test_a_current_query_does_not_see_what_is_written_after_its_start(self, scene: Scene) -> None:
        """T3: what is written while it runs is not seen, in its own partition or another's."""
        for n in range(1, 4):
            await scene.append("a", n)
        events = scene.queries.events(scene.tag)
        first = await anext(events)
        for id_ in ("a", "b", "c", "d", "e"):
            await scene.append(id_, 4 if id_ == "a" else 1)
        assert [first.seq_nr, *[event.seq_nr async for event in events]] == [1, 2, 3]

    async def test_a_consumer_gets_as_much_as_it_asks_for(self, scene: Scene) -> None:
        """T4: two of four, then the rest, with pages of three; few pages are fetched ahead."""
        for n in range(1, 5):
            await scene.append("a", n)
        await scene.replicate()
        paged = scene.again(page_size=3)
        events = paged.queries.events(scene.tag)
        assert ids([await anext(events), await anext(events)]) == ["a1", "a2"]
        assert ids([event async for event in events]) == ["a3", "a4"]

    async def test_an_end_between_two_appends_hides_nothing(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T4, T5: partitions' ends are found one by one; an event behind one of them comes before later ones of others.

        As it does behind the end of an open transaction. All are replicated while the query reads the views.
        """
        paged = scene.again(page_size=3)
        for n in range(1, 9):
            await scene.append("a", n)
        await scene.read()  # the Marks that it needs are written now
        await scene.replicate()
        asked: list[TopicPartition] = []
        bounds = scene.log.bounds

        async def bounds_beside_a_writer(at: TopicPartition) -> Bounds:
            if at.topic == scene.topic and at not in asked:
                asked.append(at)
                if len(asked) == 4:  # the query knows the ends of the three other partitions
                    await scene.append(ids_on(asked[0].partition, 1)[0], 1, at_ms=scene.now_ms + 10)
                    await scene.append(ids_on(at.partition, 1)[0], 1, at_ms=scene.now_ms + 20)
            return await bounds(at)

        events = paged.queries.events(scene.tag)
        monkeypatch.setattr(scene.log, "bounds", bounds_beside_a_writer)
        given = [await anext(events)]
        assert len(asked) == 4
        await scene.read()
        await scene.replicate()
        given += [event async for event in events]
        behind, last = ids_on(asked[0].partition, 1)[0], ids_on(asked[3].partition, 1)[0]
        assert ids(given) == [f"a{n}" for n in range(1, 9)] + [f"{behind}1", f"{last}1"]
        assert given == await scene.read()

    @pytest.mark.parametrize("is_replicated", [True, False])
    async def test_resuming_is_exclusive(self, scene: Scene, is_replicated: bool) -> None:
        """T5: from an event's offset, or its text, comes what follows; from a time, its millisecond too."""
        for n in range(1, 6):
            await scene.append("a" if n % 2 else "b", (n + 1) // 2)
        if is_replicated:
            await scene.replicate()
        whole = await scene.read()
        assert len(whole) == 5
        for at, event in enumerate(whole):
            assert await scene.read(after=event.tag_offset) == whole[at + 1 :]
            assert await scene.read(after=str(event.tag_offset)) == whole[at + 1 :]
            moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=event.tag_offset.log_time_ms)
            assert await scene.read(after=moment) == whole[at:]

    async def test_events_of_one_record_are_told_apart(self, scene: Scene) -> None:
        """T5: resuming in the middle of a record gives the rest of it."""
        await scene.append("a", [1, 2, 3])
        for _ in range(2):
            whole = await scene.read()
            assert [event.number for event in whole] == [1, 2, 3]
            assert await scene.read(after=whole[1].tag_offset) == whole[2:]
            await scene.replicate()

    @pytest.mark.parametrize("text", ["", "1:2:3", "a:b:c:d:e", "1:2:3:4:5:6:7"])
    async def test_what_is_no_offset_is_refused(self, scene: Scene, text: str) -> None:
        """The error names the argument."""
        with pytest.raises(BadArgument, match="after"):
            await scene.read(after=text)

    async def test_buckets_far_apart_are_walked_without_asking_empty_ones(self, scene: Scene) -> None:
        """T6: days apart and in order, few questions; live adds two more."""
        days = scene.now_ms - 5 * DAY_MS
        stamps = [days, days + 3_600_000, days + DAY_MS, days + 4 * DAY_MS]
        for n, at_ms in enumerate(stamps, 1):
            await scene.append("a", n, at_ms=at_ms)
        await scene.replicate()
        assert ids(await scene.read()) == ["a1", "a2", "a3", "a4"]  # the Marks it needs are written now
        await scene.replicate()
        before = counted("headrace_store_pages_total")
        follower = scene.follow()
        assert ids(await follower.next(4)) == ["a1", "a2", "a3", "a4"]
        assert counted("headrace_store_pages_total") - before < 40  # 97 hours lie in between
        await scene.append("a", 5)
        await scene.append("a", 6)
        assert ids(await follower.next(2)) == ["a5", "a6"]
        await follower.stop()

    async def test_one_pid_is_in_order_without_duplicates(self, scene: Scene) -> None:
        """T8: 100, then 100 more from one pid: 1 to 200."""
        for n in range(1, 101):
            await scene.append("a", n)
        follower = scene.follow()
        first = await follower.next(100)
        await scene.replicate()
        for n in range(101, 201):
            await scene.append("a", n)
        rest = await follower.next(100)
        await follower.stop()
        assert [event.seq_nr for event in first + rest] == list(range(1, 201))
        assert [event.number for event in first + rest] == list(range(1, 201))

    async def test_many_events_come_in_order(self, scene: Scene, size: Size) -> None:
        """T9: 5019 events, all, in order, from the views and from the log."""
        many = size(1019, 5019)
        for first in range(1, many + 1, 20):
            await scene.append("a", range(first, min(first + 20, many + 1)))
        assert [event.seq_nr for event in await scene.read()] == list(range(1, many + 1))
        await scene.replicate()
        assert [event.seq_nr for event in await scene.read()] == list(range(1, many + 1))

    async def test_a_gap_is_waited_for(self, scene: Scene) -> None:
        """T10: 1, 2 of p1, 1 of p2, 4 of p1: silence after three; 3 is written: 3, then 4."""
        await self._rows(scene, [("p1", 1), ("p1", 2), ("p2", 1), (None, 0), ("p1", 4)])
        follower = scene.again(gap_timeout_s=30.0).follow()
        assert ids(await follower.next(3)) == ["p11", "p12", "p21"]
        assert await follower.is_silent()
        await scene.put_row("p1", 3, scene.now_ms + 4, offset=4)
        assert ids(await follower.next(2)) == ["p13", "p14"]
        await follower.stop()

    async def test_a_gap_that_stays_fails_the_query(self, scene: Scene) -> None:
        """T11: a typed error names pid, tag, expected and found, after the time-out."""
        await self._rows(scene, [("p1", 1), (None, 0), ("p1", 3)])
        follower = scene.again(gap_timeout_s=0.3).follow()
        assert ids(await follower.next()) == ["p11"]
        with pytest.raises(TagGap) as failed:
            await follower.next()
        error = failed.value
        assert (error.pid, error.tag, error.expected, error.found) == ("p1", scene.tag, 2, 3)
        assert "headrace tags rebuild" in str(error)
        await follower.stop()

    async def test_from_the_start_of_time_the_first_number_is_1(self, scene: Scene) -> None:
        """T14: 3 is seen first: held; 2: held; 1: 1, 2, 3."""
        await self._rows(scene, [("p2", 3)], first=3)
        follower = scene.again(gap_timeout_s=30.0).follow()
        assert await follower.is_silent()
        await scene.put_row("p2", 2, scene.now_ms + 2, offset=2)
        assert await follower.is_silent()
        await scene.put_row("p2", 1, scene.now_ms + 1, offset=1)
        assert [event.number for event in await follower.next(3)] == [1, 2, 3]
        await follower.stop()

    async def test_from_a_past_bucket_the_first_number_seen_is_the_first(self, scene: Scene) -> None:
        """T16: number 10 two buckets ago, 11 now: both, without any search."""
        old_ms = scene.now_ms - 2 * 3_600_000
        await scene.put_row("p1", 10, old_ms, offset=1)
        await scene.put_row("p1", 11, scene.now_ms, offset=2)
        await scene.say_replicated(5, scene.now_ms + 10)
        before = counted("headrace_tags_gaps_total")
        found = await scene.again().read(after=TagOffset.at(old_ms - 1))
        assert [event.number for event in found] == [10, 11]
        assert counted("headrace_tags_gaps_total") == before

    async def test_in_the_current_bucket_the_lowest_numbers_are_looked_for_first(self, scene: Scene) -> None:
        """T17: rows that stand in a wrong order are scanned for the lowest number of each pid before delivery."""
        await scene.put_row("p1", 6, scene.now_ms + 1, offset=1)
        await scene.put_row("p1", 5, scene.now_ms + 2, offset=2)
        await scene.put_row("p2", 9, scene.now_ms + 3, offset=3)
        await scene.say_replicated(5, scene.now_ms + 10)
        found = await scene.again().read(after=TagOffset.at(scene.now_ms))
        assert [(event.id, event.number) for event in found] == [("p1", 5), ("p1", 6), ("p2", 9)]

    @pytest.mark.parametrize("many", [1, 3, 5])
    async def test_a_query_that_goes_on_while_a_batch_is_being_written_misses_nothing(
        self, scene: Scene, many: int
    ) -> None:
        """FT1: some rows of a batch are there, later ones before earlier ones, and the rest is not: all come, once."""
        for n in range(1, 4):
            await scene.append("a", n)
        await scene.replicate()
        whole = await scene.read()
        for n in range(4, 10):
            await scene.append("a", n)
        broken = ScatteredStore(scene.store, last_rows(many))
        with pytest.raises(WriteTimedOut):
            await scene.on(broken).replicate()  # type: ignore[arg-type]
        found = await scene.again().read(after=whole[-1].tag_offset)
        assert ids(found) == ["a4", "a5", "a6", "a7", "a8", "a9"]
        follower = scene.again().follow(after=whole[-1].tag_offset)
        assert await follower.next(2) == found[:2]
        await scene.again().replicate()
        assert await follower.next(4) == found[2:]
        await follower.stop()

    async def test_too_many_missing_fail_at_once(self, scene: Scene) -> None:
        """T18: 1, then 10 000: fails at once, saying that 9998 are missing."""
        await scene.put_row("p1", 1, scene.now_ms + 1, offset=1)
        await scene.put_row("p1", 10_000, scene.now_ms + 2, offset=2)
        await scene.say_replicated(5, scene.now_ms + 10)
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(TagGap, match="9998"):
            await scene.again(gap_timeout_s=60.0).read()
        assert asyncio.get_running_loop().time() - started_s < 20

    async def test_a_delayed_row_is_found(self, scene: Scene) -> None:
        """T19: p1e2, stamped before the delivered p2e1, comes late, with p1e3: e2, e3."""
        await self._rows(scene, [("p1", 1), (None, 0), ("p2", 1)])
        follower = scene.follow()
        assert ids(await follower.next(2)) == ["p11", "p21"]
        await follower.stop()
        await scene.put_row("p1", 2, scene.now_ms + 2, offset=2)
        later = scene.again()
        await later.put_row("p1", 3, scene.now_ms + 8, offset=8)
        await later.say_replicated(9, scene.now_ms + 10)
        assert ids(await later.read()) == ["p11", "p12", "p21", "p13"]

    async def test_what_lies_before_the_offset_is_not_given(self, scene: Scene) -> None:
        """T21: from A1's offset, B1 before it, B2 after: only B2."""
        await scene.append("b", 1)
        await scene.append("a", 1)
        await scene.append("b", 2)
        for _ in range(2):
            whole = await scene.read()
            assert ids(whole) == ["b1", "a1", "b2"]
            assert ids(await scene.read(after=whole[1].tag_offset)) == ["b2"]
            await scene.replicate()

    async def test_timestamps_that_run_backwards_lose_nothing(self, scene: Scene, size: Size) -> None:
        """T23: 170 pids whose timestamps run backwards: in log-time order, none lost, the same before and after."""
        many = size(60, 170)
        for n in range(many):
            await scene.append(f"pid{n}", 1, at_ms=scene.now_ms - n * 1000)
        before = await scene.read()
        await scene.replicate()
        after = await scene.read()
        assert sorted(event.id for event in before) == sorted(f"pid{n}" for n in range(many))
        assert [event.tag_offset for event in before] == sorted(event.tag_offset for event in before)
        assert before == after

    async def test_past_days_and_a_busy_minute(self, scene: Scene) -> None:
        """T25: two pids, 1 to 3 on three past days, 4 to 100 within one minute today: 200, and complete."""
        for day in range(3, 0, -1):
            for id_ in ("p", "q"):
                await scene.append(id_, 4 - day, at_ms=scene.now_ms - day * DAY_MS)
        for n in range(4, 101):
            for id_ in ("p", "q"):
                await scene.append(id_, n)
            if n == 50:
                await scene.replicate()
        found = await scene.read()
        assert numbers_of(found, "p") == numbers_of(found, "q") == list(range(1, 101))

    async def test_disabled_tags_fail_with_a_clear_error(self, scene: Scene) -> None:
        """T33: queries name the setting; journals are replicated as before."""
        await scene.append("a", 1)
        with pytest.raises(TagsDisabled, match=r"tags\.enabled"):
            await scene.again(enabled=False).read()

    async def test_the_head_is_followed_before_replication_and_once(self, scene: Scene) -> None:
        """T35: events are seen unreplicated, once, and in the order that the views show later."""
        follower = scene.follow()
        for n in range(1, 11):
            for id_ in ("a", "b", "c"):
                await scene.append(id_, n)
        seen = await follower.next(30)
        await scene.replicate()
        for id_ in ("a", "b", "c"):
            await scene.append(id_, 11)
        seen += await follower.next(3)
        assert await follower.is_silent()
        await follower.stop()
        await scene.replicate()
        assert seen == await scene.read()

    async def test_a_void_append_is_seen_by_no_query(self, scene: Scene) -> None:
        """T35: what the fold makes void has no place under a tag, replicated or not; numbers go on."""
        await scene.append("a", 1, expected=0)
        await scene.append("a", 2, expected=0)
        await scene.append("a", 1)
        await scene.append("a", 2, expected=1)
        for _ in range(2):
            assert [(event.seq_nr, event.number) for event in await scene.read()] == [(1, 1), (2, 2)]
            await scene.replicate()

    async def test_another_bucket_size_is_refused(self, scene: Scene) -> None:
        """T36: a start with another size names both."""
        await scene.read()
        with pytest.raises(WrongBucketSize) as refused:
            await scene.again(bucket="DAY").read()
        assert "HOUR" in str(refused.value)
        assert "DAY" in str(refused.value)

    async def test_a_quiet_system_writes_no_marks(self, scene: Scene) -> None:
        """T34: Marks are written for events that wait, and counted; without events there are none."""
        await scene.append("a", 1)
        follower = scene.follow()
        await follower.next()
        assert await follower.is_silent(0.5)  # a Mark is counted when it is acknowledged, which may be after it is read
        quiet = counted(MARKS)
        assert quiet > 0
        assert await follower.is_silent(1.5)
        assert counted(MARKS) == quiet
        await scene.append("z", 1, [])
        assert await follower.is_silent(0.3)
        assert counted(MARKS) == quiet
        await follower.stop()

    @pytest.mark.parametrize("is_all", [True, False])
    async def test_nothing_is_delivered_above_what_every_partition_was_read_up_to(
        self, scene: Scene, is_all: bool
    ) -> None:
        """T34: with Marks forbidden, to all queries or one, an event waits until all partitions have moved past it."""
        from headrace.tags import TagQueries

        a, b, c, d = (ids_on(partition, 1)[0] for partition in range(4))
        reader = TagQueries(scene.log, scene.store, scene.settings, read_only=is_all)
        await scene.append(a, 1)
        events = reader.events(scene.tag, live=True, read_only=not is_all)
        waiting = asyncio.ensure_future(anext(events))
        for id_ in (b, c):
            await scene.append(id_, 1, [])
        assert not (await asyncio.wait([waiting], timeout=0.3))[0]
        await scene.append(d, 1, [])
        assert (await asyncio.wait_for(waiting, 20)).id == a
        await events.aclose()

    async def test_a_new_topic_joins_a_running_query(self, scene: Scene) -> None:
        """T34: events of a topic that was made later come after what was delivered, in the same order after all."""
        follower = scene.follow()
        await scene.append("a", 1)
        seen = await follower.next()
        other = await scene.new_topic(partitions=2)
        await scene.append("b", 1, topic=other, at_ms=scene.now_ms - 50_000)
        await scene.append("a", 2)
        seen += await follower.next(2)
        await follower.stop()
        await scene.replicate()
        assert await scene.read() == seen
        assert sorted(ids(seen)) == ["a1", "a2", "b1"]

    async def test_topics_that_are_found_together_keep_the_order_of_their_times(self, scene: Scene) -> None:
        """T34: an event that was written first comes first, whichever of the new topics it is in."""
        first_ms = max(scene.now_ms, await scene.floor_ms()) + 1  # below the floor all times are the same
        topics = [await scene.new_topic(partitions=1) for _ in range(5)]
        for n, topic in enumerate(sorted(topics, reverse=True)):
            await scene.append(f"j{n}", 1, topic=topic, at_ms=first_ms + n)
        assert ids(await scene.read()) == [f"j{n}1" for n in range(5)]

    async def test_a_topic_that_is_deleted_holds_nobody_up(self, scene: Scene) -> None:
        """T34: a running query goes on without it, and what it had given under the tag stays."""
        other = await scene.new_topic(partitions=2)
        await scene.append("b", 1, topic=other)
        await scene.append("a", 1)
        await scene.replicate()
        follower = scene.follow()
        seen = await follower.next(2)
        await scene.log.admin.delete(other)
        scene.topics.remove(other)
        await scene.append("a", 2)
        seen += await follower.next(within_s=90)  # a broker may take half a minute to say that it is gone
        await follower.stop()
        assert sorted(ids(seen)) == ["a1", "a2", "b1"]
        assert await scene.read() == seen

    async def test_stopping_early_leaves_nothing_running(self, scene: Scene) -> None:
        """T4: a reader that stops after one event stops the reading of the log too."""
        for n in range(1, 4):
            await scene.append("a", n)
        assert ids(await take(scene.queries.events(scene.tag, live=True), 1)) == ["a1"]
        running = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in running if name.startswith("headrace-tag-head")]

    async def _rows(self, scene: Scene, rows: list[tuple[str | None, int]], *, first: int = 1) -> None:
        """Write rows by hand, one a millisecond; None leaves a place free."""
        await scene.append(f"other-{uuid.uuid4().hex}", 1, [])
        for n, (pid, number) in enumerate(rows, first):
            if pid is not None:
                await scene.put_row(pid, number, scene.now_ms + n, offset=n)
        await scene.say_replicated(len(rows) + first, scene.now_ms + 10)
