"""Traces of journals: the spans of their operations, and the trace context that the record of an append carries.

Readers find it among the headers of each event, and projections continue with it (`headrace.observe.linked_span`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from opentelemetry.trace import Span

from headrace.model import Headers
from headrace.observe import inject, span

__all__ = ["operation_span", "with_trace_context"]

_TRACE_PARENT = "traceparent"


def operation_span(operation: str, topic: str, id_: str) -> AbstractContextManager[Span]:
    """Trace an operation on one journal."""
    return span(f"journal.{operation}", topic=topic, id=id_)


def with_trace_context(headers: Headers) -> Headers:
    """Return the headers with the current span; the same ones if the application gave a span, or if there is none."""
    if headers and any(name == _TRACE_PARENT for name, _ in headers):
        return headers
    return inject(headers)
