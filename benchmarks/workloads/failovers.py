"""Owners that are killed and frozen under load, again and again: how long nobody answers, and how many calls fail."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Literal, NamedTuple, TypeAlias

from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, at_most
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
_BUCKET_MS = 100
_CALLERS = 4
_ROUND_S = 60.0

Setup: TypeAlias = Callable[[Stage], AbstractAsyncContextManager[Contest]]
Harm = Literal["kill", "freeze"]
HARMS: tuple[Harm, ...] = ("kill", "freeze")
_RANKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}

MEASURES = (
    *(
        Measure(f"{harm}_{rank}_ms", unit="ms", against=AGAINST, target=at_most(1) if rank != "worst" else None)
        for harm in HARMS
        for rank in _RANKS
    ),
    Measure("without_failed_calls", unit="of all fail-overs", against="all of them", target=at_least(1)),
)


class Failover(NamedTuple):
    """A fail-over: the longest time without a success, how many calls succeeded, and the errors of the others."""

    gap_ms: float
    succeeded: int
    errors: Sequence[str]


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return median, 90th and 99th percentile and worst."""
    ordered = sorted(samples)
    return {name: ordered[rank_of(len(ordered), share)] for name, share in _RANKS.items()}


def bars(samples: Sequence[float]) -> list[str]:
    """Return a histogram as lines of text."""
    buckets = Counter(int(each // _BUCKET_MS) for each in samples)
    return [
        f"{n * _BUCKET_MS:5d}-{(n + 1) * _BUCKET_MS:4d} ms {buckets[n]:4d} {'#' * buckets[n]}"
        for n in range(min(buckets), max(buckets) + 1)
    ]


class CallsUnderWay:
    """Callers that ask with ids and read, without a pause; `gap_s` is the longest time without a success."""

    def __init__(self, client: KeyspaceClient) -> None:
        self._client = client
        self._tasks = [asyncio.create_task(self._ask_on(n)) for n in range(_CALLERS)]
        self._tasks += [asyncio.create_task(self._read_on(n)) for n in range(_CALLERS)]
        self._last_s = time.monotonic()
        self.successes = 0
        self.gap_s = 0.0
        self.errors: list[str] = []

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
            except HeadraceError as error:
                self.errors.append(f"ask: {type(error).__name__}: {error}")
            await asyncio.sleep(0.005)

    async def _read_on(self, number: int) -> None:
        while True:
            try:
                await self._client.get("totals", f"k{number}")
                self._succeeded()
            except HeadraceError as error:
                self.errors.append(f"get: {type(error).__name__}: {error}")
            await asyncio.sleep(0.005)

    def _succeeded(self) -> None:
        now_s = time.monotonic()
        self.gap_s = max(self.gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.successes += 1


class NodeProcesses:
    """Nodes in processes of their own, and a spare one that has imported all it needs and waits for a name."""

    def __init__(self, place: BenchPlace) -> None:
        self._place = place
        self._held: dict[int, ExitStack] = {}
        self._spare: ChildProcess | None = None
        self.by_name: dict[str, ChildProcess] = {}

    async def prepare(self) -> None:
        """Have a spare process that is ready."""
        if self._spare is None:
            held = ExitStack()
            self._spare = held.enter_context(running_function(_SERVE, *self._place))
            self._held[self._spare.pid] = held
            await asyncio.to_thread(self._spare.wait_for_line, "ready", _ROUND_S)

    async def start(self, name: str) -> None:
        """Let the spare process be a node, and prepare the next one."""
        await self.prepare()
        if self._spare is None:
            raise AssertionError("a process was prepared")
        child, self._spare = self._spare, None
        self.by_name[name] = child
        child.send_line(name)
        await asyncio.gather(asyncio.to_thread(child.wait_for_line, "started", _ROUND_S), self.prepare())

    def kill(self, name: str) -> None:
        """Kill -9."""
        child = self.by_name.pop(name)
        child.kill()
        self._held.pop(child.pid).close()

    def close(self) -> None:
        """End them all."""
        for held in self._held.values():
            held.close()


class FailoverContest:
    """Three nodes in processes of their own, and the caller here."""

    def __init__(self, name: str, place: BenchPlace, hr: Headrace, node: RunningNode, stage: Stage) -> None:
        self._name = name
        self._hr = hr
        self._node = node
        self._stage = stage
        self._nodes = NodeProcesses(place)

    async def open(self) -> None:
        """Start the nodes."""
        await self._hr.log.admin.create("bench-side", partitions=1, config=TopicConfig())
        for name in ("node-1", "node-2", "node-3"):
            await self._nodes.start(name)

    def close(self) -> None:
        """End them."""
        self._nodes.close()

    async def work(self) -> Readings:
        """Harm the owner again and again."""
        count = self._stage.count(self._stage.repeats)
        seen = {harm: [await self._failover(harm, f"{nr} of {count}") for nr in range(1, count + 1)] for harm in HARMS}
        gaps = {harm: [each.gap_ms for each in found] for harm, found in seen.items()}
        for harm, found in seen.items():
            self._tell(harm, found)
        self._draw(gaps, [each for found in seen.values() for each in found])
        readings = {f"{harm}_{name}_ms": value for harm, each in gaps.items() for name, value in spread(each).items()}
        is_sound = [not each.errors for found in seen.values() for each in found]
        return {**readings, "without_failed_calls": sum(is_sound) / len(is_sound)}

    async def bound(self) -> Readings:
        """Return what is promised."""
        return {each.metric: PROMISED_MS if each.unit == "ms" else 1.0 for each in MEASURES}

    def _tell(self, harm: Harm, found: Sequence[Failover]) -> None:
        gaps = [each.gap_ms for each in found]
        for line in bars(gaps):
            self._stage.tell(f"{harm} {line}")
        shown = ", ".join(f"{name} {value:.0f} ms" for name, value in spread(gaps).items())
        self._stage.tell(f"{harm}: {len(gaps)} times, {shown}; {_failed(found)}")

    def _draw(self, gaps: Mapping[Harm, Sequence[float]], found: Sequence[Failover]) -> None:
        if self._stage.plots is not None:
            title = f"{self._name}: time without a success when an owner is killed or frozen; {_failed(found)}"
            samples = {str(harm): each for harm, each in gaps.items()}
            path = self._stage.plots / f"{self._name}.svg"
            histogram(samples, path, title=title, unit="ms", limit=PROMISED_MS)

    async def _failover(self, harm: Harm, number: str) -> Failover:
        """Harm the owner, and return when everything is ready for the next time."""
        began_s = time.monotonic()
        await self._in_time(self._settled(), "an owner and a standby that has caught up")
        calls = CallsUnderWay(self._hr.keyspace(BenchCounters))
        try:
            await self._in_time(calls.go_on(), "successes before the harm")
            calls.gap_s = 0.0
            await self._in_time(self._kill(calls) if harm == "kill" else self._freeze(calls), "successes after it")
            await self._in_time(self._settled(), "the node's return")
            await calls.go_on()
        finally:
            await calls.stop()
        seen = Failover(calls.gap_s * 1000, calls.successes, calls.errors)
        took = f"{time.monotonic() - began_s:.1f} s until the node is back"
        self._stage.tell(f"{harm} {number}: {seen.gap_ms:.0f} ms without a success, {took}; {_failed([seen])}")
        for error in seen.errors[:3]:
            self._stage.tell(f"{harm} {number}: {error}")
        return seen

    async def _in_time(self, work: Coroutine[object, object, None], what: str) -> None:
        try:
            async with asyncio.timeout(_ROUND_S):
                await work
        except TimeoutError as error:
            raise BenchFailed(f"waited {_ROUND_S:g} s for {what}; the view is {self._node.view}") from error

    async def _kill(self, calls: CallsUnderWay) -> None:
        owner = self._owner()
        self._nodes.kill(owner)
        await calls.go_on()
        await self._nodes.start(owner)

    async def _freeze(self, calls: CallsUnderWay) -> None:
        owner = self._owner()
        child = self._nodes.by_name[owner]
        await self._pause(child)
        while self._owner_or_none() in (owner, None):  # noqa: ASYNC110 - the view is only looked at
            await asyncio.sleep(0.01)
        await calls.go_on()
        child.resume()

    async def _pause(self, child: ChildProcess) -> None:
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

    async def _settled(self) -> None:
        """Wait until the partition has an owner and a standby that has caught up, and every node is there.

        What a node told before it was killed or frozen names an epoch: it is no standby.
        """
        while True:
            members = self._node.view.members
            copies = [
                each
                for name in members.keys() & self._nodes.by_name.keys()
                for each in members[name].holdings
                if each.group == GROUP and each.is_online
            ]
            owners = sum(each.epoch > 0 for each in copies)
            is_owned = self._owner_or_none() in self._nodes.by_name
            if is_owned and owners == 1 and len(copies) >= 2 and members.keys() >= self._nodes.by_name.keys():
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


def _failed(found: Sequence[Failover]) -> str:
    failed = sum(len(each.errors) for each in found)
    return f"{failed} of {failed + sum(each.succeeded for each in found)} calls failed"


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
