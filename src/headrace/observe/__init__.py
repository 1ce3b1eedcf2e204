"""Observability of a process: structured logs, metrics, traces through headers, a health tree, progress,
charts for terminals.

Promises: using the library configures nothing global. Logs go where the application's handlers send them,
traces go nowhere until the application sets up an SDK, metrics are in Prometheus' default registry, and
secrets are hidden in everything that is written.
"""

from headrace.observe.health import Health, HealthSource, HealthState, Probe
from headrace.observe.line_charts import line_chart
from headrace.observe.logs import LogFormat, Logger, configure, get_logger
from headrace.observe.metrics import (
    LATENCY_BUCKETS_S,
    BatchHistogram,
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
from headrace.observe.progress import (
    SILENT,
    BarProgress,
    LineProgress,
    Progress,
    ProgressStep,
    SilentProgress,
    progress_on,
)
from headrace.observe.traces import extract, extract_text, has_trace, inject, is_traced, linked_span, span, untraced

__all__ = [
    "LATENCY_BUCKETS_S",
    "SILENT",
    "BarProgress",
    "BatchHistogram",
    "Health",
    "HealthSource",
    "HealthState",
    "LineProgress",
    "LogFormat",
    "Logger",
    "MetricSample",
    "Probe",
    "Progress",
    "ProgressStep",
    "SilentProgress",
    "batch_histogram",
    "configure",
    "counter",
    "extract",
    "extract_text",
    "gauge",
    "get_logger",
    "has_trace",
    "histogram",
    "inject",
    "is_traced",
    "line_chart",
    "linked_span",
    "metric_samples",
    "progress_on",
    "render",
    "serve",
    "span",
    "timed",
    "untraced",
]
