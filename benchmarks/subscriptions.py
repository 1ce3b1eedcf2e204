"""subscriptions: changes of keys to many subscribers of a keyspace, beside queues that carry the same values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, p50, stopwatch
from benchmarks.workloads.keyspaces import BenchPlace, BenchValues
from headrace.keyspace import KeyspaceClient

SUBSCRIBERS = 1_000
CHANGES = 50
SINGLE = 200
VALUE = bytes(200)
_STATE = "values"


class SubscriptionContest:
    """One key that everybody follows, in one process: what is measured is the way from a commit to the subscribers."""

    def __init__(self, client: KeyspaceClient, subscribers: int, changes: int, single: int) -> None:
        self._client = client
        self._subscribers = subscribers
        self._changes = changes
        self._single = single
        self._round = 0

    async def work(self) -> Readings:
        """Put one key again and again under many subscribers; then put and wait for one subscriber."""
        self._round += 1
        key = f"key-{self._round}"
        await self._client.put(_STATE, key, VALUE)
        started = asyncio.Semaphore(0)
        following = [asyncio.create_task(self._follow(key, started)) for _ in range(self._subscribers)]
        for _ in following:
            await started.acquire()
        with stopwatch() as watch:
            for _ in range(self._changes):
                await self._client.put(_STATE, key, VALUE)
            await asyncio.gather(*following)
        lags = await self._lags(f"lone-{self._round}")
        return {"deliveries_per_s": watch.rate(self._subscribers * self._changes), "lag_p50_ms": p50(lags)}

    async def bound(self) -> Readings:
        """Hand the same values to as many readers of queues; and put without a subscriber."""
        queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in range(self._subscribers)]

        async def read(queue: asyncio.Queue[bytes]) -> None:
            for _ in range(self._changes):
                await queue.get()

        reading = [asyncio.create_task(read(queue)) for queue in queues]
        with stopwatch() as watch:
            for _ in range(self._changes):
                for queue in queues:
                    queue.put_nowait(VALUE)
                await asyncio.sleep(0)
            await asyncio.gather(*reading)
        seen = []
        for _ in range(self._single):
            with stopwatch() as put:
                await self._client.put(_STATE, "alone", VALUE)
            seen.append(put.seconds)
        return {"deliveries_per_s": watch.rate(self._subscribers * self._changes), "lag_p50_ms": p50(seen)}

    async def _follow(self, key: str, started: asyncio.Semaphore) -> None:
        """Take the present value, and then every change."""
        left = self._changes
        async for change in self._client.changes(_STATE, key):
            if change.is_present and not change.is_lagged:
                started.release()
                continue
            left -= 1
            if not left:
                return

    async def _lags(self, key: str) -> list[float]:
        """Return how long it takes from a put's call to its arrival at a subscriber, one after the other."""
        arrived: asyncio.Queue[None] = asyncio.Queue()

        async def follow() -> None:
            async for _ in self._client.changes(_STATE, key):
                arrived.put_nowait(None)

        following = asyncio.create_task(follow())
        await arrived.get()
        seen = []
        for _ in range(self._single):
            with stopwatch() as watch:
                await self._client.put(_STATE, key, VALUE)
                await arrived.get()
            seen.append(watch.seconds)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return seen


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    place = BenchPlace(f"embedded:{stage.folder / 'log'}", "", str(stage.folder / "state"))
    async with place.node("node", BenchValues) as (hr, _):
        counts = (stage.count(SUBSCRIBERS, least=10), stage.count(CHANGES, least=3), stage.count(SINGLE, least=3))
        contest = SubscriptionContest(hr.keyspace(BenchValues), *counts)
        yield Contest(contest.work, contest.bound)


BENCH = Bench(
    name="subscriptions",
    work=f"{CHANGES} changes of one key to {SUBSCRIBERS} subscribers in one process, on the embedded log; then one "
    "change at a time to one subscriber",
    measures=(
        Measure("deliveries_per_s", unit="deliveries/s", against="an asyncio.Queue for each subscriber"),
        Measure("lag_p50_ms", unit="ms", against="the put alone, until its reply"),
    ),
    setup=setup,
)
