"""The scan of a log for a shuffle by journal: each task turns one stretch of a partition into rows, column by column.

Values and headers pass through untouched: the task that gets a journal's rows decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.audits.log_facts import MarkFact, StretchFact, encode_fact
from headrace.pipeline.audits.row_columns import ROW_COLUMNS, RowKind, batch_of_values
from headrace.pipeline.logs.records import LOG_COLUMNS, records_of_batch
from headrace.protocol import ACTION_HEADER, Mark, decode_action

__all__ = ["LogScan"]

_SETTINGS = pa.array(["headrace.generation", "headrace.segment-size"])
_MARK = b'{"mark"'


class LogScan:
    """Turns the records of a stretch into rows, for mapInArrow; the facts of the stretch go to all `tasks`."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the records, and then the facts."""
        stretch: _Stretch | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            stretch = stretch or _Stretch.of(batch)
            yield stretch.rows(batch)
        if stretch is not None:
            yield self._facts(stretch)

    def _facts(self, stretch: _Stretch) -> pa.RecordBatch:
        """Return the facts for all tasks, in one batch: there may be thousands of tasks."""
        counted = StretchFact(stretch.first, stretch.log_time_ms, stretch.records)
        marks = [encode_fact(mark) for mark in stretch.marks]
        first, others = encode_fact(counted), encode_fact(msgspec.structs.replace(counted, records=0))
        values = [first, *marks, *[others, *marks] * (self._tasks - 1)]
        tasks = [task for task in range(self._tasks) for _ in range(len(marks) + 1)]
        keys = [b""] * len(values)
        return batch_of_values(RowKind.FACT, stretch.topic, stretch.partition, keys, values, tasks=tasks)


@dataclass(slots=True)
class _Stretch:
    """One stretch of a partition, as far as it was read."""

    topic: str
    partition: int
    first: int
    log_time_ms: int = 0
    records: int = 0
    marks: list[MarkFact] = field(default_factory=list)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Stretch:
        """Return the stretch that a task's first batch begins."""
        return cls(*(batch.column(name)[0].as_py() for name in ("topic", "partition", "offset")))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row for each record of a journal."""
        partitions = pc.min_max(batch.column("partition"))
        if partitions["min"].as_py() != partitions["max"].as_py():
            raise AssertionError("a task of the log reads one partition")
        times = batch.column("timestamp_ms").to_numpy(zero_copy_only=False)
        highest_ms = np.maximum(np.maximum.accumulate(times), self.log_time_ms)
        self.log_time_ms = int(highest_ms[-1])
        self.records += batch.num_rows
        is_row = batch.column("key").is_valid().to_numpy(zero_copy_only=False) & ~self._marks_in(batch)
        columns: dict[str, Any] = {
            **{name: batch.column(name) for name in LOG_COLUMNS},
            "kind": _constant(batch, int(RowKind.RECORD)),
            "task": pa.nulls(batch.num_rows, pa.int32()),
            "stretch": _constant(batch, self.first, pa.int64()),
            "log_time_ms": pa.array(highest_ms, pa.int64()),
        }
        rows = pa.RecordBatch.from_arrays([columns[name] for name in ROW_COLUMNS], names=list(ROW_COLUMNS))
        return rows if is_row.all() else rows.filter(pa.array(is_row))

    def _marks_in(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return which rows are Marks, and note what they change. No journal's fold needs them.

        There may be as many as events, and all under one key, which one task would get.
        """
        is_mark = np.zeros(batch.num_rows, bool)
        possible = np.flatnonzero(_Headers.of(batch.column("headers")).may_be_mark())
        if not len(possible):
            return is_mark
        columns = [batch.column(name).take(pa.array(possible)) for name in LOG_COLUMNS]
        records = records_of_batch(pa.RecordBatch.from_arrays(columns, names=list(LOG_COLUMNS)))
        for row, record in zip(possible, records, strict=True):
            action = decode_action(record)
            is_mark[row] = isinstance(action, Mark)
            if isinstance(action, Mark) and (action.generation or action.segment_size):
                self.marks.append(MarkFact(record.offset, action.generation, action.segment_size))
        return is_mark


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers of a batch, flat, with the row that each belongs to."""

    count: int
    rows: np.ndarray[Any, Any]
    names: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, headers: pa.ListArray) -> _Headers:
        lengths = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        pairs = headers.flatten()
        return cls(len(headers), np.repeat(np.arange(len(headers)), lengths), pairs.field(0), pairs.field(1))

    def may_be_mark(self) -> np.ndarray[Any, Any]:
        """Return for each row whether it looks like a Mark: by its action, or by a header that only Marks have."""
        is_action = pc.and_(pc.equal(self.names, ACTION_HEADER), pc.starts_with(self.values, _MARK).fill_null(False))
        found = pc.or_(is_action, pc.is_in(self.names, _SETTINGS))
        rows = np.zeros(self.count, bool)
        rows[self.rows[found.to_numpy(zero_copy_only=False).astype(bool)]] = True
        return rows


def _constant(batch: pa.RecordBatch, value: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(np.full(batch.num_rows, value), kind or pa.int32())
