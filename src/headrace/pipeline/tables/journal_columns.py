"""The journal as a table: its columns, and events on their way into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.pipeline.spark.arrow_rows import TIME, micros
from headrace.store import EventRow

__all__ = ["JOURNAL_SCHEMA", "EventBatch"]

JOURNAL_SCHEMA = (
    "topic string, key string, seq_nr bigint, payload_type string, payload binary, tags array<string>, "
    "metadata string, headers map<string,string>, timestamp timestamp, partition int, offset bigint, "
    "generation int, origin string, version string, log_time timestamp"
)

_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("seq_nr", pa.int64()),
        ("payload_type", pa.string()),
        ("payload", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("metadata", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("timestamp", TIME),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("generation", pa.int32()),
        ("origin", pa.string()),
        ("version", pa.string()),
        ("log_time", TIME),
    ]
)
_ROWS_AT_MOST = 2000
_BYTES_AT_MOST = 4 * 1024 * 1024


class EventBatch:
    """Events of one topic, gathered until they are worth a batch."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._rows: list[tuple[str, EventRow]] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to take the batch."""
        return len(self._rows) >= _ROWS_AT_MOST or self._size_bytes >= _BYTES_AT_MOST

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, id_: str, row: EventRow) -> None:
        """Add an event."""
        self._rows.append((id_, row))
        self._size_bytes += len(row.payload or b"")

    def take(self) -> pa.RecordBatch:
        """Return what was gathered, and begin anew."""
        keys = [id_ for id_, _ in self._rows]
        rows = [row for _, row in self._rows]
        self._rows, self._size_bytes = [], 0
        return pa.RecordBatch.from_arrays(_arrays(self._topic, keys, rows), schema=_ARROW)


def _arrays(topic: str, keys: list[str], rows: list[EventRow]) -> list[pa.Array]:
    columns: Mapping[str, list[Any]] = {
        "topic": [topic] * len(rows),
        "key": keys,
        "seq_nr": [row.seq_nr for row in rows],
        "payload_type": [row.payload_type for row in rows],
        "payload": [row.payload for row in rows],
        "tags": [row.tags for row in rows],
        "metadata": [row.metadata for row in rows],
        "headers": [list(row.headers.items()) for row in rows],
        "timestamp": [micros(row.timestamp_ms) for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "generation": [row.generation for row in rows],
        "origin": [row.origin for row in rows],
        "version": [row.version for row in rows],
        "log_time": [micros(row.log_time_ms) for row in rows],
    }
    return [pa.array(columns[field.name], field.type) for field in _ARROW]
