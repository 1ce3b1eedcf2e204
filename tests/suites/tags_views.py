"""Writing the views by tag, and what survives crashes, replays, rivals and lost tables."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.suites.journal_setting import records_of, replicate
from tests.suites.tags_scattering import ScatteredStore, WriteTimedOut, last_rows
from tests.suites.tags_setting import Scene, TagSetting, ids, numbers_of

from headrace.errors import IntegrityBroken, TagGap, TagsInUse, TagViewsLost
from headrace.journal import grow_topic, replicate_batch
from headrace.journal.quarantine import pass_verdict
from headrace.model import NewRecord, Record, TopicPartition, partition_of
from headrace.protocol.actions import Append, Delete, Purge
from headrace.protocol.headers import encode_action
from headrace.store import Place, Store, TagNumber, TagRow
from headrace.tags import Bucket, TagRepair, TagWriter, UntaggedViews
from headrace.tags.registry import FillState, TagFill, TagRegistry
from headrace.testing.conformance.store_rows import counted
from headrace.testing.crashes import SimulatedCrash, crash_at
from headrace.testing.plugin import Size

__all__ = ["TABLES", "TagLossConformance", "TagRepairConformance", "TagViewConformance", "view_of"]

HOUR_MS = 3_600_000
TABLES = ("tag_views", "tag_views_buckets", "tag_views_progress")
STEPS = ("tags.before-progress", "tags.after-progress", "replicate.after-views", "replicate.before-meta",
         "replicate.before-deletions", "replicate.after-key", "replicate.before-offset")  # fmt: skip


class TagViewConformance(TagSetting):
    """The W and X lines."""

    async def test_pids_share_a_bucket_and_have_their_own_numbers(self, scene: Scene) -> None:
        """W1, W2, W4: two pids over three buckets: rows by bucket, progress by pid, after the rows."""
        stamps = [scene.now_ms - (2 - hour) * HOUR_MS for hour in range(3)]
        for n, at_ms in enumerate(stamps, 1):
            for id_ in ("a", "b"):
                await scene.append(id_, n, at_ms=at_ms)
        await scene.replicate()
        rows = await view_of(scene)
        floor_ms = await scene.floor_ms()  # above the stamps where other topics have been in use before
        assert {row.bucket_ms for row in rows} == {Bucket.HOUR.start_of(max(floor_ms, at_ms)) for at_ms in stamps}
        assert [(row.pid, row.number) for row in rows] == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)]
        for id_ in ("a", "b"):
            assert (await scene.store.tags.numbers.of(scene.topic, id_))[scene.tag].number == 3

    async def test_numbers_go_on_from_progress(self, scene: Scene) -> None:
        """W7: progress says seq_nr 100, number 10: event 101 gets number 11."""
        await scene.read()
        known = TagNumber(topic=scene.topic, pid="a", tag=scene.tag, seq_nr=100, number=10, generation=0, offset=0)
        await scene.append("a", 1, [])
        await scene.store.tags.numbers.write([known])
        await scene.append("a", 101)
        await scene.replicate()
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(101, 11)]

    async def test_a_failed_row_write_is_made_good_before_newer_rows(self, scene: Scene) -> None:
        """W10: the batch fails, nothing after it is written; the next try writes the same rows first."""
        await scene.append("a", 1)
        broken = _FailingStore(scene.store, "views")
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await _apply(scene, broken)  # type: ignore[arg-type]
        assert await scene.store.reader.replicated(await _home(scene, "a")) is None
        await scene.append("a", 2)
        await scene.replicate()
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(1, 1), (2, 2)]

    async def test_a_failed_progress_write_holds_the_offset(self, scene: Scene) -> None:
        """W11, X5: rows written, progress lost: the offset stays, the replay gives the same rows and numbers."""
        for n in range(1, 5):
            await scene.append("a", n)
        broken = _FailingStore(scene.store, "numbers")
        with pytest.raises(ConnectionError):
            await _apply(scene, broken)  # type: ignore[arg-type]
        assert await scene.store.reader.replicated(await _home(scene, "a")) is None
        first = await view_of(scene)
        await scene.append("a", 5)
        await scene.replicate()
        assert (await view_of(scene))[:4] == first
        assert [row.number for row in await view_of(scene)] == [1, 2, 3, 4, 5]

    async def test_untagged_events_cost_nothing_and_ten_tags_make_ten_rows(self, scene: Scene) -> None:
        """W14: no rows and no numbers for untagged events; ten independent numbers for ten tags."""
        before = counted("headrace_store_tag_rows_written_total")
        for n in range(1, 4):
            await scene.append("a", n, [])
        await scene.replicate()
        assert counted("headrace_store_tag_rows_written_total") == before
        await scene.append("a", 4, [str(tag) for tag in range(9)])
        await scene.append("a", 5, [str(tag) for tag in range(10)])
        await scene.replicate()
        assert counted("headrace_store_tag_rows_written_total") == before + 19
        numbers = await scene.store.tags.numbers.of(scene.topic, "a")
        assert [numbers[f"{scene.tag}-{tag}"].number for tag in range(10)] == [2] * 9 + [1]

    async def test_a_tag_that_is_given_twice_counts_once(self, scene: Scene) -> None:
        """W14: an event has one place under a tag."""
        await scene.append("a", 1, ["x", "x"])
        await scene.append("a", 2, ["x"])
        for _ in range(2):
            assert [event.number for event in await scene.read("x")] == [1, 2]
            await scene.replicate()

    @pytest.mark.parametrize("step", STEPS)
    async def test_a_crash_between_any_two_steps_changes_nothing(self, scene: Scene, step: str) -> None:
        """X4, X5: killed with e4 in flight, then e5, e6: 1 to 6, e4 with number 4; queries see it so all along."""
        for n in range(1, 4):
            await scene.append("a", n)
        await scene.replicate()
        await scene.append("a", 4)
        with pytest.raises(SimulatedCrash), crash_at(step):
            await scene.replicate()
        again = scene.again()
        assert [event.number for event in await again.read()] == [1, 2, 3, 4]
        await scene.append("a", 5)
        assert [event.number for event in await again.read()] == [1, 2, 3, 4, 5]
        await again.replicate()
        await scene.append("a", 6)
        await again.replicate()
        found = await again.read()
        assert [(event.seq_nr, event.number) for event in found] == [(n, n) for n in range(1, 7)]

    async def test_rows_are_written_before_progress_before_the_journal_before_the_offset(self, scene: Scene) -> None:
        """X5: "rows lost, progress written" can't happen: the order of the writes, as the store sees it."""
        await scene.append("a", 1)
        seen: list[str] = []
        await _apply(scene, _FailingStore(scene.store, "", seen))  # type: ignore[arg-type]
        order = [name for name in seen if name in ("views", "numbers", "write_journals", "move_replicated")]
        assert order == [
            "views",
            "numbers",
            "write_journals",
            "move_replicated",
        ]  # rows before heads: the port's promise

    async def test_restarts_lose_nothing(self, scene: Scene, size: Size) -> None:
        """X3: ten restarts, 100 events each: all in order."""
        restarts, many = size(5, 10), size(30, 100)
        for restart in range(restarts):
            fresh = scene.again()
            for n in range(restart * many + 1, (restart + 1) * many + 1):
                await fresh.append("a", n)
            scene.now_ms = fresh.now_ms
            if restart % 3 != 2:
                await fresh.replicate(batch=7)
        found = await scene.again().read()
        assert [event.number for event in found] == list(range(1, restarts * many + 1))

    async def test_two_replicators_and_other_cuts_write_the_same(self, scene: Scene) -> None:
        """X7: applied at once by two, and replayed cut elsewhere: the same rows and numbers; a purge resets nothing."""
        dice = random.Random(3)
        at = await _home(scene, "a")
        for n in (1, 2, 3):
            await scene.append("a", n)
        await _act(scene, at, "a", Purge())
        for n in (1, 2):
            await scene.append("a", n)
        await _act(scene, at, "a", Delete(to=1))
        await scene.append("a", 3)
        records, layout = await records_of(scene.log, scene.topic, at.partition), await scene.layout()
        stores = [_StuckStore(scene.store) for _ in range(2)]
        writers = [TagWriter(scene.store, scene.settings, log=scene.log) for _ in stores]
        await asyncio.gather(
            *(_run(store, writer, layout, at, records, dice) for store, writer in zip(stores, writers, strict=True))
        )
        rows = await view_of(scene)
        assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
        for _ in range(5):
            await _run(_StuckStore(scene.store), scene.again().writer, layout, at, records, dice)
        assert await view_of(scene) == rows
        await scene.replicate()
        assert [event.number for event in await scene.read()] == [1, 2, 3, 4, 5, 6]

    async def test_a_replicator_notices_one_that_died_before_the_offset(self, scene: Scene) -> None:
        """X7: it remembers numbers; another one numbers on, writes the journal and dies: the next number is right."""
        await scene.append("a", 1)
        await scene.replicate()
        await scene.append("a", 2)
        with crash_at("replicate.before-offset"), pytest.raises(SimulatedCrash):
            await scene.again().replicate()
        await scene.replicate()
        await scene.append("a", 3)
        await scene.replicate()
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(1, 1), (2, 2), (3, 3)]

    async def test_deleted_events_stay_under_their_tag(self, scene: Scene) -> None:
        """T37: deletes and purges are not propagated; payloads stay."""
        at = await _home(scene, "a")
        for n in (1, 2, 3):
            await scene.append("a", n)
        await scene.replicate()
        await _act(scene, at, "a", Delete(to=2))
        await scene.append("a", 4)
        await _act(scene, at, "a", Purge())
        await scene.append("a", 1)
        await scene.replicate()
        found = await scene.read()
        assert [(event.number, event.payload) for event in found] == [
            (1, "a:1"), (2, "a:2"), (3, "a:3"), (4, "a:4"), (5, "a:1"),
        ]  # fmt: skip

    @pytest.mark.parametrize("batch", [1, 3, 1000])
    async def test_a_redacted_tag_forgets_payloads_and_keeps_numbers(self, scene: Scene, batch: int) -> None:
        """T37: with the policy redact the payload goes with the journal's event, the row stays; cut anywhere."""
        redacting = scene.again(redact=[f"{scene.tag}-secret"])
        at = await _home(scene, "a")
        for n in (1, 2, 3):
            await scene.append("a", n, ["secret", "open"])
        await _act(scene, at, "a", Delete(to=2))
        await scene.append("a", 4, ["secret"])
        await redacting.replicate(batch=batch)
        secret = await redacting.read("secret")
        assert [(e.number, e.payload, e.is_redacted) for e in secret] == [
            (1, None, True), (2, None, True), (3, "a:3", False), (4, "a:4", False),
        ]  # fmt: skip
        assert [event.payload for event in await redacting.read("open")] == ["a:1", "a:2", "a:3"]
        await _act(scene, at, "a", Purge())
        await redacting.replicate(batch=batch)
        assert [event.payload for event in await redacting.read("secret")] == [None] * 4

    async def test_who_has_tags_disabled_does_not_replicate_where_others_keep_them(self, scene: Scene) -> None:
        """FT7: it would leave a hole that nothing tells of: refused, naming the setting, and nothing is written."""
        await scene.append("a", 1)
        await scene.replicate()
        await scene.append("a", 2)
        without = UntaggedViews(scene.store, scene.settings.model_copy(update={"enabled": False}))
        with pytest.raises(TagsInUse, match=r"tags\.enabled"):
            await replicate(scene.log, scene.store, scene.topic, views=without)
        meta = await scene.store.reader.meta(scene.topic, "a")
        assert meta is not None
        assert meta.seq_nr == 1
        await scene.replicate()
        assert numbers_of(await scene.read(), "a") == [1, 2]

    async def test_who_was_not_told_to_redact_follows_who_was(self, scene: Scene) -> None:
        """FT13: one process has the setting, another one replicates the deletion and rebuilds: the payload is gone."""
        at = await _home(scene, "a")
        await scene.append("a", [1, 2, 3], ["secret"])
        await scene.again(redact=[f"{scene.tag}-secret"]).read("secret")
        await scene.replicate()
        await _act(scene, at, "a", Delete(to=2))
        await scene.again().replicate()
        await TagRepair(scene.log, scene.store, scene.settings).rebuild(scene.topic, "a", f"{scene.tag}-secret")
        assert [(e.number, e.payload) for e in await scene.read("secret")] == [(1, None), (2, None), (3, "a:3")]

    @pytest.mark.parametrize("is_idle", [False, True], ids=["replicated in between", "all at once"])
    async def test_a_journal_that_comes_back_to_a_partition_is_counted_on(self, scene: Scene, is_idle: bool) -> None:
        """X7, E12: a process that applied the partition all the time knows its old numbers, which are not the last."""

        def partitions_of(id_: str) -> list[int]:
            return [partition_of(id_.encode(), partitions) for partitions in (4, 6, 8)]

        back = [id_ for n in range(200) if (at := partitions_of(id_ := f"p{n}"))[0] == at[2] != at[1]][:4]
        assert len(back) == 4
        await scene.replicate()
        for number in range(1, 10):
            for id_ in back:
                await scene.append(id_, number)
            if number % 3 != 0 and not is_idle:
                await scene.replicate()
            if number in (3, 6):
                await grow_topic(
                    scene.log, scene.store.settings, scene.topic, partitions=4 + 2 * number // 3, lease_s=0
                )
        follower = scene.again().follow()
        seen = await follower.next(9 * len(back))
        await follower.stop()
        for _ in range(3):
            await scene.replicate()
        for found in (seen, await scene.read(), await scene.again().read()):
            assert {id_: numbers_of(found, id_) for id_ in back} == {id_: list(range(1, 10)) for id_ in back}

    async def test_a_topic_that_grows_keeps_the_order_of_every_pid(self, scene: Scene) -> None:
        """T34: new partitions, and keys that move, also between old ones; live, replicated late and read again."""
        pids = [f"key{n}" for n in range(12)]
        follower = scene.follow()
        for n, pid in enumerate(pids):  # clocks differ by up to a minute between partitions
            await scene.append(pid, 1, at_ms=scene.now_ms - n * 5000)
        seen = await follower.next(len(pids))
        await scene.replicate(partitions=[0, 2])
        await grow_topic(scene.log, scene.store.settings, scene.topic, partitions=6, lease_s=0.01)
        for n, pid in enumerate(pids):
            await scene.append(pid, 2, at_ms=scene.now_ms - n * 5000)
        seen += await follower.next(len(pids))
        assert all(numbers_of(seen, pid) == [1, 2] for pid in pids)
        await scene.replicate()
        await scene.replicate()
        for pid in pids:
            await scene.append(pid, 3)
        seen += await follower.next(len(pids))
        await follower.stop()
        await scene.replicate()
        assert await scene.read() == seen
        assert all(numbers_of(seen, pid) == [1, 2, 3] for pid in pids)

    @pytest.mark.parametrize("is_early", [True, False])
    async def test_what_was_held_counts_from_the_verdict_on(self, scene: Scene, is_early: bool) -> None:
        """T34: events behind a record that can't be decoded wait; the verdict brings them, to running queries too."""
        at = await _home(scene, "a")
        headers = encode_action(Append(first=2, last=2, payload_format="json"))
        await scene.append("a", 1)
        poison = NewRecord(at.topic, b"a", b"no json", headers, partition=at.partition, timestamp_ms=scene.now_ms)
        await scene.put(poison)
        await scene.append("a", 2)
        await scene.append("b", 1)
        if is_early:
            await scene.replicate()
        follower = scene.follow()
        seen = await follower.next(2)
        assert ids(seen) == ["a1", "b1"]
        if not is_early:
            await scene.replicate()
        await pass_verdict(scene.log, scene.store, scene.topic, "a", skip=True)
        await scene.append("a", 3)
        assert await follower.is_silent(0.2)
        await scene.replicate()
        seen += await follower.next(2)
        assert ids(seen) == ["a1", "b1", "a2", "a3"]
        assert numbers_of(seen, "a") == [1, 2, 3]
        await follower.stop()
        assert await scene.read() == seen

    async def test_each_reader_sees_each_pid_in_order(self, scene: Scene, size: Size) -> None:
        """X8: many writers, replication going on, many readers: every reader sees every pid in order."""
        writers, many, readers = size(5, 10), size(40, 5000), size(4, 20)
        total = writers * many

        async def write(pid: str) -> None:
            for n in range(1, many + 1):
                await scene.append(pid, n)
                if n % 10 == 0:
                    await asyncio.sleep(0)

        async def replicate_on(done: asyncio.Event) -> None:
            while not done.is_set():
                await scene.replicate()
                await asyncio.sleep(0.05)

        followers = [scene.follow() for _ in range(readers)]
        done = asyncio.Event()
        replication = asyncio.ensure_future(replicate_on(done))
        seen, _ = await asyncio.gather(
            asyncio.gather(*(follower.next(total, within_s=600) for follower in followers)),
            asyncio.gather(*(write(f"w{n}") for n in range(writers))),
        )
        done.set()
        await replication
        for follower in followers:
            await follower.stop()
        assert all(each == seen[0] for each in seen)
        assert all(numbers_of(seen[0], f"w{n}") == list(range(1, many + 1)) for n in range(writers))

    async def test_many_tags_in_small_buckets_stay_in_order(self, scene: Scene, size: Size) -> None:
        """X8: pids × events × 3 tags over many buckets: in order per pid under each tag."""
        pids, many = [f"p{n}" for n in range(size(6, 50))], size(40, 500)
        start_ms = scene.now_ms - many * 600_000  # ten minutes apart
        for n in range(1, many + 1):
            for pid in pids:
                await scene.append(pid, n, ["x", "y", "z"], at_ms=start_ms + n * 600_000)
        await scene.replicate(batch=100)
        for tag in ("x", "y", "z"):
            found = await scene.read(tag)
            assert len(found) == len(pids) * many
            assert all(numbers_of(found, pid) == list(range(1, many + 1)) for pid in pids)

    async def test_tags_and_tags_of_a_pid_are_listed(self, scene: Scene) -> None:
        """X6: all tags, and those of a pid with their counts."""
        await scene.append("a", 1, ["x", "y"])
        await scene.append("a", 2, ["x"])
        await scene.append("b", 1, ["z"])
        await scene.replicate()
        named = [f"{scene.tag}-{tag}" for tag in ("x", "y", "z")]
        assert set(named) <= set(await scene.queries.tags())
        assert await scene.queries.tags_of(scene.topic, "a") == {named[0]: 2, named[1]: 1}
        assert await scene.queries.tags_of(scene.topic, "nobody") == {}


