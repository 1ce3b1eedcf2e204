"""Owners that are killed and frozen under load, again and again: how long nobody answers, and how many calls fail."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Literal, TypeAlias

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, at_most
from benchmarks.harness.plots import histogram, rank_of
from benchmarks.workloads.keyspaces import Add, BenchCounters, BenchPlace
from headrace.app import Headrace, RunningNode
from headrace.errors import HeadraceError
from headrace.keyspace import KeyspaceClient
from headrace.model import NewRecord, TopicConfig
from headrace.testing.processes import ChildProcess, running_function

__all__ = ["failover_bench", "failovers"]

PROMISED_MS = 2000.0
AGAINST = "the 2 s within which 99 of 100 fail-overs are promised to end"
GROUP = "bench-counters"
_SERVE = "benchmarks.workloads.keyspaces:serve_counters"
_BUCKET_MS = 250
_CALLERS = 4

Setup: TypeAlias = Callable[[Stage], AbstractAsyncContextManager[Contest]]
Harm = Literal["kill", "freeze"]
HARMS: tuple[Harm, ...] = ("kill", "freeze")

MEASURES = (
    Measure("kill_p50_ms", unit="ms", against=AGAINST, target=at_most(1)),
    Measure("kill_p99_ms", unit="ms", against=AGAINST, target=at_most(1)),
    Measure("kill_worst_ms", unit="ms", against=AGAINST),
    Measure("freeze_p50_ms", unit="ms", against=AGAINST, target=at_most(1)),
    Measure("freeze_p99_ms", unit="ms", against=AGAINST, target=at_most(1)),
    Measure("freeze_worst_ms", unit="ms", against=AGAINST),
    Measure("answered_calls", unit="of all", against="all of them", target=at_least(1)),
)


def spread(ordered: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and worst of samples that are in order."""
    ranks = {"p50": rank_of(len(ordered), 0.5), "p99": rank_of(len(ordered), 0.99), "worst": -1}
    return {name: ordered[rank] for name, rank in ranks.items()}


