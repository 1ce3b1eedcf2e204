"""tags-fanout: twenty live queries over 48 partitions in one process: what they cost, and how late they are."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most, p50, p99
from benchmarks.workloads.journals import ground, opened
from benchmarks.workloads.tagged import marks_written
from headrace.app import Headrace
from headrace.journal import Journal
from headrace.model import Event

TOPIC = "fanned"
PARTITIONS = 48
QUERIES = 20
JOURNALS = 480
VALUE = b"x" * 200
PER_S = 500
EVENTS = 3000
IDLE_S = 3.0
_DEADLINE_S = 120.0
_STEP_S = 0.01
_LET_GO_S = 10.0  # until a log without listeners has closed its consumer


class FanoutContest:
    """The same appends at the same pace: seen by twenty ordered queries, and by one raw consumer."""

    def __init__(self, hr: Headrace, journal: Journal, address: str, *, count: int) -> None:
        self._hr = hr
        self._journal = journal
        self._address = address
        self._count = count
        self._sent_s: dict[str, deque[float]] = defaultdict(deque)
        self._numbers: dict[str, int] = defaultdict(int)
        self._lags_s: list[float] = []
        self._run = uuid.uuid4().hex[:8]

    async def work(self) -> Readings:
        """Open the queries, see the first event, be idle for a while, then append steadily."""
        await self._journal.append(uuid.uuid4().hex, [Event(1, VALUE, tags=tuple(self._tags()))])
        await asyncio.sleep(_LET_GO_S)
        threads, files, began_s = _threads(), _files(), time.perf_counter()
        reached = asyncio.Semaphore(0)
        reading = [asyncio.create_task(self._read(tag, reached)) for tag in self._tags()]
        try:
            async with asyncio.timeout(_DEADLINE_S):
                for _ in reading:
                    await reached.acquire()
                first_s = time.perf_counter() - began_s
                idle = await _idle_cpu()
                costs = {"threads": float(_threads() - threads), "files": float(_files() - files)}
                before = marks_written()
                await self._append_steadily(self._tags())
                for _ in range(self._count):
                    await reached.acquire()
                marks = (marks_written() - before) / self._count
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        lags = self._taken_lags()
        return {
            **costs,
            "idle_cpu_percent": idle,
            "first_event_s": first_s,
            "lag_p50_ms": p50(lags),
            "lag_p99_ms": p99(lags),
            "marks_per_event": marks,
        }

    async def bound(self) -> Readings:
        """The same with a consumer of all partitions."""
        await asyncio.sleep(_LET_GO_S)
        threads, files, began_s = _threads(), _files(), time.perf_counter()
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": "fanout", "fetch.wait.max.ms": 100})
        try:
            await self._journal.append(uuid.uuid4().hex, [Event(1, VALUE)])
            consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
            if await asyncio.to_thread(consumer.poll, 30.0) is None:
                raise BenchFailed("the raw consumer saw nothing for 30 s")
            first_s = time.perf_counter() - began_s
            while await asyncio.to_thread(consumer.consume, 1000, 0.5):
                pass
            idle = await _idle_cpu()
            costs = {"threads": float(_threads() - threads), "files": float(_files() - files)}
            self._sent_s.clear()
            consuming = asyncio.create_task(asyncio.to_thread(self._consume, consumer))
            await self._append_steadily([])
            await consuming
        finally:
            await asyncio.to_thread(consumer.close)
        lags = self._taken_lags()
        return {
            **costs,
            "idle_cpu_percent": idle,
            "first_event_s": first_s,
            "lag_p50_ms": p50(lags),
            "lag_p99_ms": p99(lags),
        }

    def _consume(self, consumer: Any) -> None:  # noqa: ANN401
        left, deadline_s = self._count, time.monotonic() + _DEADLINE_S
        while left and time.monotonic() < deadline_s:
            for message in consumer.consume(100, 0.01):
                key = message.key() or b""
                if message.error() is None and self._saw(key.decode()):
                    left -= 1
        if left:
            raise BenchFailed(f"the raw consumer missed {left} records")

    async def _read(self, tag: str, reached: asyncio.Semaphore) -> None:
        async for event in self._hr.events_by_tag(tag, live=True):
            self._saw(event.id)
            reached.release()

    def _saw(self, id_: str) -> bool:
        """Note how late the next event of a journal is; False if none was sent."""
        sent_s = self._sent_s.get(id_)
        if not sent_s:
            return False
        self._lags_s.append(time.perf_counter() - sent_s.popleft())
        return True

    async def _append_steadily(self, tags: list[str]) -> None:
        """Append to all journals in turn, each under a tag of its own; those of one journal come one after another."""
        began_s, appending = time.perf_counter(), []
        for n in range(self._count):
            early_s = began_s + n / PER_S - time.perf_counter()
            if early_s > 0:
                await asyncio.sleep(max(early_s, _STEP_S))
            id_ = f"journal-{n % JOURNALS}"
            self._numbers[id_] += 1
            event = Event(self._numbers[id_], VALUE, tags=(tags[n % JOURNALS % QUERIES],) if tags else ())
            self._sent_s[id_].append(time.perf_counter())
            appending.append(asyncio.ensure_future(self._journal.append(id_, [event])))
        await asyncio.gather(*appending)

    def _tags(self) -> list[str]:
        return [f"{self._run}-{n}" for n in range(QUERIES)]

    def _taken_lags(self) -> list[float]:
        lags, self._lags_s = self._lags_s, []
        self._sent_s.clear()
        self._run = uuid.uuid4().hex[:8]
        return lags


async def _idle_cpu() -> float:
    """Return the share of a processor that the process takes while nothing happens, in percent."""
    began_s, used_s = time.perf_counter(), time.process_time()
    await asyncio.sleep(IDLE_S)
    return 100 * (time.process_time() - used_s) / (time.perf_counter() - began_s)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        journal = await opened(on.hr, TOPIC, partitions=PARTITIONS)
        contest = FanoutContest(on.hr, journal, on.kafka.address, count=stage.count(EVENTS, least=100))
        yield Contest(contest.work, contest.bound)


RAW = "one raw consumer of the same partitions"
BENCH = Bench(
    name="tags-fanout",
    work="20 live queries over 48 partitions in one process, 500 events/s of 480 journals",
    measures=(
        Measure("threads", unit="threads", against=RAW),
        Measure("files", unit="files", against=RAW),
        Measure("idle_cpu_percent", unit="%", against=RAW),
        Measure("first_event_s", unit="s", against=RAW),
        Measure("lag_p50_ms", unit="ms", against=RAW, target=at_most(5)),
        Measure("lag_p99_ms", unit="ms", against=RAW),
        Measure("marks_per_event", unit="Marks"),
    ),
    setup=setup,
)
