"""Metrics: names by rule, timing of everything callable, exposition."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter

from headrace.errors import BadArgument, PortUnusable
from headrace.observe import (
    MetricSample,
    batch_histogram,
    counter,
    gauge,
    histogram,
    metric_samples,
    render,
    serve,
    timed,
)

LATENCY = histogram("test", "calls", "How long calls of this test take.", ["how"])
TOGETHER = batch_histogram("test", "together", "How long many calls of this test take.", ["how"])
EVENTS = counter("test", "events", "Things that happened in this test.")
QUEUED = gauge("test", "queued", "bytes", "What waits in this test.")


def calls(how: str) -> float:
    return REGISTRY.get_sample_value("headrace_test_calls_seconds_count", {"how": how}) or 0.0


def test_names_follow_the_rule() -> None:
    """headrace_<room>_<what>_<unit>; a counter's unit is total."""
    EVENTS.inc(3)
    QUEUED.set(7)
    text = render()
    assert "headrace_test_events_total 3.0" in text
    assert "headrace_test_queued_bytes 7.0" in text


def test_names_that_break_the_rule_are_refused() -> None:
    """Prometheus would take them; we would not find them again."""
    with pytest.raises(BadArgument, match="headrace_Log_x"):
        counter("Log", "x", "…")


def test_a_block_is_timed_also_when_it_fails() -> None:
    """The time until an error counts like any other."""
    with timed(LATENCY.labels("block")):
        pass
    with pytest.raises(ZeroDivisionError), timed(LATENCY.labels("block")):
        raise ZeroDivisionError
    assert calls("block") == 2


@pytest.mark.parametrize("count", [1, 99, 250])
def test_values_that_are_counted_together_are_all_there_when_somebody_looks(count: int) -> None:
    """A histogram of a hot path may count later, but not lose anything."""
    how = str(count)
    for _ in range(count):
        TOGETHER.labels(how).observe_soon(0.5)
    assert REGISTRY.get_sample_value("headrace_test_together_seconds_count", {"how": how}) == count
    assert REGISTRY.get_sample_value("headrace_test_together_seconds_sum", {"how": how}) == count * 0.5


def test_a_function_is_timed_and_stays_itself() -> None:
    """Name, result and arguments are kept."""

    @timed(LATENCY.labels("function"))
    def double(number: int) -> int:
        """Double."""
        return 2 * number

    assert (double(4), double.__name__, double.__doc__) == (8, "double", "Double.")
    assert calls("function") == 1


async def test_a_coroutine_is_timed_until_its_end() -> None:
    """Waiting counts, and calls that overlap are timed apart."""

    @timed(LATENCY.labels("coroutine"))
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    assert list(await asyncio.gather(wait(0.05), wait(0.0))) == [0.05, 0.0]
    assert calls("coroutine") == 2
    total = REGISTRY.get_sample_value("headrace_test_calls_seconds_sum", {"how": "coroutine"})
    assert total is not None
    assert total >= 0.05


def test_metrics_are_served_over_http() -> None:
    """A scrape gets the same text; the port is free again afterwards."""
    EVENTS.inc()
    for _ in range(2):
        with serve(0) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert b"headrace_test_events_total" in answer.read()


def test_a_taken_port_is_told() -> None:
    """The error names the address."""
    with serve(0) as port, pytest.raises(PortUnusable, match=f"127.0.0.1:{port}"), serve(port):
        pass


def test_some_metrics_are_read_by_name() -> None:
    """The values of the metrics that are named come with their labels; what does not exist has none."""
    registry = CollectorRegistry()
    Counter("headrace_test_read", "Read.", ["kind"], registry=registry).labels("a").inc(3)
    Counter("headrace_test_other", "Other.", registry=registry).inc()
    found = metric_samples(["headrace_test_read_total", "headrace_test_missing_total"], registry)
    assert found == [MetricSample("headrace_test_read_total", {"kind": "a"}, 3.0)]
