"""The recorder: it measures the log, the outbox, the engines and the gateway at an interval, and keeps an hour of it.

Many people may look at the console, and each of them asks again every few seconds. So what is costly to ask is asked
once for all of them, and a part that does not answer leaves a gap in its own charts only. The charts have a bounded
number of lines, each with a bounded number of points, in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headrace.errors import HeadraceError
from headrace.gateway.console.cluster_facts import Departures
from headrace.gateway.console.ports import ConsoleParts, LogTopics
from headrace.observe import MetricSample, get_logger, metric_samples
from headrace.runtime import Supervisor

if TYPE_CHECKING:  # it needs the extra `outbox`
    from headrace.outbox import LaneStatus

__all__ = [
    "HOUR_S",
    "Buckets",
    "ChartBook",
    "ChartPoint",
    "ConsoleRecorder",
    "Metered",
    "grown_by",
    "metered",
    "quantile_of",
]

HOUR_S = 3600.0

Buckets: TypeAlias = Mapping[float, float]
"""A histogram as Prometheus counts it: how many values were at most as large as each bound."""

_logger = get_logger(__name__)
_FRESH_S = 1.0
_DEADLINE_S = 10.0
_LINES_AT_MOST = 100
_REQUESTS = "headrace_gateway_request_seconds"
_STAGES = "headrace_engine_stage_seconds"
_COMMITTED = "headrace_engine_commands_total"
_NAMES = (f"{_REQUESTS}_bucket", f"{_STAGES}_bucket", _COMMITTED)
_GATEWAY = "gateway"


class ChartPoint(NamedTuple):
    """A value at a time. None is a gap: nothing could be measured, which is not the same as 0."""

    at_ms: int
    value: float | None


class ChartBook:
    """Points by chart and line. A full line loses its oldest point; a line without points of its own time is dropped.

    A chart has at most `lines` lines: further ones are left out, so that nobody fills the memory with names.
    """

    def __init__(self, *, points: int, lines: int, kept_s: float = HOUR_S) -> None:
        self._points = points
        self._lines = lines
        self._kept_ms = kept_s * 1000
        self._charts: dict[str, dict[str, deque[ChartPoint]]] = {}

    def add(self, chart: str, at_ms: int, values: Mapping[str, float | None]) -> None:
        """Add a point to each line that has a value, and a gap to each other line of the chart."""
        lines = self._charts.setdefault(chart, {})
        self._forget(lines, at_ms)
        for name in values:
            if name not in lines and len(lines) < self._lines:
                lines[name] = deque(maxlen=self._points)
        for name, points in lines.items():
            points.append(ChartPoint(at_ms, values.get(name)))

    def lines(self, chart: str) -> Mapping[str, Sequence[ChartPoint]]:
        """Return the points of a chart by line, the oldest first."""
        return {name: tuple(points) for name, points in self._charts.get(chart, {}).items()}

    def last(self, chart: str, line: str) -> float | None:
        """Return the newest value of a line; None if it has none."""
        points = self._charts.get(chart, {}).get(line)
        return points[-1].value if points else None

    def _forget(self, lines: dict[str, deque[ChartPoint]], now_ms: int) -> None:
        for name, points in list(lines.items()):
            while points and points[0].at_ms < now_ms - self._kept_ms:
                points.popleft()
            if all(point.value is None for point in points):
                del lines[name]


def grown_by(before: Buckets, now: Buckets) -> dict[float, float]:
    """Return what was counted between two looks at a histogram."""
    return {bound: max(0.0, count - before.get(bound, 0.0)) for bound, count in now.items()}


def quantile_of(counted: Buckets, share: float) -> float | None:
    """Return the value that `share` of the counted ones don't exceed, as a line within its bucket; None without any.

    What lies above the last finite bound is given as that bound: more is not known.
    """
    bounds = sorted(counted)
    if not bounds or not counted[bounds[-1]]:
        return None
    wanted = share * counted[bounds[-1]]
    for lower, upper in pairwise(_with_zero(bounds)):
        below, up_to = counted.get(lower, 0.0), counted[upper]
        if up_to >= wanted and up_to > below:
            return lower if upper == float("inf") else lower + (upper - lower) * (wanted - below) / (up_to - below)
    return None


def _with_zero(bounds: Iterable[float]) -> list[float]:
    return [0.0, *bounds]


class Metered(NamedTuple):
    """This process's own metrics at one time: answers, commands committed by engine, and histograms of times."""

    failed: float
    committed: Mapping[str, float]
    requests: Buckets
    sent: Mapping[str, Buckets]


class _Look(NamedTuple):
    at_s: float
    heads: Mapping[str, int]


