"""The rows that a job about journals shuffles: records, heads, rows of views by tag, suspects, and facts of the log.

All rows of a journal have its topic and key. Facts have an empty key, so that they come before the journals of their
topic; no journal has an empty id.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import pyarrow as pa

from headrace.pipeline.logs.records import LOG_COLUMNS

__all__ = ["ROW_COLUMNS", "ROW_ORDER", "ROW_SCHEMA", "RowKind", "batch_of_values"]

ROW_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, kind int, task int, stretch bigint, log_time_ms bigint"
)
ROW_COLUMNS = (*LOG_COLUMNS, "kind", "task", "stretch", "log_time_ms")
# The order within a task: journal by journal, and what is known of a journal before its records.
ROW_ORDER = ("topic", "key", "kind", "partition", "offset")

_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("kind", pa.int32()),
        ("task", pa.int32()),
        ("stretch", pa.int64()),
        ("log_time_ms", pa.int64()),
    ]
)


class RowKind(IntEnum):
    """The kind of a row; kinds sort in the order in which a task needs them."""

    FACT = 0
    SUSPECT = 1
    HEAD = 2
    VIEW_ROW = 3
    RECORD = 4


def batch_of_values(
    kind: RowKind,
    topic: str,
    partition: int,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    *,
    tasks: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """Return rows that are no records, each with a key and an encoded value. `tasks` are where they must go."""
    count = len(keys)
    columns = {
        "topic": pa.array([topic] * count, pa.string()),
        "partition": pa.array([partition] * count, pa.int32()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "kind": pa.array([int(kind)] * count, pa.int32()),
        "task": pa.nulls(count, pa.int32()) if tasks is None else pa.array(tasks, pa.int32()),
    }
    empty = {field.name: pa.nulls(count, field.type) for field in _ARROW}
    return pa.RecordBatch.from_arrays([{**empty, **columns}[name] for name in ROW_COLUMNS], schema=_ARROW)
