"""tags-lag: from the call of append until a live query by tag has the event, one event at a time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most, p50, p99, stopwatch
from benchmarks.workloads.journals import ground, opened
from benchmarks.workloads.tagged import marks_written
from headrace.app import Headrace
from headrace.journal import Journal
from headrace.model import Event

TOPIC = "tagged"
TAG = "green"
EVENTS = 300
PARTITIONS = 4


class LagContest:
    """The same appends; ours are seen in the one order of four partitions, the raw consumer's in that of one."""

    def __init__(self, hr: Headrace, journal: Journal, address: str, *, count: int) -> None:
        self._hr = hr
        self._journal = journal
        self._address = address
        self._count = count
        self._raw_events = 0

    async def work(self) -> Readings:
        """Append, and wait for the query."""
        seen: list[float] = []
        before = marks_written()
        async with aclosing(self._hr.events_by_tag(TAG, live=True, after=await self._end())) as events:
            await self._see(events)  # the query is running now
            seen += [await self._see(events) for _ in range(self._count)]
        marks = (marks_written() - before) / (self._count + 1)
        return {"lag_p50_ms": p50(seen), "lag_p99_ms": p99(seen), "marks_per_event": marks}

    async def bound(self) -> Readings:
        """Append, and wait for a consumer of the partition."""
        seen = []
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": "lag", "fetch.wait.max.ms": 100})
        try:
            position = await self._journal.append("raw", [self._next()])
            consumer.assign([TopicPartition(TOPIC, position.partition, position.offset)])
            await asyncio.to_thread(consumer.poll, 30.0)
            for _ in range(self._count):
                event = self._next()
                with stopwatch() as watch:
                    polled = asyncio.ensure_future(asyncio.to_thread(consumer.poll, 30.0))
                    await self._journal.append("raw", [event])
                    if await polled is None:
                        raise BenchFailed("the raw consumer saw nothing for 30 s")
                seen.append(watch.seconds)
        finally:
            consumer.close()
        return {"lag_p50_ms": p50(seen), "lag_p99_ms": p99(seen)}

    async def _see(self, events: AsyncIterator[object]) -> float:
        with stopwatch() as watch:
            waiting = asyncio.ensure_future(anext(events))
            await self._journal.append(uuid.uuid4().hex, [Event(1, b"x" * 200, tags=(TAG,))])
            await waiting
        return watch.seconds

    def _next(self) -> Event:
        self._raw_events += 1
        return Event(self._raw_events, b"x" * 200)

    async def _end(self) -> str | None:
        last = None
        async for event in self._hr.events_by_tag(TAG):
            last = str(event.tag_offset)
        return last


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        journal = await opened(on.hr, TOPIC, partitions=PARTITIONS)
        contest = LagContest(on.hr, journal, on.kafka.address, count=stage.count(EVENTS, least=10))
        yield Contest(contest.work, contest.bound)


RAW = "a raw consumer that waits for the same append"
BENCH = Bench(
    name="tags-lag",
    work="append until a live query by tag has the event, 4 partitions, nothing replicated",
    measures=(
        Measure("lag_p50_ms", unit="ms", against=RAW, target=at_most(5)),
        Measure("lag_p99_ms", unit="ms", against=RAW),
        Measure("marks_per_event", unit="Marks"),
    ),
    setup=setup,
)