class TagRepairConformance(TagSetting):
    """X6: repairs of one pid under one tag, while all else goes on."""

    async def test_a_lost_row_is_rebuilt(self, scene: Scene) -> None:
        """X6: the query that failed for a gap gives all after the rebuild that its error names."""
        for n in range(1, 6):
            await scene.append("a", n)
        await scene.replicate()
        rows = await view_of(scene)
        await scene.store.tags.views.delete([rows[2]], at=Place(0, 1000))
        with pytest.raises(TagGap):
            await scene.again(gap_timeout_s=0.1).read()
        for _ in range(1001):
            await scene.put(NewRecord(scene.topic, partition=rows[0].partition, timestamp_ms=1))
        assert await TagRepair(scene.log, scene.store, scene.settings).rebuild(scene.topic, "a", scene.tag) == 5
        assert await view_of(scene) == rows
        await scene.append("a", 6)
        await scene.replicate()
        assert [event.number for event in await scene.read()] == [1, 2, 3, 4, 5, 6]

    async def test_a_row_that_can_not_be_decoded_is_named(self, scene: Scene) -> None:
        """X6: an integrity error with journal, seq_nr and tag, which says what repairs it."""
        for n in range(1, 4):
            await scene.append("a", n)
        await scene.replicate()
        row = (await view_of(scene))[1]
        await scene.store.tags.views.write([msgspec.structs.replace(row, metadata="no JSON")])
        with pytest.raises(IntegrityBroken, match=f"its row under tag '{scene.tag}' can't be decoded") as broken:
            await scene.read()
        assert (broken.value.key, broken.value.seq_nr) == ("a", 2)

    async def test_deleting_one_pid_leaves_the_others(self, scene: Scene) -> None:
        """X6: rows and numbers of one pid under one tag go; a rebuild brings them back with the same numbers."""
        for n in range(1, 4):
            await scene.append("a", n, ["x", "y"])
            await scene.append("b", n, ["x"])
        await scene.replicate()
        repair = TagRepair(scene.log, scene.store, scene.settings)
        whole = await scene.read("x")
        assert await repair.delete(scene.topic, "a", f"{scene.tag}-x") == 3
        assert [event.id for event in await scene.read("x")] == ["b", "b", "b"]
        assert len(await scene.read("y")) == 3
        assert await repair.rebuild(scene.topic, "a", f"{scene.tag}-x") == 3
        assert await scene.read("x") == whole
        await scene.append("a", 4, ["x"])
        await scene.replicate()
        assert numbers_of(await scene.read("x"), "a") == [1, 2, 3, 4]

    @pytest.mark.parametrize("is_replicated", [True, False])
    async def test_readers_go_on_after_rows_were_deleted(self, scene: Scene, is_replicated: bool) -> None:
        """FT5: a running query, one that was stopped before and a new one get what is written after `tags delete`."""
        for n in range(1, 6):
            await scene.append("a", n)
        await scene.replicate()
        follower = scene.follow()
        seen = await follower.next(5)
        repair = TagRepair(scene.log, scene.store, scene.settings)
        assert await repair.delete(scene.topic, "a", scene.tag) == 5
        for n in (6, 7):
            await scene.append("a", n)
        if is_replicated:
            await scene.replicate()
        late = await follower.next(2)
        await follower.stop()
        assert [(event.seq_nr, event.number) for event in late] == [(6, 6), (7, 7)]
        assert await scene.again().read(after=seen[4].tag_offset) == late
        assert await scene.again().read(after=seen[1].tag_offset) == late
        assert await scene.again().read() == late
        assert await repair.rebuild(scene.topic, "a", scene.tag) == 7
        assert await scene.again().read() == seen + late
        assert numbers_of(await scene.again().read(after=seen[1].tag_offset), "a") == [3, 4, 5, 6, 7]

    async def test_what_was_deleted_from_view_and_journal_is_not_waited_for(self, scene: Scene) -> None:
        """FT5: rows 1 to 4 removed, events 1 and 2 deleted: the rebuild gives 3 and 4 their numbers; then comes 5."""
        at = await _home(scene, "a")
        for n in range(1, 5):
            await scene.append("a", n)
        await scene.replicate()
        repair = TagRepair(scene.log, scene.store, scene.settings)
        await repair.delete(scene.topic, "a", scene.tag)
        await _act(scene, at, "a", Delete(to=2))
        await scene.replicate()
        assert await repair.rebuild(scene.topic, "a", scene.tag) == 2
        await scene.append("a", 5)
        assert [(event.seq_nr, event.number) for event in await scene.again().read()] == [(3, 3), (4, 4), (5, 5)]

    async def test_a_numbering_that_began_anew_gets_no_number_below_1(self, scene: Scene) -> None:
        """FT5: an older version counted from 1 again after a removal: what was before that is not rebuilt."""
        for n in range(1, 6):
            await scene.append("a", n)
        await scene.replicate()
        known = (await scene.store.tags.numbers.of(scene.topic, "a"))[scene.tag]
        rows = await view_of(scene)
        await scene.store.tags.views.delete(rows, at=Place(0, known.offset))
        fewer = msgspec.structs.replace(known, number=2)
        await scene.store.tags.numbers.write([fewer], at=Place(known.generation, known.offset + 1))
        await TagRepair(scene.log, scene.store, scene.settings).rebuild(scene.topic, "a", scene.tag)
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(4, 1), (5, 2)]

    async def test_a_rebuild_after_deletions_keeps_the_numbers_of_what_is_left(self, scene: Scene) -> None:
        """X6: with the numbering known, what the journal still holds gets the numbers it had."""
        at = await _home(scene, "a")
        for n in range(1, 5):
            await scene.append("a", n)
        await _act(scene, at, "a", Delete(to=2))
        await scene.replicate()
        rows = await view_of(scene)
        assert await TagRepair(scene.log, scene.store, scene.settings).rebuild(scene.topic, "a", scene.tag) == 2
        assert await view_of(scene) == rows

    async def test_a_rebuild_of_everything_ends_a_batch_that_was_begun(self, scene: Scene) -> None:
        """X4, X6: a replicator died after the numbers of a batch: these are not given to the events before it."""
        for n in range(1, 4):
            await scene.append("a", n)
        await scene.replicate()
        for n in (4, 5):
            await scene.append("a", n)
        with pytest.raises(SimulatedCrash), crash_at("tags.after-progress"):
            await scene.replicate()
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(n, n) for n in range(1, 6)]

    @pytest.mark.parametrize("is_all", [True, False])
    async def test_a_rebuild_does_not_wait_for_a_place_that_the_log_lacks(self, scene: Scene, *, is_all: bool) -> None:
        """X6: a number that is noted beyond the end of the log is damaged; a rebuild ends all the same."""
        await scene.append("a", 1)
        await scene.replicate()
        known = (await scene.store.tags.numbers.of(scene.topic, "a"))[scene.tag]
        await scene.store.tags.numbers.write([msgspec.structs.replace(known, offset=known.offset + 1000)])
        async with asyncio.timeout(30):
            await _rebuild(scene, scene.store, is_all=is_all)
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(1, 1)]

    @pytest.mark.parametrize("is_all", [True, False])
    async def test_a_rebuild_beside_replication_gives_no_number_twice(self, scene: Scene, *, is_all: bool) -> None:
        """X6: a batch is replicated after the journal's head was read, and before its numbers are."""
        for n in range(1, 4):
            await scene.append("a", n)
        await scene.replicate()

        async def replicate_more() -> None:
            await scene.append("a", 4)
            await scene.replicate()

        numbers = _Beside(scene.store.tags.numbers, "of", 1, replicate_more)
        tags = _Parts(scene.store.tags, numbers=numbers)
        await _rebuild(scene, _Parts(scene.store, tags=tags), is_all=is_all)
        assert numbers.is_done
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(n, n) for n in range(1, 5)]

    @pytest.mark.parametrize("is_all", [True, False])
    @pytest.mark.parametrize("nth", [1, 2])
    async def test_a_rebuild_beside_deletions_gives_no_number_twice(
        self, scene: Scene, nth: int, *, is_all: bool
    ) -> None:
        """X6: events are deleted from the journal before a rebuild counts them, or between counting and writing."""
        for n in range(1, 6):
            await scene.append("a", n)
        await scene.replicate()
        at = await _home(scene, "a")

        async def delete_some() -> None:
            await _act(scene, at, "a", Delete(to=2))
            await scene.replicate()

        reader = _Beside(scene.store.reader, "rows", nth, delete_some)
        await _rebuild(scene, _Parts(scene.store, reader=reader), is_all=is_all)
        assert reader.is_done
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(n, n) for n in range(1, 6)]