class ConsoleRecorder:
    """Keeps the charts. `recording` runs it; without that, there are no charts, and everything else is there.

    `dead` is how many messages of the outbox are dead, by topic; `failing` are the parts that could not be measured.
    """

    def __init__(
        self, parts: ConsoleParts, *, every_s: float, read_metrics: Callable[[], list[MetricSample]] | None = None
    ) -> None:
        self.charts = ChartBook(points=max(2, round(HOUR_S / every_s)), lines=_LINES_AT_MOST)
        self.departures = Departures()
        self.every_s = every_s
        self._parts = parts
        self._read_metrics = read_metrics or (lambda: metric_samples(_NAMES))
        self._asking = asyncio.Lock()
        self._topics: LogTopics | None = None
        self._topics_at_s = 0.0
        self._look: _Look | None = None
        self._metered: tuple[float, Metered] | None = None
        self._parts_measured: dict[str, tuple[Callable[[], Awaitable[None]], tuple[str, ...]]] = {
            "log": (self._measure_topics, ("rate", "lag")),
            "outbox": (self._measure_outbox, ("pending", "dead")),
            "metrics": (self._measure_process, ()),
        }
        self.dead: dict[str, int] = {}
        self.failing: set[str] = set()
        self._is_recording = False

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Measure at the interval while the block runs; a block inside of another one does nothing more."""
        if self._is_recording:
            yield
            return
        self._is_recording = True
        background = Supervisor("console")
        for part in self._parts_measured:
            background.add(f"console-{part}", partial(self._record, part))
        try:
            async with background:
                yield
        finally:
            self._is_recording = False

    async def topics(self, *, fresh_s: float = _FRESH_S) -> LogTopics:
        """Return the topics, asked within the last second: once for all that ask. Raises what the log raises."""
        async with self._asking:
            if self._topics is None or time.monotonic() - self._topics_at_s >= fresh_s:
                self._topics = await self._parts.topics.topics()
                self._topics_at_s = time.monotonic()
            return self._topics

    def look_at_cluster(self) -> None:
        """Remember who is there now."""
        if (view := self._parts.cluster) is not None:
            self.departures.look(view, now_ms())

    def note_lanes(self, lanes: Sequence[LaneStatus]) -> None:
        """Remember how many messages are dead, by topic; whoever asked the outbox tells it."""
        dead: defaultdict[str, int] = defaultdict(int)
        for lane in lanes:
            dead[lane.topic] += lane.dead
        self.dead = dead

    async def measure(self) -> None:
        """Add one point to each chart."""
        await asyncio.gather(*map(self._measure, self._parts_measured))

    async def _record(self, part: str) -> None:
        """Measure one part at the interval, so that a slow one holds no other back."""
        while True:
            await self._measure(part)
            await asyncio.sleep(self.every_s)

    async def _measure(self, part: str) -> None:
        """Measure a part; one that does not answer leaves a gap, and is logged when it begins to fail."""
        self.look_at_cluster()
        measure, charts = self._parts_measured[part]
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await measure()
        except (HeadraceError, TimeoutError) as error:
            if part not in self.failing:
                _logger.warning("the console can't measure", part=part, error=repr(error))
            self.failing.add(part)
            self._look = None if part == "log" else self._look
            for chart in charts:
                self.charts.add(chart, now_ms(), {})
        else:
            self.failing.discard(part)

    async def _measure_topics(self) -> None:
        found, at_s = await self.topics(fresh_s=0.0), time.monotonic()
        heads = {each.name: each.head for each in found.topics}
        before, self._look = self._look, _Look(at_s, heads)
        self.charts.add("lag", now_ms(), {each.name: each.lag for each in found.topics if each.lag is not None})
        if before is not None and at_s > before.at_s:
            known = {name: head for name, head in heads.items() if name in before.heads}
            rates = {name: max(0, head - before.heads[name]) / (at_s - before.at_s) for name, head in known.items()}
            self.charts.add("rate", now_ms(), rates)

    async def _measure_outbox(self) -> None:
        if self._parts.outbox is None:
            return
        lanes = await self._parts.outbox.lanes()
        self.note_lanes(lanes)
        pending: defaultdict[str, float] = defaultdict(float)
        for lane in lanes:
            pending[lane.topic] += lane.pending
        self.charts.add("pending", now_ms(), pending)
        self.charts.add("dead", now_ms(), self.dead)

    async def _measure_process(self) -> None:
        now, at_s = metered(await asyncio.to_thread(self._read_metrics)), time.monotonic()
        before, self._metered = self._metered, (at_s, now)
        if before is None or at_s <= before[0]:
            return
        took_s, was, at_ms = at_s - before[0], before[1], now_ms()
        requests = grown_by(was.requests, now.requests)
        self.charts.add("requests", at_ms, {_GATEWAY: requests.get(float("inf"), 0.0) / took_s})
        self.charts.add("request_p99_ms", at_ms, {_GATEWAY: _ms(quantile_of(requests, 0.99))})
        self.charts.add("failed", at_ms, {_GATEWAY: max(0.0, now.failed - was.failed) / took_s})
        committed = {name: max(0.0, n - was.committed.get(name, 0.0)) / took_s for name, n in now.committed.items()}
        self.charts.add("commands", at_ms, committed)
        sent = {name: grown_by(was.sent.get(name, {}), counts) for name, counts in now.sent.items()}
        rates = {name: counts.get(float("inf"), 0.0) / took_s for name, counts in sent.items()}
        self.charts.add("sent", at_ms, rates)
        for share in (50, 99):
            times = {name: _ms(quantile_of(counts, share / 100)) for name, counts in sent.items()}
            self.charts.add(f"command_p{share}_ms", at_ms, times)


def metered(samples: list[MetricSample]) -> Metered:
    """Return what the charts need of the metrics, summed over the labels that they don't show."""
    failed, committed = 0.0, defaultdict[str, float](float)
    requests = defaultdict[float, float](float)
    sent: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for name, labels, value in samples:
        if name == _COMMITTED:
            committed[labels["engine"]] += value
        elif name == f"{_REQUESTS}_bucket":
            requests[float(labels["le"])] += value
            failed += value if labels["status"].startswith("5") and labels["le"] == "+Inf" else 0.0
        elif name == f"{_STAGES}_bucket" and labels["stage"] == "route":
            sent[labels["engine"]][float(labels["le"])] += value
    return Metered(failed, committed, requests, sent)


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
