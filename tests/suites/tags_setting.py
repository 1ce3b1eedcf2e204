"""What the tests of events by tag stand on: a log, a store, tagged events with times of their own, and queries."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.suites.journal_setting import JournalSetting, replicate

from headrace.config import TagSettings
from headrace.journal import JOURNAL_TOPIC, Layout
from headrace.journal.append import AppendOptions, record_of
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import Event, NewRecord, Position, TopicPartition, partition_of
from headrace.runtime import SYSTEM_CLOCK
from headrace.store import ReplicatedOffset, Store, TagRow, TagTime, timeuuid
from headrace.tags import Bucket, TaggedEvent, TagQueries, TagWriter

__all__ = ["DAY_MS", "Follower", "Scene", "TagSetting", "ids", "ids_on", "numbers_of", "take"]

DAY_MS = Bucket.DAY.value
_DEADLINE_S = 20.0


@pytest.mark.asyncio(loop_scope="module")
class TagSetting(JournalSetting):
    """The fixtures; tests get a `scene`: one topic of four partitions, which is gone from the log afterwards."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def scene(self, log: Log, store: Store) -> AsyncIterator[Scene]:
        """Make a topic with four partitions."""
        scene = Scene(log, store)
        await scene.new_topic()
        yield scene
        await scene.clear()


class Scene:
    """Topics, writers, replication and readers of one test."""

    def __init__(self, log: Log, store: Store, **settings: Any) -> None:
        self.log = log
        self.store = store
        self.settings = TagSettings(**{"gap_timeout_s": 1.0, **settings})
        self.writer = TagWriter(store, self.settings, log=log)
        self.queries = TagQueries(log, store, self.settings)
        self.tag = f"tag-{uuid.uuid4().hex[:8]}"
        self.topics: list[str] = []
        self.now_ms = SYSTEM_CLOCK.now_ms() - 60_000

    @property
    def topic(self) -> str:
        """The first topic."""
        return self.topics[0]

    def again(self, **settings: Any) -> Scene:
        """Return the same scene as another process sees it, with other settings if wanted."""
        return self.on(self.store, **settings)

    def on(self, store: Store, **settings: Any) -> Scene:
        """Return the same scene as a process sees it that has another way to the store."""
        other = Scene(self.log, store, **settings)
        other.tag, other.topics, other.now_ms = self.tag, self.topics, self.now_ms
        return other

    async def new_topic(self, *, partitions: int = 4) -> str:
        """Make one more topic, known to journals."""
        name = f"tagged-{uuid.uuid4().hex[:12]}"
        await self.log.admin.create(name, partitions=partitions, config=JOURNAL_TOPIC)
        self.topics.append(name)
        await self.layout(name)
        return name

    async def layout(self, topic: str | None = None) -> Layout:
        """Return a topic's layout."""
        return await Topology(self.log, self.store.settings, topic or self.topic).refresh()

    async def append(
        self,
        id_: str,
        seq_nrs: Sequence[int] | int,
        tags: Sequence[str] | None = None,
        *,
        at_ms: int | None = None,
        topic: str | None = None,
        payload: object = None,
        expected: int | None = None,
    ) -> Position:
        """Append events with the scene's tag, or others, stamped with a time; else with the next millisecond."""
        numbers = [seq_nrs] if isinstance(seq_nrs, int) else list(seq_nrs)
        events = [Event(n, payload if payload is not None else f"{id_}:{n}", self.tags(tags)) for n in numbers]
        return await self.append_events(id_, events, at_ms=at_ms, topic=topic, expected=expected)

    async def append_events(
        self,
        id_: str,
        events: Sequence[Event],
        *,
        at_ms: int | None = None,
        topic: str | None = None,
        expected: int | None = None,
    ) -> Position:
        """Append one record of events that have tags of their own."""
        if at_ms is None:
            self.now_ms += 1
        layout = await self.layout(topic)
        record = record_of(layout.route(id_), id_, events, AppendOptions(), expected=expected)
        stamped = msgspec.structs.replace(record, timestamp_ms=self.now_ms if at_ms is None else at_ms)
        (position,) = await self.log.append([stamped])
        return position

    def tags(self, tags: Sequence[str] | None) -> tuple[str, ...]:
        """Return tags that no other test uses; None is the scene's own tag."""
        return (self.tag,) if tags is None else tuple(f"{self.tag}-{tag}" for tag in tags)

    async def put(self, record: NewRecord) -> None:
        """Write any record."""
        await self.log.append([record])

    async def replicate(self, **options: Any) -> None:
        """Carry everything into the store, views included."""
        for topic in self.topics:
            await replicate(self.log, self.store, topic, views=self.writer, **options)

    async def read(self, tag: str | None = None, **options: Any) -> list[TaggedEvent]:
        """Return what a query that ends gives."""
        name = self.tag if tag is None else f"{self.tag}-{tag}"
        return [event async for event in self.queries.events(name, **options)]

    def follow(self, tag: str | None = None, **options: Any) -> Follower:
        """Begin a live query."""
        name = self.tag if tag is None else f"{self.tag}-{tag}"
        return Follower(self.queries.events(name, live=True, **options))

    async def floor_ms(self) -> int:
        """Return the log time that the topic began at."""
        registry = await self.queries._seams.discover()
        return registry.floor_ms(self.topic, 0) or 0

    async def put_row(self, pid: str, number: int, log_time_ms: int, *, offset: int, partition: int = 0) -> TagRow:
        """Write a row of a view by hand, below what is said to be replicated."""
        registry = await self.queries._seams.discover()
        at = TagTime(log_time_ms, registry.topics[self.topic].number, partition, offset)
        row = TagRow(
            tag=self.tag,
            bucket_ms=Bucket[self.settings.bucket].start_of(log_time_ms),
            timestamp=timeuuid(at),
            pid=pid,
            number=number,
            seq_nr=number,
            topic=self.topic,
            generation=0,
            partition=partition,
            offset=offset,
            timestamp_ms=log_time_ms,
            payload_type="text",
            payload=f"{pid}:{number}".encode(),
        )
        await self.store.tags.views.write([row])
        return row

    async def say_replicated(self, offset: int, log_time_ms: int, *, partitions: int = 4) -> None:
        """Fill the log with Marks up to an offset, and say that all partitions are replicated up to there."""
        for partition in range(partitions):
            at = TopicPartition(self.topic, partition)
            bounds = await self.log.bounds(at)
            marks = [NewRecord(self.topic, partition=partition, timestamp_ms=1) for _ in range(bounds.end, offset + 1)]
            if marks:
                await self.log.append(marks)
            known = ReplicatedOffset(
                at=at, generation=0, offset=offset, log_time_ms=log_time_ms, created_ms=1, updated_ms=1
            )
            await self.store.writer.move_replicated(known)

    async def clear(self) -> None:
        """Take the topics away, so that no other test waits for them."""
        for topic in self.topics:
            await self.log.admin.delete(topic)


