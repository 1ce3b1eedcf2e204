"""Metrics of stores; a label names the backend.

A test that must prove "no more pages than asked for" compares PAGES before and after.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

__all__ = ["PAGES", "REQUESTS", "REQUEST_SECONDS", "RETRIES", "ROWS_WRITTEN", "TAG_ROWS_WRITTEN"]

PAGES = Counter(
    "headrace_store_pages_total",
    "Pages fetched for readers of rows and heads, empty ones included.",
    ["backend", "table"],
)
ROWS_WRITTEN = Counter(
    "headrace_store_rows_written_total",
    "Events handed to the store and acknowledged, those that lost to a later place included.",
    ["backend"],
)
TAG_ROWS_WRITTEN = Counter(
    "headrace_store_tag_rows_written_total",
    "Rows of views by tag handed to the store and acknowledged, repetitions included.",
    ["backend"],
)
REQUESTS = Counter(
    "headrace_store_requests_total",
    "Requests by operation and how they ended: done, failed.",
    ["backend", "operation", "outcome"],
)
REQUEST_SECONDS = Histogram(
    "headrace_store_request_seconds",
    "Time from asking the store to its answer, retries included.",
    ["backend", "operation"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0),
)
RETRIES = Counter(
    "headrace_store_retries_total",
    "Requests sent again after a time-out or an overloaded answer.",
    ["backend", "operation"],
)
