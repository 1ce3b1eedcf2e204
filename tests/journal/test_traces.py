"""The span of an append travels in its record, and comes back with its events."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.suites.journal_setting import replicate

import headrace
from headrace.model import Event
from headrace.observe import extract, span, traces
from headrace.projection import Projection


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
            await journal.append("k", [Event(4, b"plain")])
        trace_id = format(request.get_span_context().trace_id, "032x")
        for _ in range(2):
            first, second, third, plain = [event.headers async for event in journal.read("k")]
            assert trace_id in first["traceparent"]
            assert trace_id in second["traceparent"]
            assert trace_id in plain["traceparent"]
            assert third == {"traceparent": given, "h": "v"}
            assert extract((("traceparent", first["traceparent"].encode()),))
            await replicate(hr.log, hr.store, "t")


async def test_without_a_span_nothing_is_added(tmp_path: Path) -> None:
    """Records of applications that trace nothing are what they were."""
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        journal = hr.journal("t")
        await journal.append("k", [Event(1)])
        assert [event.headers async for event in journal.read("k")] == [{}]


async def test_a_projection_goes_on_with_the_trace_of_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler does for one event belongs to the event's trace; a batch is linked to the trace of each."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", provider.get_tracer("headrace"))
    given = [f"00-0af7651916cd43dd8448eb211c8031{n}c-b7ad6b7169203331-01" for n in range(3)]
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        journal = hr.journal("t", partitions=1)
        for n, parent in enumerate(given[:2], 1):
            await journal.append("k", [Event(n, tags=("vip",))], headers={"traceparent": parent})
        async with hr.project(Projection("seen", "vip", lambda event: None)) as running:
            await running.caught_up()
            await journal.append("k", [Event(3, tags=("vip",))], headers={"traceparent": given[2]})
            await running.caught_up()
    handled = [each for each in exporter.get_finished_spans() if each.name == "projection.handle"]
    continued = {each.context.trace_id for each in handled if each.context is not None}
    linked = {link.context.trace_id for each in handled for link in each.links}
    assert linked == {int(parent.split("-")[1], 16) for parent in given}
    assert int(given[2].split("-")[1], 16) in continued
