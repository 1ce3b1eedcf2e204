"""Prometheus metrics, all named `headrace_<room>_<what>_<unit>`."""

from __future__ import annotations

import functools
import inspect
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server
from prometheus_client.samples import Sample

from headrace.errors import BadArgument, PortUnusable

__all__ = [
    "LATENCY_BUCKETS_S",
    "BatchHistogram",
    "MetricSample",
    "batch_histogram",
    "counter",
    "gauge",
    "histogram",
    "metric_samples",
    "render",
    "serve",
    "timed",
]

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_WORDS = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def counter(room: str, what: str, help: str, labels: Sequence[str] = ()) -> Counter:  # noqa: A002
    """Make a count that only grows: headrace_<room>_<what>_total. Made once, at import."""
    return Counter(_name(room, what), help, labels)


def gauge(room: str, what: str, unit: str, help: str, labels: Sequence[str] = ()) -> Gauge:  # noqa: A002
    """Make a value that goes up and down: headrace_<room>_<what>_<unit>."""
    return Gauge(_name(room, what, unit), help, labels)


def histogram(
    room: str,
    what: str,
    help: str,  # noqa: A002
    labels: Sequence[str] = (),
    *,
    unit: str = "seconds",
    buckets: Sequence[float] = LATENCY_BUCKETS_S,
) -> Histogram:
    """Make a distribution, with buckets for latencies unless others are given: headrace_<room>_<what>_<unit>."""
    return Histogram(_name(room, what, unit), help, labels, buckets=buckets)


# How many values of a histogram are counted at once.
_TOGETHER = 100


class BatchHistogram(Histogram):
    """A Histogram that also takes many values at once: on a hot path one at a time costs more than the work itself."""

    def observe_soon(self, amount: float) -> None:
        """Take a value, which is counted with others, at the latest when the metric is looked at."""
        waiting = self._waiting
        waiting.append(amount)
        if len(waiting) >= _TOGETHER:
            self._count_waiting()

    def _metric_init(self) -> None:
        super()._metric_init()
        self._waiting: deque[float] = deque()

    def _count_waiting(self) -> None:
        amounts = []
        with suppress(IndexError):  # another thread may take some
            while self._waiting:
                amounts.append(self._waiting.popleft())
        if amounts:
            self.observe_many(amounts)

    def _child_samples(self) -> Iterable[Sample]:
        self._count_waiting()
        return super()._child_samples()

    def observe_many(self, amounts: Sequence[float]) -> None:
        """Take the values."""
        counts: dict[int, int] = {}
        for amount in amounts:
            at = bisect_left(self._upper_bounds, amount)
            counts[at] = counts.get(at, 0) + 1
        self._sum.inc(sum(amounts))
        for at, count in counts.items():
            self._buckets[at].inc(count)


def batch_histogram(room: str, what: str, help: str, labels: Sequence[str] = ()) -> BatchHistogram:  # noqa: A002
    """Make a distribution of latencies that also takes many values at once: headrace_<room>_<what>_seconds."""
    return BatchHistogram(_name(room, what, "seconds"), help, labels, buckets=LATENCY_BUCKETS_S)


class Observer(Protocol):
    """Anything that takes a measured value: a Histogram, or one of its labelled children."""

    def observe(self, amount: float) -> None:
        """Take the value."""
        ...


class timed:  # noqa: N801 - used as a context manager and decorator, like contextlib's
    """Measure how long a block, a function or a coroutine function takes, errors included.

    with timed(APPENDS): ...          @timed(APPENDS)
    """

    def __init__(self, into: Observer) -> None:
        self._into = into
        self._started_s = 0.0

    def __enter__(self) -> timed:
        self._started_s = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._into.observe(time.perf_counter() - self._started_s)

    def __call__(self, function: _Function) -> _Function:
        """Return the function, measured; each call has a timer of its own because calls overlap."""
        into = self._into
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def measured_async(*args: object, **kwargs: object) -> object:
                with timed(into):
                    return await function(*args, **kwargs)

            return cast("_Function", measured_async)

        @functools.wraps(function)
        def measured(*args: object, **kwargs: object) -> object:
            with timed(into):
                return function(*args, **kwargs)

        return cast("_Function", measured)


class MetricSample(NamedTuple):
    """One value of a metric, with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


def metric_samples(names: Sequence[str], registry: CollectorRegistry = REGISTRY) -> list[MetricSample]:
    """Return the values of some metrics, named as in Prometheus' text format; those that don't exist have none."""
    found = registry.restricted_registry(names).collect()
    return [MetricSample(each.name, each.labels, each.value) for metric in found for each in metric.samples]


def render(registry: CollectorRegistry = REGISTRY) -> str:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(registry).decode()


@contextmanager
def serve(port: int, *, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> Iterator[int]:
    """Serve metrics over HTTP while the block runs; port 0 takes a free one. Yields the port."""
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise PortUnusable(host, port, str(error.strerror)) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _name(*words: str) -> str:
    name = "_".join(("headrace", *words))
    if not all(_WORDS.fullmatch(word) for word in words):
        raise BadArgument("metric", name, "its parts are lower-case words joined by '_'")
    return name
