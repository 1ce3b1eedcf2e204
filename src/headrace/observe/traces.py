"""OpenTelemetry traces that travel in record headers.

Only the API is used: without an SDK configured by the application every call here is a cheap no-op, except that a trace
which comes in from elsewhere is passed on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from headrace.model import Headers

__all__ = ["extract", "extract_text", "has_trace", "inject", "is_traced", "linked_span", "span", "untraced"]

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("headrace")
_NO_SPAN = nullcontext(trace.INVALID_SPAN)
_HAS_NAMED_PROVIDER = OTEL_PYTHON_TRACER_PROVIDER in os.environ
_LINKS_AT_MOST = 100  # SDKs keep 128 by default
_IS_UNTRACED: ContextVar[bool] = ContextVar("headrace_is_untraced", default=False)


def span(name: str, *, parent: Context | None = None, **attributes: AttributeValue) -> AbstractContextManager[Span]:
    """Trace a block. `parent` is what `extract` returned; without it the current span is the parent.

    Without an SDK it costs almost nothing, because hot paths use it.
    """
    if _is_unset():
        return _NO_SPAN if not parent else _attached(parent)
    return _tracer.start_as_current_span(name, context=parent, attributes=attributes)


def linked_span(
    name: str, records: Iterable[Mapping[str, str]], /, **attributes: AttributeValue
) -> AbstractContextManager[Span]:
    """Trace a block that works on records, given by their headers, each with the trace that it was written in.

    One record's trace is continued. Several may be of several traces: then the span is linked to each of them. Without
    an SDK the headers are not looked at.
    """
    if _is_unset():
        return _NO_SPAN
    links = _links_of(records)
    parent = trace.set_span_in_context(trace.NonRecordingSpan(links[0].context), Context()) if len(links) == 1 else None
    return _tracer.start_as_current_span(name, context=parent, links=links, attributes=attributes)


def is_traced() -> bool:
    """Return True if spans go anywhere: the application has set up an SDK."""
    return not _is_unset()


def has_trace() -> bool:
    """Return True if a span may have to be made or passed on here; if not, `span` and `inject` would do nothing."""
    return bool(get_current()) or not _is_unset()


def _is_unset() -> bool:
    """Return True if the application has set up no SDK."""
    # Not get_tracer_provider(): that looks into the environment, which costs more than a small append may.
    is_unset = getattr(trace, "_TRACER_PROVIDER", _tracer) is None and not _HAS_NAMED_PROVIDER
    return is_unset and isinstance(_tracer, trace.ProxyTracer)


def inject(headers: Headers = ()) -> Headers:
    """Return the headers with the current span in them (W3C traceparent); unchanged when there is none."""
    if not get_current():  # nothing at all, as on most hot paths
        return headers
    if not trace.get_current_span().get_span_context().is_valid or _IS_UNTRACED.get():
        return headers
    fields: dict[str, bytes] = {}
    _propagator.inject(fields, setter=_SETTER)
    return (*(pair for pair in headers if pair[0] not in _propagator.fields), *fields.items())


def extract(headers: Headers) -> Context:
    """Return the context that the sender put into the headers; an empty one if it is missing or damaged."""
    return _propagator.extract(headers, context=Context(), getter=_GETTER)


def extract_text(headers: Mapping[str, str]) -> Context:
    """Return the context of headers that are text, as those of events and of HTTP requests are."""
    return _propagator.extract(headers, context=Context())


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Put no span into headers while the block runs: what is copied must stay as it is."""
    token = _IS_UNTRACED.set(True)
    try:
        yield
    finally:
        _IS_UNTRACED.reset(token)


@contextlib.contextmanager
def _attached(context: Context) -> Iterator[Span]:
    """Make a context the current one, so that what is written in the block belongs to the sender's trace."""
    token = attach(context)
    try:
        yield trace.get_current_span()
    finally:
        detach(token)


def _links_of(sources: Iterable[Mapping[str, str]]) -> list[Link]:
    """Return links to the spans in the headers, each once."""
    found: dict[tuple[int, int], Link] = {}
    for headers in sources:
        context = trace.get_current_span(extract_text(headers)).get_span_context()
        if context.is_valid:
            found.setdefault((context.trace_id, context.span_id), Link(context))
        if len(found) == _LINKS_AT_MOST:
            break
    return list(found.values())


class _HeaderSetter(Setter[dict[str, bytes]]):
    def set(self, carrier: dict[str, bytes], key: str, value: str) -> None:
        carrier[key] = value.encode("ascii")


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return list(_values(carrier, key)) or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


def _values(headers: Headers, key: str) -> Iterator[str]:
    for name, value in headers:
        if name == key and value is not None:
            yield value.decode("ascii", errors="replace")


_SETTER = _HeaderSetter()
_GETTER = _HeaderGetter()
