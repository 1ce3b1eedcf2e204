"""Conversion between records of a log and Arrow batches, and the columns that Spark sees."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.model import Record, RecordColumns, TopicPartition

__all__ = ["LOG_COLUMNS", "LOG_SCHEMA", "batch_of_records", "columns_of_batches", "records_of_batch"]

# The columns and types in Spark's notation; a source must return exactly these.
LOG_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
LOG_COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(_HEADER)),
    ]
)


def batch_of_records(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as a batch, column by column."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.topic for record in records], pa.string()),
            pa.array([record.partition for record in records], pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.timestamp_ms for record in records], pa.int64()),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            _headers_column(records),
        ],
        schema=_ARROW,
    )


def _headers_column(records: Sequence[Record]) -> pa.Array:
    ends, keys, values = [0], [], []
    for record in records:
        for key, value in record.headers:
            keys.append(key)
            values.append(value)
        ends.append(len(keys))
    pairs = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(_HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)


def records_of_batch(batch: pa.RecordBatch) -> list[Record]:
    """Return the records of a batch with the log's columns, in their order."""
    topics, partitions, offsets, times, keys, values, headers = batch.columns
    return [
        Record(topic, partition, offset, time_ms, key, value, pairs)
        for topic, partition, offset, time_ms, key, value, pairs in zip(
            topics.to_pylist(),
            partitions.to_pylist(),
            offsets.to_pylist(),
            times.to_pylist(),
            keys.to_pylist(),
            values.to_pylist(),
            _headers_of(headers),
            strict=True,
        )
    ]


def columns_of_batches(at: TopicPartition, batches: Sequence[pa.RecordBatch]) -> RecordColumns:
    """Return the records of batches that hold one partition, as columns."""
    offsets, times, keys, values = (
        [value for batch in batches for value in batch.column(name).to_pylist()]
        for name in ("offset", "timestamp_ms", "key", "value")
    )
    headers = [pairs for batch in batches for pairs in _headers_of(batch.column("headers"))]
    return RecordColumns(
        at, offsets, times, keys, values, [own[0] if len(own) == 1 else None for own in headers], headers.__getitem__
    )


def _headers_of(column: pa.ListArray) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
    """Yield the headers of each row. Slicing flat columns is much cheaper than converting rows to dicts.

    A part of a batch shares the values of the whole one, of which it takes its own.
    """
    ends = column.offsets.to_pylist()
    first = ends[0]
    pairs = column.values.slice(first, ends[-1] - first)
    flat = list(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True))
    for start, end in itertools.pairwise(ends):
        yield tuple(flat[start - first : end - first])
