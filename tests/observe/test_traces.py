"""Traces travel in headers; without an SDK they cost and do nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.observe import extract, extract_text, inject, linked_span, span, traces, untraced

HEADERS = (("kind", b"append"), ("empty", None))
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", provider.get_tracer("headrace"))
    return exporter


def test_a_span_continues_over_a_record(exported: InMemorySpanExporter) -> None:
    """What the writer injects, the reader extracts: one trace, parent and child."""
    with span("append", topic="a"):
        headers = inject(HEADERS)
    with span("read", parent=extract(headers)):
        pass
    append, read = exported.get_finished_spans()
    assert append.context is not None
    assert read.context is not None
    assert read.parent is not None
    assert read.context.trace_id == append.context.trace_id
    assert read.parent.span_id == append.context.span_id
    assert append.attributes == {"topic": "a"}


def test_other_headers_are_kept_and_an_old_parent_is_replaced(exported: InMemorySpanExporter) -> None:
    """The new traceparent takes the old one's place; nothing else changes."""
    with span("append") as current:
        headers = inject((*HEADERS, ("traceparent", PARENT)))
    assert headers[:2] == HEADERS
    [(name, value)] = headers[2:]
    assert name == "traceparent"
    assert value is not None
    assert format(current.get_span_context().trace_id, "032x").encode() in value


def test_an_error_is_recorded_and_raised(exported: InMemorySpanExporter) -> None:
    """A span whose block fails is marked, and the error goes on."""
    with pytest.raises(ZeroDivisionError), span("append"):
        raise ZeroDivisionError
    [failed] = exported.get_finished_spans()
    assert not failed.status.is_ok


def test_a_span_is_linked_to_the_traces_of_records(exported: InMemorySpanExporter) -> None:
    """One trace is continued. Of several each is linked once; records without a trace, or a damaged one, are not."""
    other = {"traceparent": "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-01"}
    first = {"traceparent": PARENT.decode(), "h": "v"}
    with linked_span("handle", [first, {}, other, {"traceparent": "nonsense"}, first]):
        pass
    with linked_span("handle", [first, {}]):
        pass
    with linked_span("handle", [{}]):
        pass
    several, one, none = exported.get_finished_spans()
    assert [format(link.context.trace_id, "032x")[-1] for link in several.links] == ["c", "d"]
    assert (several.parent, none.parent, none.links) == (None, None, ())
    assert one.parent is not None
    assert format(one.parent.trace_id, "032x")[-1] == "c"


def test_nothing_is_injected_into_what_is_copied(exported: InMemorySpanExporter) -> None:
    """Within the block headers stay as they are, whatever span is active; behind it they do not."""
    with span("copy"):
        with untraced():
            assert inject(HEADERS) is HEADERS
        assert len(inject(HEADERS)) == 3


def test_without_an_sdk_a_trace_is_passed_on() -> None:
    """A process that traces nothing itself does not break the trace of its caller."""
    with span("handle", parent=extract((("traceparent", PARENT),))):
        assert inject() == (("traceparent", PARENT),)
    assert inject() == ()
    with span("handle", parent=extract_text({})):
        assert inject() == ()


def test_without_a_span_headers_stay_as_they_are() -> None:
    """Nothing to inject: the very same tuple comes back."""
    assert inject(HEADERS) is HEADERS


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b"\xff\xfe", None])
def test_damaged_parents_are_no_parents(damaged: bytes | None) -> None:
    """A record with a broken traceparent is read like one without."""
    context = extract((*HEADERS, ("traceparent", damaged)))
    assert not trace.get_current_span(context).get_span_context().is_valid


def test_a_parent_from_another_system_is_understood() -> None:
    """The header is W3C's, so that any producer's trace goes on."""
    context = trace.get_current_span(extract((("traceparent", PARENT),))).get_span_context()
    assert format(context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"


def test_without_an_sdk_spans_are_empty() -> None:
    """Only the API is imported; spans do nothing and headers stay empty."""
    code = """
import sys
from headrace.observe import inject, span
with span("append", topic="a") as current:
    assert not current.is_recording()
    assert inject() == ()
assert "opentelemetry.sdk" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