class TagLossConformance(TagSetting):
    """X2: tables that were emptied by hand; a tier gives `truncate`."""

    async def truncate(self, store: Store, tables: Sequence[str] = TABLES) -> None:
        """Empty tables of tags behind Headrace's back."""
        raise NotImplementedError

    @pytest.mark.parametrize("is_purged", [True, False])
    async def test_readers_go_on_after_the_views_began_anew(self, scene: Scene, is_purged: bool) -> None:
        """FT5: the first events are gone from the journal, the tables are lost and rebuilt: no later event is dropped.

        Neither by a running query nor by one that goes on in the middle of a record.
        """
        at = await _home(scene, "a")
        await scene.append("a", [1, 2, 3])
        if is_purged:
            await _act(scene, at, "a", Purge())
        first = 1 if is_purged else 4
        await scene.append("a", [first, first + 1, first + 2])
        if not is_purged:
            await _act(scene, at, "a", Delete(to=3))
        await scene.replicate()
        follower = scene.follow()
        seen = await follower.next(6)
        await self.truncate(scene.store)
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        await scene.append("a", first + 3)
        assert ids(await follower.next()) == [f"a{first + 3}"]
        await scene.replicate()
        await scene.append("a", first + 4)
        assert ids(await follower.next()) == [f"a{first + 4}"]
        await follower.stop()
        rest = [event.seq_nr for event in await scene.again().read(after=str(seen[4].tag_offset))]
        assert rest == [first + 2, first + 3, first + 4]
        whole = await scene.again().read()
        assert [event.seq_nr for event in whole] == list(range(first, first + 5))
        assert [event.number for event in whole] == list(range(whole[0].number, whole[0].number + 5))
        assert whole[0].number > seen[2].number

    async def test_a_numbering_that_is_lost_is_counted_from_the_rows(self, scene: Scene) -> None:
        """FT5: progress alone is emptied: the rows stay as they are, and the next number is the right one."""
        at = await _home(scene, "a")
        for n in range(1, 5):
            await scene.append("a", n)
        await _act(scene, at, "a", Delete(to=3))
        await scene.replicate()
        rows = await view_of(scene)
        await self.truncate(scene.store, ["tag_views_progress"])
        with pytest.raises(TagViewsLost, match="tag_views_progress"):
            await scene.again().read()
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        assert await view_of(scene) == rows
        await scene.append("a", 5)
        await scene.again().replicate()
        assert numbers_of(await scene.again().read(), "a") == [1, 2, 3, 4, 5]

    async def test_rows_of_a_batch_that_failed_are_not_counted(self, scene: Scene) -> None:
        """FT1, FT5: of a batch the last row is there when progress is emptied: the replay writes the others too."""
        for n in range(1, 3):
            await scene.append("a", n)
        await scene.replicate()
        for n in range(3, 7):
            await scene.append("a", n)
        with pytest.raises(WriteTimedOut):
            await scene.on(ScatteredStore(scene.store, last_rows(1))).replicate()  # type: ignore[arg-type]
        await self.truncate(scene.store, ["tag_views_progress"])
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        await scene.again().replicate()
        assert [(row.seq_nr, row.number) for row in await view_of(scene)] == [(n, n) for n in range(1, 7)]

    async def test_rows_that_are_lost_keep_their_numbers(self, scene: Scene) -> None:
        """FT5: the rows alone are emptied, the first events are deleted: what is left has its numbers, and is read."""
        at = await _home(scene, "a")
        for n in range(1, 5):
            await scene.append("a", n)
        await _act(scene, at, "a", Delete(to=2))
        await scene.replicate()
        rows = await view_of(scene)
        await self.truncate(scene.store, ["tag_views"])
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        assert await view_of(scene) == rows[2:]
        await scene.append("a", 5)
        assert numbers_of(await scene.again().read(), "a") == [3, 4, 5]

    async def test_a_rebuild_of_whole_tables_keeps_what_tags_were_filled_with(self, scene: Scene) -> None:
        """FT5: nothing was lost: rows, numbers and fills are as before, and running queries go on."""
        for n in range(1, 5):
            await scene.append("a", n, [])
        registry = TagRegistry(scene.store, scene.settings)
        await registry.open()
        ready = TagFill("fill", "tests:all", FillState.READY)
        await registry.change(lambda known: known.with_fill(scene.tag, ready))
        await scene.append("a", 5)
        follower = scene.follow()
        assert ids(await follower.next()) == ["a5"]
        await scene.replicate()
        before = await registry.read()
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        assert await registry.read() == before
        await scene.append("a", 6)
        assert ids(await follower.next()) == ["a6"]
        await follower.stop()
        assert numbers_of(await scene.again().read(), "a") == [1, 2]

    async def test_emptied_tables_are_noticed_and_rebuilt(self, scene: Scene) -> None:
        """X2, X6: truncated after 1 to 4: refused with the command to run; rebuilt, the same rows; 5 to 8: 1 to 8."""
        for n in range(1, 5):
            await scene.append("a", n)
            await scene.append(f"other{n}", 1)
        await scene.replicate()
        rows = await view_of(scene)
        await self.truncate(scene.store)
        await scene.append("a", 5)
        restarted = scene.again()
        with pytest.raises(TagViewsLost, match="headrace tags rebuild"):
            await restarted.replicate()
        with pytest.raises(TagViewsLost, match="tag_views"):
            await restarted.read()
        await TagRepair(scene.log, scene.store, scene.settings).rebuild_all()
        assert await view_of(scene) == rows
        for n in range(6, 9):
            await scene.append("a", n)
            if n == 7:
                await restarted.replicate()
        assert numbers_of(await restarted.read(), "a") == list(range(1, 9))


