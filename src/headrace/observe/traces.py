"""OpenTelemetry traces that travel in record headers.

Only the API is used: without an SDK configured by the application every call here is a cheap no-op.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from headrace.model import Headers

__all__ = ["extract", "inject", "span"]

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("headrace")
_NO_SPAN = nullcontext(trace.INVALID_SPAN)
_HAS_NAMED_PROVIDER = OTEL_PYTHON_TRACER_PROVIDER in os.environ


def span(name: str, *, parent: Context | None = None, **attributes: AttributeValue) -> AbstractContextManager[Span]:
    """Trace a block. `parent` is what `extract` returned; without it the current span is the parent.

    Without an SDK it costs almost nothing, because hot paths use it.
    """
    # Not get_tracer_provider(): that looks into the environment, which costs more than a small append may.
    is_unset = getattr(trace, "_TRACER_PROVIDER", _tracer) is None and not _HAS_NAMED_PROVIDER
    if is_unset and isinstance(_tracer, trace.ProxyTracer):
        return _NO_SPAN
    return _tracer.start_as_current_span(name, context=parent, attributes=attributes)


def inject(headers: Headers = ()) -> Headers:
    """Return the headers with the current span in them (W3C traceparent); unchanged when there is none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return headers
    fields: dict[str, bytes] = {}
    _propagator.inject(fields, setter=_SETTER)
    return (*(pair for pair in headers if pair[0] not in _propagator.fields), *fields.items())


def extract(headers: Headers) -> Context:
    """Return the context that the sender put into the headers; an empty one if it is missing or damaged."""
    return _propagator.extract(headers, context=Context(), getter=_GETTER)


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
