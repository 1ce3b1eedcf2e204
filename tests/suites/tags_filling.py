"""Giving a tag to history, step by step, while all else goes on: what the Spark job does, without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping

import msgspec
import pytest
from tests.suites.journal_setting import records_of
from tests.suites.tags_setting import Scene, TagSetting, ids, numbers_of
from tests.suites.tags_views import view_of

from headrace.errors import BadArgument, OperationFailed, TagBuilding
from headrace.journal import grow_topic, replicate_batch
from headrace.model import NewRecord, TopicPartition
from headrace.protocol.actions import Delete, Purge
from headrace.protocol.headers import encode_action
from headrace.store import Place, TagRow
from headrace.tags import TaggedEvent, TagRepair
from headrace.tags import write as tag_writing
from headrace.tags.fill import HistoryCount, TagFills
from headrace.tags.registry import PlacesOfTopic, TagFill, TagRegistry
from headrace.tags.repair import CatchingUp
from headrace.testing.crashes import SimulatedCrash, crash_at
from headrace.testing.plugin import Size

__all__ = ["FUNCTION", "Filling", "TagFillConformance", "is_even"]

FUNCTION = "tests:is_even"
CRASHES = ("tags.before-progress", "tags.after-progress", "replicate.after-views", "replicate.before-offset")


class TagFillConformance(TagSetting):
    """T38, and T37 for a tag that was filled."""

    @pytest.mark.parametrize("seed", [1, 2, 3])
    async def test_a_fill_is_exact_whatever_happens(self, scene: Scene, seed: int, size: Size) -> None:
        """T38: writers, replicators that crash and fills that are killed at any step: exactly what was chosen."""
        world = _World(scene, random.Random(seed), writes=size(120, 1500))
        await world.run()
        await world.wake()
        for _ in range(2):
            events = [event for event in await scene.again().read() if event.topic == scene.topic]
            by_id = {id_: [(e.seq_nr, e.number) for e in events if e.id == id_] for id_ in world.written}
            assert by_id == {id_: _expected(last) for id_, last in world.written.items()}
            assert [event.tag_offset for event in events] == sorted(event.tag_offset for event in events)
            await scene.again().replicate()
        assert world.kills > 0

    async def test_queries_of_a_tag_wait_until_history_is_counted(self, scene: Scene) -> None:
        """T38: while a tag is "building" a query fails with a typed error, a running one too; other tags go on."""
        await scene.append("a", 1, ["other"])
        live = scene.follow()
        assert await live.is_silent()
        filling = Filling(scene)
        await filling.begin()
        with pytest.raises(TagBuilding, match=FUNCTION):
            await scene.read()
        await scene.append("a", 2, None)
        with pytest.raises(TagBuilding):
            await live.next()
        await live.stop()
        assert ids(await scene.read("other")) == ["a1"]
        await scene.replicate()
        assert await view_of(scene) == []
        await filling.count()
        await filling.complete()
        assert numbers_of(await scene.read(), "a") == [1]

    async def test_replication_waits_at_the_cut_and_goes_on(self, scene: Scene) -> None:
        """T38: behind the cut nothing is numbered before older events are; a killed job blocks no other for long."""
        await scene.append("a", [1, 2], [])
        filling = Filling(scene)
        await filling.begin()
        await filling.count()
        closing = await filling.close()
        await scene.append("a", [3, 4])
        await scene.replicate()
        at = (await scene.layout()).route("a")
        replicated = await scene.store.reader.replicated(at)
        assert replicated is not None
        cut = closing.cut_of(at)
        assert cut is not None
        assert replicated.offset == cut.offset
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tag_writing, "_WAIT_FOR_FILL_S", 0.0)
            await scene.again().replicate()
        replicated = await scene.store.reader.replicated(at)
        assert replicated is not None
        assert replicated.offset > cut.offset
        assert not await filling.fills.finish(scene.tag, closing)
        await filling.complete()
        await scene.append("a", [5, 6])  # both bring the tag, and nobody asks whether they are even
        assert [(e.seq_nr, e.number) for e in await scene.read()] == [(2, 1), (4, 2), (5, 3), (6, 4)]

    async def test_what_was_under_the_tag_before_is_numbered_anew(self, scene: Scene) -> None:
        """T38: writers gave the tag before the fill, to other events too: numbers from 1, and nothing else is left."""
        await scene.append("a", [1, 2, 3, 4], [])
        await scene.append("a", [5, 6])
        await scene.append("b", 1)
        await scene.replicate()
        assert len(await view_of(scene)) == 3
        await Filling(scene).all()
        await scene.append("a", 7)
        await scene.append("b", 2)
        await scene.again().replicate()
        events = await scene.read()
        assert [(e.seq_nr, e.number) for e in events if e.id == "a"] == [(2, 1), (4, 2), (6, 3), (7, 4)]
        assert [(e.seq_nr, e.number) for e in events if e.id == "b"] == [(2, 1)]

    async def test_a_second_fill_is_refused_or_changes_nothing(self, scene: Scene) -> None:
        """T38: done twice nothing happens; one that is under way is left alone, unless it is said to be dead."""
        await scene.append("a", [1, 2, 3, 4], [])
        filling = Filling(scene)
        first = await filling.begin()
        with pytest.raises(TagBuilding, match="--again"):
            await filling.fills.begin(scene.tag, FUNCTION)
        other = Filling(scene)
        await other.begin(again=True)
        with pytest.raises(OperationFailed, match="another back-fill"):
            await filling.fills.close(scene.tag, first)
        await other.count()
        await other.complete()
        rows = await view_of(scene)
        assert (await filling.fills.begin(scene.tag, FUNCTION)).is_ready
        await Filling(scene).all(again=True)
        assert await view_of(scene) == rows
        with pytest.raises(BadArgument, match="backfill"):
            await TagRepair(scene.log, scene.store, scene.settings).rebuild(scene.topic, "a", scene.tag)

    @pytest.mark.parametrize("is_purged", [False, True])
    async def test_events_that_are_deleted_meanwhile_are_redacted(self, scene: Scene, is_purged: bool) -> None:
        """T37, T38: deleted while history is counted, or later: with the policy redact rows stay and say nothing."""
        private = scene.again(redact=[scene.tag])
        for id_ in ("a", "b", "c"):
            await scene.append(id_, [1, 2, 3, 4], [])
        filling = Filling(private)
        await filling.begin()
        await filling.count()
        await _remove(scene, "a", is_purged=is_purged)
        await scene.replicate()  # without the policy: as if its rows had been written a moment later
        await filling.complete()
        await _remove(scene, "b", is_purged=is_purged)
        await private.replicate()
        gone = {"a", "b"}
        events = await private.read()
        assert {(e.id, e.seq_nr) for e in events if e.is_redacted} == {
            (id_, n) for id_ in gone for n in ((2, 4) if is_purged else (2,))
        }
        assert all(e.payload is None for e in events if e.is_redacted)
        assert {id_: numbers_of(events, id_) for id_ in "abc"} == {id_: [1, 2] for id_ in "abc"}

    async def test_a_topic_that_grows_meanwhile_ends_the_fill(self, scene: Scene) -> None:
        """T38: keys may have moved: the fill says so, and another one gives the right numbers."""
        for key in range(8):
            await scene.append(f"k{key}", [1, 2], [])
        filling = Filling(scene)
        await filling.begin()
        await filling.count()
        await grow_topic(scene.log, scene.store.settings, scene.topic, partitions=6, lease_s=0.01)
        for key in range(8):
            await scene.append(f"k{key}", [3, 4], [])
        with pytest.raises(OperationFailed, match="has grown"):
            await filling.close()
        await Filling(scene.again()).all(again=True)
        events = await scene.again().read()
        assert {f"k{key}": numbers_of(events, f"k{key}") for key in range(8)} == {f"k{key}": [1, 2] for key in range(8)}

    async def test_journals_that_moved_before_a_fill_are_counted_on_after_it(self, scene: Scene) -> None:
        """FT11: grown, filled, then written: the first events of moved journals in their new partitions have numbers.

        The offsets there are lower than those where the journals were, and have nothing to do with them.
        """
        keys = [f"k{key}" for key in range(12)]
        for key in keys:
            await scene.append(key, [1, 2], [])
            for _ in range(3):
                await scene.append(f"{key}-other", 1, [], expected=99)  # void; it makes the old partitions long
        await scene.replicate()
        await grow_topic(scene.log, scene.store.settings, scene.topic, partitions=9, lease_s=0.01)
        assert {key for key in keys if len((await scene.layout()).stays(key)) > 1}
        await Filling(scene).all()
        for key in keys:
            await scene.append(key, [3, 4])
        for _ in range(2):
            events = await scene.again().read()
            assert {key: numbers_of(events, key) for key in keys} == {key: [1, 2, 3] for key in keys}
            await scene.again().replicate()
            await scene.again().replicate()
        await Filling(scene.again()).all(again=True)
        events = await scene.again().read()
        assert {key: numbers_of(events, key) for key in keys} == {key: [1, 2] for key in keys}

    async def test_numbers_that_were_noted_beyond_the_log_are_named_and_healed_by_growing(self, scene: Scene) -> None:
        """FT11: what an older version left: filling again says what to run, and is right after that."""
        await scene.append("a", [1, 2, 3, 4], [])
        await Filling(scene).all()
        known = (await scene.store.tags.numbers.of(scene.topic, "a"))[scene.tag]
        await scene.store.tags.numbers.write([msgspec.structs.replace(known, offset=known.offset + 500)])
        await scene.append("a", 5)
        await scene.replicate()
        assert numbers_of(await scene.read(), "a") == [1, 2]
        with pytest.raises(OperationFailed, match="headrace topic grow"):
            await Filling(scene.again()).all(again=True)
        await grow_topic(scene.log, scene.store.settings, scene.topic, partitions=6, lease_s=0.01)
        await Filling(scene.again()).all(again=True)
        await scene.append("a", 6)
        assert [(e.seq_nr, e.number) for e in await scene.again().read()] == [(2, 1), (4, 2), (6, 3)]


def is_even(event: TaggedEvent) -> bool:
    """Choose the even events."""
    return event.seq_nr % 2 == 0


class Filling:
    """A fill, step by step. Other topics of the store are none of its business."""

    def __init__(self, scene: Scene, *, patience_s: float = 0.0) -> None:
        self.scene = scene
        self._patience_s = patience_s
        self.fills = TagFills(scene.log, scene.store, scene.settings)
        self._fill: TagFill | None = None
        self._seen: dict[TopicPartition, Place] = {}

    async def all(self, *, again: bool = False) -> None:
        """Do it all."""
        await self.begin(again=again)
        await self.count()
        await self.complete()

    async def begin(self, *, again: bool = False) -> TagFill:
        """Say that the tag is building, and bring replication past its Marks."""
        self._fill = await self.fills.begin(self.scene.tag, FUNCTION, again=again)
        await self._reach(self._fill.since, patience_s=self._patience_s)
        return self._fill

    async def close(self) -> TagFill:
        """Choose the cut, and bring replication there."""
        assert self._fill is not None
        closing = await self.fills.close(self.scene.tag, self._fill)
        await self._reach(closing.cut)
        return closing

    async def complete(self) -> None:
        """Close, count the rest, finish."""
        closing = await self.close()
        await self.count(is_last=True)
        assert await self.fills.finish(self.scene.tag, closing)

    async def count(self, *, is_last: bool = False) -> None:
        """Count all that was not counted yet."""
        scene, seen = self.scene, dict(self._seen)
        for topic in scene.topics:
            partitions = [TopicPartition(topic, number) for number in range((await scene.layout(topic)).partitions)]
            replicated = [await scene.store.reader.replicated(at) for at in partitions]
            registry = await TagRegistry(scene.store, scene.settings).open()
            history = HistoryCount(scene.store, scene.settings, registry, scene.tag, topic, is_even)
            if not any(at in seen for at in partitions):
                await history.sweep(await self._rows(topic))
            async for page in scene.store.reader.metas(topic):
                places = [seen.get(TopicPartition(topic, meta.partition), Place(-1, -2)) for meta in page]
                await history.count(meta for meta, after in zip(page, places, strict=True) if meta.place > after)
            if is_last:
                await self._settle(history, topic)
            self._seen |= {known.at: Place(known.generation, known.offset) for known in replicated if known is not None}

    async def _settle(self, history: HistoryCount, topic: str) -> None:
        by_id: dict[str, list[TagRow]] = {}
        for row in await self._rows(topic):
            by_id.setdefault(row.pid, []).append(row)
        for id_, rows in by_id.items():
            await history.settle(await self.scene.store.reader.meta(topic, id_), rows)

    async def _rows(self, topic: str) -> list[TagRow]:
        views, tag = self.scene.store.tags.views, self.scene.tag
        pages = [page for bucket_ms in await views.buckets(tag) async for page in views.read(tag, bucket_ms)]
        return [row for page in pages for row in page if row.topic == topic]

    async def _reach(self, places: Mapping[str, PlacesOfTopic], *, patience_s: float = 0.0) -> None:
        ours = {
            TopicPartition(topic, partition): offset
            for topic, of in places.items()
            if topic in self.scene.topics
            for partition, offset in of.offsets.items()
            if offset >= 0
        }
        catching_up = CatchingUp(self.scene.log, self.scene.store, self.scene.settings)
        await catching_up.wait(ours, patience_s=patience_s)
        await catching_up.reach(ours)


class _World:
    """Writers that learn of the tag, replicators that crash, a topic that grows, fills that are killed, all at once.

    Some journals sleep: they are written before the topic grows, and again after the fill.
    """

    def __init__(self, scene: Scene, dice: random.Random, *, writes: int) -> None:
        self.scene = scene
        self.dice = dice
        self.written: dict[str, int] = {f"k{key}": 0 for key in range(7)}
        self._sleepers = [f"sleeper{key}" for key in range(5)]
        self.kills = 0
        self._writes = writes
        self._is_told = False
        self._has_grown = asyncio.Event()

    async def run(self) -> None:
        """Write, and fill in the middle of it."""
        for id_ in self._sleepers:
            await self._write(id_, 4)
        writing = asyncio.ensure_future(self._write_on())
        replication = asyncio.ensure_future(self._replicate_on())
        try:
            await self._fill_until_done()
            await writing
        finally:
            for task in (writing, replication):
                task.cancel()
            await asyncio.gather(writing, replication, return_exceptions=True)

    async def wake(self) -> None:
        """Write the journals that slept."""
        for id_ in self._sleepers:
            await self._write(id_, 4)

    async def _write_on(self) -> None:
        awake = list(self.written)[: -len(self._sleepers)]
        for n in range(self._writes):
            if n == self._writes // 8:  # by the writer itself: no other process knows the lease
                scene = self.scene
                await grow_topic(scene.log, scene.store.settings, scene.topic, partitions=7, lease_s=0.01)
                self._has_grown.set()
            await self._write(self.dice.choice(awake), self.dice.randint(1, 3))
            await asyncio.sleep(self.dice.random() * 0.01)

    async def _write(self, id_: str, many: int) -> None:
        last = self.written.get(id_, 0)
        for n in range(last + 1, last + many + 1):
            await self.scene.append(id_, n, None if self._is_told and n % 2 == 0 else [])
        self.written[id_] = last + many

    async def _fill_until_done(self) -> None:
        """Tell the writers of the tag once the topic has grown, then fill; killed a few times on the way."""
        await self._has_grown.wait()
        self._is_told = True
        for after_s in (0.0, *(self.dice.random() * 0.4 for _ in range(3))):
            filling = asyncio.ensure_future(Filling(self.scene.again(), patience_s=1.0).all(again=True))
            done, _ = await asyncio.wait([filling], timeout=after_s)
            if not done:
                self.kills += 1
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        while True:
            try:
                return await Filling(self.scene.again(), patience_s=1.0).all(again=True)
            except SimulatedCrash:  # it replicates too
                self.kills += 1

    async def _replicate_on(self) -> None:
        scene, dice = self.scene, self.dice
        writers = [scene.again().writer, scene.again().writer]
        while True:
            await asyncio.sleep(dice.random() * 0.01)
            layout = await scene.layout()
            at = TopicPartition(scene.topic, dice.randrange(layout.partitions))
            start = await scene.store.reader.replicated(at)
            records = await records_of(scene.log, scene.topic, at.partition)
            rest = [record for record in records if start is None or record.offset > start.offset]
            part = rest[: dice.randint(1, 20)]
            if not part:
                continue
            which = dice.randrange(2)
            crash = crash_at(dice.choice(CRASHES)) if dice.random() < 0.2 else contextlib.nullcontext()
            with crash:
                try:
                    last = part[-1].offset
                    await replicate_batch(scene.store, layout, at, part, up_to=last, views=writers[which])
                except SimulatedCrash:
                    writers[which] = scene.again().writer


def _expected(last: int) -> list[tuple[int, int]]:
    return [(seq_nr, number) for number, seq_nr in enumerate(range(2, last + 1, 2), 1)]


async def _remove(scene: Scene, id_: str, *, is_purged: bool) -> None:
    """Delete the first three events, or purge."""
    at = (await scene.layout()).route(id_)
    action = Purge() if is_purged else Delete(to=3)
    await scene.put(NewRecord(at.topic, id_.encode(), None, encode_action(action), partition=at.partition))
