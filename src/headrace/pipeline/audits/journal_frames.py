"""Frames of everything about journals, shuffled so that each task gets all rows of its journals, sorted by journal.

The log is read once, by more tasks than it has partitions, and each head and each row of a view by tag is read once.
Spark's own shuffle brings them together; it spills to disk what does not fit into memory.

The scan of the log turns each stretch of a partition into rows, column by column. Values and headers pass through
untouched: the task that gets a journal's rows decodes them.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.audits.shuffle import (
    ROW_COLUMNS,
    ROW_ORDER,
    ROW_SCHEMA,
    MarkFact,
    RowKind,
    StretchFact,
    batch_of_values,
    encode_fact,
)
from headrace.pipeline.audits.tag_views import ViewScan
from headrace.pipeline.audits.windows import TopicWindow
from headrace.pipeline.logs.frames import log_table
from headrace.pipeline.logs.records import LOG_COLUMNS, records_of_batch
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import blocking_iterator, store_of
from headrace.protocol import ACTION_HEADER, Mark, decode_action
from headrace.store import HeadShare, TagRow, tag_time_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "HeadRowReader",
    "LogScan",
    "ViewRowReader",
    "head_rows",
    "log_rows",
    "only_of",
    "shares_for",
    "shuffled",
    "suspect_rows",
    "tasks_for",
    "view_rows",
    "work_on_parts",
]

P = TypeVar("P")

Work: TypeAlias = "Callable[[P], Iterator[pa.RecordBatch]]"

_RECORDS_OF_SCAN = 50_000
_RECORDS_OF_TASK = 10_000
_RECORDS_OF_SHARE = 1000
_TASKS_AT_MOST = 4096


def tasks_for(spark: SparkSession, windows: Sequence[TopicWindow]) -> int:
    """Return the number of tasks for the journals of windows: more for a long log, fewer where little was written.

    Spark's own setting is right where much was written and little is left in the log: the store has many journals then.
    """
    left = sum(max(0, each.last + 1 - each.start) for window in windows for each in window.stretches.values())
    return max(shares_for(spark, windows), min(-(-left // _RECORDS_OF_TASK), _TASKS_AT_MOST))


def shares_for(spark: SparkSession, windows: Sequence[TopicWindow]) -> int:
    """Return the number of shares to read what the store has of topics: Spark's setting, or fewer for little."""
    written = sum(max(0, each.last + 1) for window in windows for each in window.stretches.values())
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(1, min(configured, -(-written // _RECORDS_OF_SHARE)))


def log_rows(
    spark: SparkSession,
    endpoints: Endpoints,
    windows: Sequence[TopicWindow],
    *,
    tasks: int,
    with_unreplicated: bool = False,
) -> DataFrame:
    """Return the records of windows as rows, and their facts, for a shuffle to `tasks`."""
    starts = {at: start for window in windows for at, start in window.starts.items()}
    ends = {at: end for window in windows for at, end in window.ends(with_unreplicated=with_unreplicated).items()}
    ends = {at: end for at, end in ends.items() if end > starts[at]}
    if not ends:
        return spark.createDataFrame([], ROW_SCHEMA)
    scans = -(-sum(end - starts[at] for at, end in ends.items()) // _RECORDS_OF_SCAN)
    records = log_table(spark, endpoints, starts, ends, tasks=scans, skips_removed=True)
    return records.mapInArrow(LogScan(tasks), ROW_SCHEMA)


def head_rows(spark: SparkSession, endpoints: Endpoints, topics: Sequence[str], *, shares: int) -> DataFrame:
    """Return the heads of topics as rows, read in this number of shares of each topic."""
    parts = [(topic, HeadShare(number, shares)) for topic in topics for number in range(shares)]
    return work_on_parts(spark, parts, HeadRowReader(endpoints), ROW_SCHEMA)


def view_rows(spark: SparkSession, endpoints: Endpoints, scan: ViewScan) -> DataFrame:
    """Return the rows of views by tag as rows of their journals."""
    return work_on_parts(spark, scan.parts, ViewRowReader(endpoints, scan.topics), ROW_SCHEMA)


def work_on_parts(spark: SparkSession, parts: Sequence[P], work: Work[P], schema: str) -> DataFrame:
    """Return the rows that `work` makes of each part; there is one task for each part, in a worker."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from work(parts[number])

    return spark.range(0, len(parts), 1, numPartitions=max(1, len(parts))).mapInArrow(rows, schema)


def only_of(rows: DataFrame, keys: DataFrame, topics: Sequence[str], *, is_few: bool) -> DataFrame:
    """Return the rows of the journals of topics that `keys` names by topic and key, and all facts.

    Few keys go to every task, so that nothing but the rows of their journals is shuffled.
    """
    from pyspark.sql import functions as f

    facts = rows.sparkSession.createDataFrame([(topic, b"") for topic in topics], "topic string, key binary")
    wanted = keys.select("topic", "key").distinct().unionByName(facts)
    return rows.join(f.broadcast(wanted) if is_few else wanted, ["topic", "key"], "left_semi")


def suspect_rows(suspects: DataFrame) -> DataFrame:
    """Return suspects, as an audit's first look reports them, as rows of their journals."""
    from pyspark.sql import functions as f

    is_views_only = f.when(f.col("detail") != "", f.encode("detail", "UTF-8"))
    found = suspects.select(
        "topic",
        "partition",
        f.encode("id", "UTF-8").alias("key"),
        is_views_only.alias("value"),
        f.lit(int(RowKind.SUSPECT)).alias("kind"),
    )
    return found.unionByName(found.sparkSession.createDataFrame([], ROW_SCHEMA), allowMissingColumns=True)


def shuffled(rows: DataFrame, *, tasks: int) -> DataFrame:
    """Return the rows, all of a journal in one task, sorted; each task gets the facts that are addressed to it."""
    from pyspark.sql import functions as f

    task = f.coalesce("task", f.pmod(f.hash("topic", "key"), f.lit(tasks)))
    placed = rows.withColumn("task", task).repartitionById(tasks, f.col("task"))
    return placed.sortWithinPartitions(*ROW_ORDER)


class HeadRowReader:
    """Reads shares of heads, in a worker."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def __call__(self, part: tuple[str, HeadShare]) -> Iterator[pa.RecordBatch]:
        """Yield the heads of a share of a topic."""
        return blocking_iterator(self._batches(*part))

    async def _batches(self, topic: str, share: HeadShare) -> AsyncIterator[pa.RecordBatch]:
        reader = (await store_of(self._endpoints)).reader
        async for page in reader.metas(topic, share=share):
            keys = [_key(meta.id) for meta in page]
            yield batch_of_values(RowKind.HEAD, topic, 0, keys, [pickle.dumps(meta) for meta in page])


class ViewRowReader:
    """Reads buckets of views by tag, in a worker; rows of other `topics` are left out."""

    def __init__(self, endpoints: Endpoints, topics: Mapping[int, str] | None) -> None:
        self._endpoints = endpoints
        self._topics = topics

    def __call__(self, part: Sequence[tuple[str, int]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some buckets."""
        return blocking_iterator(self._batches(part))

    async def _batches(self, part: Sequence[tuple[str, int]]) -> AsyncIterator[pa.RecordBatch]:
        tags = (await store_of(self._endpoints)).tags
        await tags.prepare()  # this worker may not have used them before
        for tag, bucket_ms in part:
            async for page in tags.views.read(tag, bucket_ms):
                for topic, rows in self._by_topic(page).items():
                    values = [pickle.dumps(row) for row in rows]
                    yield batch_of_values(RowKind.VIEW_ROW, topic, 0, [_key(row.pid) for row in rows], values)

    def _by_topic(self, page: Sequence[TagRow]) -> dict[str, list[TagRow]]:
        found: dict[str, list[TagRow]] = {}
        for row in page:
            number = tag_time_of(row.timestamp).topic_number
            topic = row.topic if self._topics is None else self._topics.get(number)
            if topic is not None:
                found.setdefault(topic, []).append(row)
        return found


def _key(id_: str) -> bytes:
    return id_.encode(errors="surrogateescape")


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
