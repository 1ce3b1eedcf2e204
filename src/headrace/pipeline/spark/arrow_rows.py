"""Rows of small tables as Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

__all__ = ["TIME", "batch_of_rows", "micros"]

# What Spark's type `timestamp` is in Arrow.
TIME = pa.timestamp("us", tz="UTC")


def batch_of_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, whose values stand in the order of the schema, as a batch."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def micros(timestamp_ms: int | None) -> int | None:
    """Return a time as Arrow keeps it."""
    return None if timestamp_ms is None else timestamp_ms * 1000
