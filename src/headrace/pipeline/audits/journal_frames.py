"""Frames of everything about journals, shuffled so that each task gets all rows of its journals, sorted by journal.

The log is read once, by more tasks than it has partitions, and each head and each row of a view by tag is read once.
Spark's own shuffle brings them together; it spills to disk what does not fit into memory.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.pipeline.audits.log_scan import LogScan
from headrace.pipeline.audits.row_columns import ROW_ORDER, ROW_SCHEMA, RowKind, batch_of_values
from headrace.pipeline.audits.tag_views import ViewScan
from headrace.pipeline.audits.windows import TopicWindow
from headrace.pipeline.logs.frames import log_table
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import blocking_iterator, store_of
from headrace.pipeline.spark.session import register
from headrace.store import HeadShare, TagRow, tag_time_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "HeadRowsSource",
    "ViewRowsSource",
    "head_rows",
    "log_rows",
    "only_of",
    "shuffled",
    "suspect_rows",
    "tasks_for",
    "view_rows",
]

_RECORDS_OF_SCAN = 50_000
_RECORDS_OF_TASK = 10_000
_TASKS_AT_MOST = 4096


def tasks_for(spark: SparkSession, records: int) -> int:
    """Return the number of tasks for the journals of so many records: Spark's setting, or more for a long log."""
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(configured, min(-(-records // _RECORDS_OF_TASK), _TASKS_AT_MOST))


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
    """Return the heads of topics as rows, read in so many shares of each topic."""
    register(spark, HeadRowsSource)
    parts = [[topic, number, shares] for topic in topics for number in range(shares)]
    options = {ENDPOINTS_OPTION: endpoints.pack(), "parts": json.dumps(parts)}
    return spark.read.format(HeadRowsSource.name()).options(**options).load()


def view_rows(spark: SparkSession, endpoints: Endpoints, scan: ViewScan) -> DataFrame:
    """Return the rows of views by tag as rows of their journals."""
    register(spark, ViewRowsSource)
    options = {
        ENDPOINTS_OPTION: endpoints.pack(),
        "parts": json.dumps(scan.parts),
        "topics": json.dumps(None if scan.topics is None else {str(nr): name for nr, name in scan.topics.items()}),
    }
    return spark.read.format(ViewRowsSource.name()).options(**options).load()


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


class _PartsReader(DataSourceReader):
    """A reader whose parts are in its options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.endpoints = Endpoints.unpack(options[ENDPOINTS_OPTION])
        self._parts = json.loads(options["parts"])

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts."""
        return [InputPartition(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, in a worker."""
        if partition.value is None:  # Spark plans an empty part if there is none
            return iter(())
        return blocking_iterator(self.batches(partition.value))

    def batches(self, part: Sequence[Any]) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        raise NotImplementedError


class HeadRowsSource(DataSource):
    """`spark.read.format("headrace_head_rows")`. Options: the endpoints; `parts`, as topic, share, and shares."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_head_rows"

    def schema(self) -> str:
        """Return the columns."""
        return ROW_SCHEMA

    def reader(self, schema: StructType) -> _HeadRowsReader:
        """Return the reader."""
        return _HeadRowsReader(self.options)


class _HeadRowsReader(_PartsReader):
    async def batches(self, part: Sequence[Any]) -> AsyncIterator[pa.RecordBatch]:
        topic, number, shares = part
        reader = (await store_of(self.endpoints)).reader
        async for page in reader.metas(topic, share=HeadShare(number, shares)):
            keys = [_key(meta.id) for meta in page]
            yield batch_of_values(RowKind.HEAD, topic, 0, keys, [pickle.dumps(meta) for meta in page])


class ViewRowsSource(DataSource):
    """`spark.read.format("headrace_view_rows")`. Options: the endpoints; `parts`, lists of buckets; `topics`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_view_rows"

    def schema(self) -> str:
        """Return the columns."""
        return ROW_SCHEMA

    def reader(self, schema: StructType) -> _ViewRowsReader:
        """Return the reader."""
        return _ViewRowsReader(self.options)


class _ViewRowsReader(_PartsReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._topics: Mapping[str, str] | None = json.loads(options["topics"])

    async def batches(self, part: Sequence[Any]) -> AsyncIterator[pa.RecordBatch]:
        views = (await store_of(self.endpoints)).tags.views
        for tag, bucket_ms in part:
            async for page in views.read(tag, bucket_ms):
                for topic, rows in self._by_topic(page).items():
                    values = [pickle.dumps(row) for row in rows]
                    yield batch_of_values(RowKind.VIEW_ROW, topic, 0, [_key(row.pid) for row in rows], values)

    def _by_topic(self, page: Sequence[TagRow]) -> dict[str, list[TagRow]]:
        found: dict[str, list[TagRow]] = {}
        for row in page:
            number = str(tag_time_of(row.timestamp).topic_number)
            topic = row.topic if self._topics is None else self._topics.get(number)
            if topic is not None:
                found.setdefault(topic, []).append(row)
        return found


def _key(id_: str) -> bytes:
    return id_.encode(errors="surrogateescape")