class _FailingStore:
    """A store whose tag writes of one kind fail; `seen` gets the names of all writes."""

    def __init__(self, store: Store, failing: str, seen: list[str] | None = None) -> None:
        self._store = store
        self._failing = failing
        self.seen = seen if seen is not None else []
        self.reader, self.settings, self.snapshots = store.reader, store.settings, store.snapshots

    @property
    def tags(self) -> _FailingStore:
        return self

    @property
    def writer(self) -> object:
        return _Watched(self._store.writer, "", self.seen)

    @property
    def views(self) -> object:
        return _Watched(self._store.tags.views, "views", self.seen, fails=self._failing == "views")

    @property
    def numbers(self) -> object:
        return _Watched(self._store.tags.numbers, "numbers", self.seen, fails=self._failing == "numbers")

    async def prepare(self) -> None:
        await self._store.tags.prepare()

    async def epochs(self) -> object:
        return await self._store.tags.epochs()

    async def put_epoch(self, epoch: str) -> None:
        await self._store.tags.put_epoch(epoch)


class _Watched:
    """Notes each call of `write`, or every call if no name is given, and fails on request."""

    def __init__(self, inner: object, name: str, seen: list[str], *, fails: bool = False) -> None:
        self._inner, self._name, self._seen, self._fails = inner, name, seen, fails

    def __getattr__(self, name: str) -> object:
        if not self._name or name == "write":
            self._seen.append(self._name or name)
            if self._fails:
                return self._fail
        return getattr(self._inner, name)

    async def _fail(self, *_: object, **__: object) -> None:
        raise ConnectionError("the store went away")


