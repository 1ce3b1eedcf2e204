"""Metrics of events by tag."""

from __future__ import annotations

from headrace.observe import counter, gauge

__all__ = ["AHEAD", "DELIVERED", "GAPS", "MARKS", "ROWS", "TRIMMED"]

ROWS = counter("tags", "rows", "Rows given to views by tag, replays included.", ["topic"])
DELIVERED = counter("tags", "delivered", "Events that queries by tag delivered.", ["source"])
MARKS = counter("tags", "marks", "Marks written because tagged events waited for idle partitions.", ["topic"])
GAPS = counter("tags", "gaps", "Missing numbers that queries by tag looked for.", ["outcome"])
TRIMMED = counter("tags", "trimmed", "Buckets of views by tag that were removed because of their age.")
AHEAD = gauge(
    "tags",
    "log_time_ahead",
    "seconds",
    "How far a topic's log time is ahead while queries by tag wait for it.",
    ["topic"],
)
