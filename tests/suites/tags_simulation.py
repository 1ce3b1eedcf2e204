"""A run of everything at once, against a plain fold of the log: each event under a tag exactly once, in one order.

Producers whose clocks differ by half a minute, partitions replicated at different speeds by replicators that crash, an
idle partition, a topic that grows, a topic that is made later, a query that is stopped and resumed all the time, and
two queries of another process that are never stopped.
The rows of a batch appear at once, or piece by piece in any order with failures in between, as stores of both kinds do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from itertools import count

import msgspec
import pytest
from tests.suites.journal_setting import records_of
from tests.suites.tags_scattering import ScatteredStore, WriteTimedOut, shuffled
from tests.suites.tags_setting import Scene, TagSetting

from headrace.journal import grow_topic, replicate_batch
from headrace.model import NewRecord, TopicPartition
from headrace.protocol.actions import Append, Delete, Purge
from headrace.protocol.entries import batch_of
from headrace.protocol.events import decode_append
from headrace.protocol.fold import Effect, Entry, step
from headrace.protocol.headers import encode_action
from headrace.store import JournalMeta, Store
from headrace.tags import TaggedEvent, TagWriter
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.crashes import SimulatedCrash, crash_at
from headrace.testing.plugin import Size

__all__ = ["TagSimulation", "expected_of"]

SKEW_MS = 30_000
CRASHES = ("tags.before-progress", "tags.after-progress", "replicate.after-views", "replicate.before-meta",
           "replicate.after-key", "replicate.before-offset")  # fmt: skip


class TagSimulation(TagSetting):
    """T34, X4, X7 in one run; a tier says how long it is."""

    @pytest.fixture
    def restarts(self, size: Size) -> int:
        """Return how often the query is stopped and resumed, at least."""
        return size(100, 100)

    @pytest.fixture
    def writes(self, size: Size) -> int:
        """Return how many records are written."""
        return size(250, 2500)

    @pytest.mark.parametrize("seed", [1, 2])
    async def test_every_event_comes_exactly_once_whatever_happens(
        self, scene: Scene, seed: int, restarts: int, writes: int
    ) -> None:
        """T34, X4, X7: what was delivered is what the log says, in the order of the views, numbered without gaps."""
        world = _World(scene, random.Random(seed), writes=writes)
        seen = await world.run(restarts=restarts)
        assert await scene.read() == seen
        assert world.crowd == {"": seen, "other": await scene.read("other")}
        expected = await expected_of(scene)
        assert sorted((e.topic, e.id, e.partition, e.offset, e.seq_nr, e.number) for e in seen) == sorted(expected)
        assert [event.tag_offset for event in seen] == sorted({event.tag_offset for event in seen})
        assert world.restarts >= restarts
        assert world.crashes > 0
        assert world.timeouts > 0


class _World:
    """All that goes on at once."""

    def __init__(self, scene: Scene, dice: random.Random, *, writes: int) -> None:
        self.scene = scene
        self.dice = dice
        self.restarts = 0
        self.crashes = 0
        self.timeouts = 0
        self._writes = writes
        self._skews_ms = [dice.randint(-SKEW_MS, SKEW_MS) for _ in range(3)]
        self._seq_nrs: dict[tuple[str, str], int] = defaultdict(int)
        self._is_written = False
        self._seen: list[TaggedEvent] = []
        self.crowd: dict[str, list[TaggedEvent]] = {}

    async def run(self, *, restarts: int) -> list[TaggedEvent]:
        """Let it go on until all is written and the query was resumed often enough; then end the log, and read it."""
        replication = asyncio.ensure_future(self._replicate_on())
        reading = asyncio.ensure_future(self._read_on(restarts))
        crowd = [asyncio.ensure_future(each) for each in self._read_together()]
        try:
            await self._write_on()
            async with asyncio.timeout(200):
                await reading
                replication.cancel()
                await asyncio.wait([replication])
                await self.replicate_all()
                await self._read_to_the_end()
                await self._caught_up(crowd)
        finally:
            for task in (replication, reading, *crowd):
                task.cancel()
            await asyncio.gather(replication, reading, *crowd, return_exceptions=True)
        return self._seen

    def _read_together(self) -> list[Coroutine[None, None, None]]:
        """Return two live queries of one process. Pages are small, so at times they are not served by its readers."""
        queries = self.scene.again(page_size=3).queries

        async def read(tag: str) -> None:
            found: list[TaggedEvent] = []
            self.crowd[tag] = found
            name = f"{self.scene.tag}-{tag}" if tag else self.scene.tag
            async with contextlib.aclosing(queries.events(name, live=True)) as events:
                async for event in events:
                    found.append(event)
                    if self.dice.random() < 0.1:
                        await asyncio.sleep(0.01)

        return [read(tag) for tag in ("", "other")]

    async def _caught_up(self, crowd: Sequence[asyncio.Future[None]]) -> None:
        """Wait until the queries that were never stopped have as many events as one that begins now."""
        counts = {tag: len(await self.scene.again().read(tag or None)) for tag in self.crowd}

        async def are_there() -> bool:
            for task in crowd:
                if task.done():
                    task.result()
            return all(len(self.crowd[tag]) >= count for tag, count in counts.items())

        await eventually(are_there, within_s=60, every_s=0.01)

    async def replicate_all(self) -> None:
        """Bring replication to the end of the log."""
        for _ in range(3):  # what lies behind a boundary is taken in a later round
            await self.scene.again().replicate()

    async def _write_on(self) -> None:
        """Write what is wanted, and on until replication has crashed and failed: on a slow machine it has few turns."""
        for n in count():
            if n >= self._writes and self.crashes and self.timeouts:
                break
            if n == self._writes // 3:
                await grow_topic(
                    self.scene.log, self.scene.store.settings, self.scene.topic, partitions=6, lease_s=0.01
                )
            if n == self._writes * 2 // 3:
                await self.scene.new_topic(partitions=2)
            await self._write(self.dice.choice(self.scene.topics))
            if self.dice.random() < 0.3:
                await asyncio.sleep(self.dice.random() * 0.01)
        self._is_written = True

    async def _write(self, topic: str) -> None:
        """Append, or now and then delete or purge; some appends are void."""
        scene, dice = self.scene, self.dice
        id_ = f"k{dice.randint(0, 9)}"  # few, so that a batch brings several rows of each
        last = self._seq_nrs[topic, id_]
        scene.now_ms += dice.randint(0, 3)
        at_ms = scene.now_ms + dice.choice(self._skews_ms) - SKEW_MS
        kind = dice.random()
        if kind < 0.06 and last:
            action = Purge() if kind < 0.03 else Delete(to=dice.randint(1, last))
            at = (await scene.layout(topic)).route(id_)
            record = NewRecord(topic, id_.encode(), None, encode_action(action), partition=at.partition)
            await scene.put(msgspec.structs.replace(record, timestamp_ms=at_ms))
            self._seq_nrs[topic, id_] = 0 if isinstance(action, Purge) else last
        elif kind < 0.12:
            await scene.append(id_, last + 1, topic=topic, at_ms=at_ms, expected=last + 7)  # void
        else:
            many = dice.randint(1, 3)
            tags: list[str] | None = None if dice.random() < 0.7 else dice.choice(([], ["other"]))
            await scene.append(id_, range(last + 1, last + 1 + many), tags, topic=topic, at_ms=at_ms)
            self._seq_nrs[topic, id_] = last + many

    async def _replicate_on(self) -> None:
        """Replicate a partition at a time, some hardly ever, with crashes in between.

        Now and then a partition is left alone until it has gathered a large batch.
        """
        stores = [self.scene.store, self._scattered()]
        writers = [TagWriter(store, self.scene.settings, log=self.scene.log) for store in stores]
        while True:
            await asyncio.sleep(self.dice.random() * 0.02)
            topic = self.dice.choice(self.scene.topics)
            layout = await self.scene.layout(topic)
            partition = min(self.dice.randrange(layout.partitions) for _ in range(2))  # the last ones lag
            at = TopicPartition(topic, partition)
            done = await self.scene.store.reader.replicated(at)
            records = await records_of(self.scene.log, topic, partition)
            start = done.offset + 1 if done is not None else 0
            part = [record for record in records if record.offset >= start][: self.dice.choice((5, 20, 100))]
            if len(part) < self.dice.choice((1, 1, 10)):
                continue
            which = self.dice.choice((0, 1, 1)) if self.timeouts else 1  # a slow server gets few turns
            crash = crash_at(self.dice.choice(CRASHES), self.dice.choice((1, 1, 2)) if self.crashes else 1)
            with crash if not self.crashes or self.dice.random() < 0.4 else contextlib.nullcontext():
                try:
                    last = part[-1].offset
                    await replicate_batch(stores[which], layout, at, part, up_to=last, views=writers[which])
                except WriteTimedOut:
                    self.timeouts += 1
                except SimulatedCrash:
                    self.crashes += 1
                    writers[which] = TagWriter(stores[which], self.scene.settings, log=self.scene.log)

    def _scattered(self) -> Store:
        """Return the store as one whose rows appear piece by piece."""
        cut = shuffled(self.dice, fails_every=4)
        store: Store = ScatteredStore(self.scene.store, cut, pause_s=0.002)  # type: ignore[assignment]
        return store

    async def _read_on(self, restarts: int) -> None:
        """Take some events, stop, resume from the stored text of the last one, until that happened often enough.

        On a slow machine the replicators may not have failed by then, which they are to do.
        """
        while not self._is_written or self.restarts < restarts or not (self.crashes and self.timeouts):
            events = self.scene.again().queries.events(self.scene.tag, after=self._after(), live=True)
            async with contextlib.aclosing(events):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        for _ in range(self.dice.randint(1, 6)):
                            self._seen.append(await anext(events))
            self.restarts += 1

    async def _read_to_the_end(self) -> None:
        """Take all that is left; nothing moves any more."""
        self._seen += [event async for event in self.scene.again().queries.events(self.scene.tag, after=self._after())]

    def _after(self) -> str | None:
        return str(self._seen[-1].tag_offset) if self._seen else None


async def expected_of(scene: Scene) -> list[tuple[str, str, int, int, int, int]]:
    """Fold the whole log plainly: every event under the scene's tag that counts, with its number."""
    entries: list[Entry] = []
    for topic in scene.topics:
        layout = await scene.layout(topic)
        for partition in range(layout.partitions):
            records = await records_of(scene.log, topic, partition)
            for of_key in batch_of(records, layout.first_generation(partition)).by_id.values():
                entries += of_key
    metas: dict[tuple[str, str], JournalMeta | None] = {}
    numbers: dict[tuple[str, str], int] = defaultdict(int)
    expected = []
    for entry in sorted(entries, key=lambda entry: entry.place):
        key = (entry.topic, entry.id)
        done = step(metas.get(key), entry)
        metas[key] = done.meta
        if done.effect is not Effect.APPENDED or not isinstance(entry.action, Append) or entry.record is None:
            continue
        for event in decode_append(entry.action, entry.record.value).events:
            if scene.tag in event.tags:
                numbers[key] += 1
                expected.append((*key, entry.partition, entry.offset, event.seq_nr, numbers[key]))
    return expected
