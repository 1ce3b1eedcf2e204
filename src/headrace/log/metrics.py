"""Metrics of logs; a label names the backend.

A test that must prove "the log was not read" compares FETCHES before and after.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = ["APPENDED", "APPEND_SECONDS", "FEEDS", "FETCHED", "FETCHES", "LISTENERS", "TRANSACTIONS"]

APPENDED = Counter(
    "headrace_log_appended_records_total",
    "Records that were appended and acknowledged, outside and inside of committed transactions.",
    ["backend", "topic"],
)
APPEND_SECONDS = Histogram(
    "headrace_log_append_seconds",
    "Time from an append to its acknowledgement; of appends acknowledged together, one is measured.",
    ["backend"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0),
)
FETCHES = Counter(
    "headrace_log_fetches_total",
    "Batches taken from a topic by readers and group members; also those that only moved the position.",
    ["backend", "topic"],
)
FETCHED = Counter(
    "headrace_log_fetched_records_total",
    "Records taken from a topic by readers and group members.",
    ["backend", "topic"],
)
TRANSACTIONS = Counter(
    "headrace_log_transactions_total",
    "Transactions by how they ended: committed, aborted, fenced, failed (dropped by the log), unknown.",
    ["backend", "outcome"],
)
FEEDS = Gauge("headrace_log_feeds", "Partitions that are followed.")
LISTENERS = Gauge("headrace_log_listeners", "Readers that follow a partition.")