class Follower:
    """A live query, asked for events with a deadline."""

    def __init__(self, events: AsyncIterator[TaggedEvent]) -> None:
        self._events = events
        self._pending: asyncio.Task[TaggedEvent] | None = None

    async def next(self, many: int = 1, *, within_s: float = _DEADLINE_S) -> list[TaggedEvent]:
        """Return the next events; fails after the deadline."""
        async with asyncio.timeout(within_s):
            return [await self._next() for _ in range(many)]

    async def is_silent(self, for_s: float = 0.3) -> bool:
        """Return True if nothing comes for a while; what comes later is not lost."""
        task = self._ask()
        done, _ = await asyncio.wait([task], timeout=for_s)
        return not done

    async def stop(self) -> None:
        """End the query."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._events.aclose()  # type: ignore[attr-defined]

    def _ask(self) -> asyncio.Task[TaggedEvent]:
        if self._pending is None:
            self._pending = asyncio.ensure_future(anext(self._events))
        return self._pending

    async def _next(self) -> TaggedEvent:
        event = await asyncio.shield(self._ask())
        self._pending = None
        return event


async def take(events: AsyncIterator[TaggedEvent], many: int) -> list[TaggedEvent]:
    """Take some events and stop there."""
    taken = [await anext(events) for _ in range(many)]
    await events.aclose()  # type: ignore[attr-defined]
    return taken


def ids(events: Sequence[TaggedEvent]) -> list[str]:
    """Return id and seq_nr of an event, as in a1 or b2."""
    return [f"{event.id}{event.seq_nr}" for event in events]


def numbers_of(events: Sequence[TaggedEvent], id_: str) -> list[int]:
    """Return the numbers of one pid's events, as they came."""
    return [event.number for event in events if event.id == id_]


def ids_on(partition: int, many: int, *, partitions: int = 4, prefix: str = "p") -> list[str]:
    """Return ids that live in a partition."""
    found: list[str] = []
    is_there: Callable[[str], bool] = lambda id_: partition_of(id_.encode(), partitions) == partition  # noqa: E731
    for n in range(100_000):
        if is_there(f"{prefix}{n}"):
            found.append(f"{prefix}{n}")
        if len(found) == many:
            break
    return found
