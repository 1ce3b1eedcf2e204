"""The span of an append travels in its record, and comes back with its events."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from tests.suites.journal_setting import replicate

import headrace
from headrace.model import Event
from headrace.observe import extract, span, traces


async def test_a_trace_travels_with_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever handles an event can go on with the trace of its append, out of the log and out of the store."""
    monkeypatch.setattr(traces, "_tracer", TracerProvider(shutdown_on_exit=False).get_tracer("headrace"))
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        journal = hr.journal("t")
        with span("request") as request:
            await journal.append("k", [Event(1)])
            await journal.append_next("k", ["x"])
            await journal.append("k", [Event(3)], headers={"traceparent": given, "h": "v"}, expected=2)
        trace_id = format(request.get_span_context().trace_id, "032x")
        for _ in range(2):
            first, second, third = [event.headers async for event in journal.read("k")]
            assert trace_id in first["traceparent"]
            assert trace_id in second["traceparent"]
            assert third == {"traceparent": given, "h": "v"}
            assert extract((("traceparent", first["traceparent"].encode()),))
            await replicate(hr.log, hr.store, "t")


async def test_without_a_span_nothing_is_added(tmp_path: Path) -> None:
    """Records of applications that trace nothing are what they were."""
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        journal = hr.journal("t")
        await journal.append("k", [Event(1)])
        assert [event.headers async for event in journal.read("k")] == [{}]