class CallsUnderWay:
    """Callers that ask with ids and read, without a pause; `gap_s` is the longest time without a success."""

    def __init__(self, client: KeyspaceClient) -> None:
        self._client = client
        self._tasks = [asyncio.create_task(self._ask_on(n)) for n in range(_CALLERS)]
        self._tasks += [asyncio.create_task(self._read_on(n)) for n in range(_CALLERS)]
        self._last_s = time.monotonic()
        self.successes = 0
        self.gap_s = 0.0
        self.failed = 0

    async def go_on(self, successes: int = 50) -> None:
        """Wait for so many more successes."""
        wanted = self.successes + successes
        while self.successes < wanted:  # noqa: ASYNC110 - it is counted by others
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Call no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask_on(self, number: int) -> None:
        while True:
            try:
                await self._client.ask(Add(f"k{number}"), message_id=uuid.uuid4().hex)
                self._succeeded()
            except HeadraceError:
                self.failed += 1
            await asyncio.sleep(0.005)

    async def _read_on(self, number: int) -> None:
        while True:
            try:
                await self._client.get("totals", f"k{number}")
                self._succeeded()
            except HeadraceError:
                self.failed += 1
            await asyncio.sleep(0.005)

    def _succeeded(self) -> None:
        now_s = time.monotonic()
        self.gap_s = max(self.gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.successes += 1


class FailoverContest:
    """Three nodes in processes of their own, and the caller here."""

    def __init__(self, name: str, place: BenchPlace, hr: Headrace, node: RunningNode, stage: Stage) -> None:
        self._name = name
        self._place = place
        self._hr = hr
        self._node = node
        self._stage = stage
        self._held = ExitStack()
        self._children: dict[str, ChildProcess] = {}
        self._calls = 0
        self._failed = 0

    async def open(self) -> None:
        """Start the nodes."""
        await self._hr.log.admin.create("bench-side", partitions=1, config=TopicConfig())
        for name in ("node-1", "node-2", "node-3"):
            await self._start(name)

    def close(self) -> None:
        """End them."""
        self._held.close()

    async def work(self) -> Readings:
        """Harm the owner again and again."""
        count = self._stage.count(self._stage.repeats)
        self._calls = self._failed = 0
        gaps = {harm: await self._gaps(harm, count) for harm in HARMS}
        self._draw(gaps)
        readings = {f"{harm}_{name}_ms": value for harm, each in gaps.items() for name, value in spread(each).items()}
        return {**readings, "answered_calls": self._calls / (self._calls + self._failed)}

    async def bound(self) -> Readings:
        """Return what is promised."""
        return {each.metric: PROMISED_MS if each.unit == "ms" else 1.0 for each in MEASURES}

    def _draw(self, gaps: Mapping[Harm, Sequence[float]]) -> None:
        if self._stage.plots is not None:
            failed = f"{self._failed} of {self._calls + self._failed} calls failed"
            title = f"{self._name}: time without a success when an owner is killed or frozen; {failed}"
            samples = {str(harm): each for harm, each in gaps.items()}
            path = self._stage.plots / f"{self._name}.svg"
            histogram(samples, path, title=title, unit="ms", limit=PROMISED_MS)

    async def _gaps(self, harm: Harm, count: int) -> Sequence[float]:
        """Return the times without a success, the shortest first."""
        gaps, failed = [], 0
        for _ in range(count):
            await self._settled()
            calls = CallsUnderWay(self._hr.keyspace(BenchCounters))
            await calls.go_on()
            calls.gap_s = 0.0
            await self._harm(harm, calls)
            await calls.stop()
            gaps.append(calls.gap_s * 1000)
            failed += calls.failed
            self._calls += calls.successes
        gaps.sort()
        buckets = Counter(int(gap // _BUCKET_MS) * _BUCKET_MS for gap in gaps)
        shown = ", ".join(f"{low}-{low + _BUCKET_MS} ms: {n}" for low, n in sorted(buckets.items()))
        self._stage.tell(f"{harm}: {shown}; {failed} calls failed")
        self._failed += failed
        return gaps

    async def _harm(self, harm: Harm, calls: CallsUnderWay) -> None:
        owner = self._owner()
        child = self._children[owner]
        if harm == "kill":
            child.kill()
            del self._children[owner]
            await calls.go_on()
            await self._start(owner)
            return
        await self._freeze(child)
        while self._owner_or_none() in (owner, None):  # noqa: ASYNC110 - the view is only looked at
            await asyncio.sleep(0.01)
        await calls.go_on()
        child.resume()
        await calls.go_on()

    async def _freeze(self, child: ChildProcess) -> None:
        """Stop a process that does not hold the write lock of the embedded log's file: that one stops all."""
        while True:
            child.pause()
            try:
                async with asyncio.timeout(0.1):
                    await self._hr.log.append([NewRecord("bench-side", b"k", b"v")])
                return
            except TimeoutError:
                child.resume()
                await asyncio.sleep(0.05)

    async def _start(self, name: str) -> None:
        child = self._held.enter_context(running_function(_SERVE, *self._place, name))
        await asyncio.to_thread(child.wait_for_line, "started", 60)
        self._children[name] = child

    async def _settled(self) -> None:
        """Wait until the partition has an owner among the nodes and a standby that has caught up."""
        while True:
            members = self._node.view.members.values()
            copies = [each for facts in members for each in facts.holdings if each.group == GROUP and each.is_online]
            if self._owner_or_none() in self._children and len(copies) >= 2:
                return
            await asyncio.sleep(0.02)

    def _owner(self) -> str:
        owner = self._owner_or_none()
        if owner is None:
            raise AssertionError("the partition has an owner")
        return owner

    def _owner_or_none(self) -> str | None:
        found = self._node.view.owners.get(GROUP, {}).get(0)
        return None if found is None else found.member


@asynccontextmanager
async def failovers(name: str, stage: Stage, *, log: str, coordinator: str = "") -> AsyncIterator[Contest]:
    """Set the contest of a bench up."""
    place = BenchPlace(log, coordinator, str(stage.folder / "state"))
    async with place.node("caller") as (hr, node):
        contest = FailoverContest(name, place, hr, node, stage)
        try:
            await contest.open()
            yield Contest(contest.work, contest.bound)
        finally:
            contest.close()


def failover_bench(name: str, setup: Setup) -> Bench:
    """Return a bench of fail-overs; each kind happens `--repeats` times, scaled."""
    return Bench(
        name=name,
        work="kill -9 and SIGSTOP of a partition's owner under reads and asks with ids: the time without a success",
        measures=MEASURES,
        setup=setup,
        is_one_round=True,
    )