class _StuckStore:
    """A store whose replicated offset stays where it is: every batch is a replay."""

    def __init__(self, store: Store) -> None:
        self.reader, self.settings, self.snapshots, self.tags = (
            store.reader, store.settings, store.snapshots, store.tags,
        )  # fmt: skip
        self._store = store

    @property
    def writer(self) -> object:
        return _Stuck(self._store.writer)


class _Stuck:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def move_replicated(self, offset: object) -> None:
        return None


class _Parts:
    """An object of which some parts are others."""

    def __init__(self, inner: object, **parts: object) -> None:
        self._inner = inner
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        return self._parts[name] if name in self._parts else getattr(self._inner, name)


class _Beside:
    """An object at whose nth call of a method something happens before the call."""

    def __init__(self, inner: object, method: str, nth: int, happens: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._method = method
        self._left = nth
        self._happens = happens

    @property
    def is_done(self) -> bool:
        """True if it has happened."""
        return self._left <= 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found
        self._left -= 1
        if self._left:
            return found
        return self._pages if name == "rows" else self._answer

    async def _answer(self, *arguments: Any) -> Any:
        await self._happens()
        return await getattr(self._inner, self._method)(*arguments)

    async def _pages(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await self._happens()
        async for page in getattr(self._inner, self._method)(*arguments, **options):
            yield page


async def _rebuild(scene: Scene, store: Any, *, is_all: bool) -> None:
    repair = TagRepair(scene.log, store, scene.settings)
    if is_all:
        await repair.rebuild_all()
    else:
        await repair.rebuild(scene.topic, "a", scene.tag)


async def view_of(scene: Scene) -> list[TagRow]:
    """Return the rows of the scene's tag, over all buckets."""
    views = scene.store.tags.views
    return [
        row
        for bucket in await views.buckets(scene.tag)
        for page in [page async for page in views.read(scene.tag, bucket)]
        for row in page
    ]


async def _apply(scene: Scene, store: Store) -> None:
    """Replicate everything through another store."""
    layout = await scene.layout()
    writer = TagWriter(store, scene.settings, log=scene.log)
    for partition in range(layout.partitions):
        records = await records_of(scene.log, scene.topic, partition)
        if records:
            at = TopicPartition(scene.topic, partition)
            await replicate_batch(store, layout, at, records, up_to=records[-1].offset, views=writer)


async def _run(
    store: object, writer: TagWriter, layout: object, at: TopicPartition, records: list[Record], dice: random.Random
) -> None:
    """Apply all records from the first on, in slices, with the replicated offset left where it is."""
    start = 0
    while start < len(records):
        end = min(start + dice.randint(1, 4), len(records))
        part = records[:end]  # all of them again: the offset has not moved
        await replicate_batch(store, layout, at, part, up_to=part[-1].offset, views=writer)  # type: ignore[arg-type]
        start = end


async def _home(scene: Scene, id_: str) -> TopicPartition:
    return (await scene.layout()).route(id_)


async def _act(scene: Scene, at: TopicPartition, id_: str, action: Delete | Purge) -> None:
    scene.now_ms += 1
    record = NewRecord(at.topic, id_.encode(), None, encode_action(action), partition=at.partition)
    await scene.put(msgspec.structs.replace(record, timestamp_ms=scene.now_ms))
