"""The columns of a log's records in Spark."""

from __future__ import annotations

__all__ = ["LOG_COLUMNS", "LOG_SCHEMA"]

# Spark's own names of the columns and types; a source must return exactly these.
LOG_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
LOG_COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
