"""Spark data sources of the heads of journals and of replicated offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition

from headrace.journal import Layout, Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline.logs.plan import topics_of
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import (
    TIME,
    batch_of_rows,
    blocking_iterator,
    log_of,
    micros,
    run,
    side_by_side,
    store_of,
)
from headrace.pipeline.tables.parts import JournalPart, SelectedReader, check_layout
from headrace.pipeline.tables.scans import Counts, Predicates
from headrace.store import JournalMeta, Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["META_SCHEMA", "POINTER_SCHEMA", "HeadraceMetaSource", "HeadracePointerSource", "heads_of_part"]

# In a session with spark.sql.timestampType=TIMESTAMP_NTZ, `timestamp` would be a type without a zone.
META_SCHEMA = (
    "topic string, key string, seq_nr bigint, delete_to bigint, is_purged boolean, held_from bigint, partition int, "
    "offset bigint, generation int, segment_size int, created timestamp_ltz, updated timestamp_ltz, "
    "expire_after string, expire_on timestamp_ltz, record_id string, origin string, properties map<string,string>, "
    "metadata string"
)
_HEAD_COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("seq_nr", pa.int64()),
        ("delete_to", pa.int64()),
        ("is_purged", pa.bool_()),
        ("held_from", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("generation", pa.int32()),
        ("segment_size", pa.int32()),
        ("created", TIME),
        ("updated", TIME),
        ("expire_after", pa.string()),
        ("expire_on", TIME),
        ("record_id", pa.string()),
        ("origin", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("metadata", pa.string()),
    ]
)
_PAGE = 500


class HeadraceMetaSource(DataSource):
    """`spark.read.format("headrace_meta")`. Options: the endpoints; `selection`; `counts`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_meta"

    def schema(self) -> str:
        """Return the columns."""
        return META_SCHEMA

    def reader(self, schema: StructType) -> _HeadReader:
        """Return the reader."""
        return _HeadReader(self.options)


class _HeadReader(SelectedReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, in a worker."""
        if not isinstance(partition, JournalPart):
            return  # Spark plans an empty part if there is none
        counts = Counts(partition.layout.topic, partition.partition)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            store = await store_of(self._endpoints)
            async for page in heads_of_part(store, partition, self._predicates):
                counts.metas += len(page)
                yield batch_of_rows([_values(meta) for meta in page], _HEAD_COLUMNS)

        try:
            yield from blocking_iterator(batches())
        finally:
            counts.write(self._counts)


async def heads_of_part(
    store: Store, part: JournalPart, predicates: Predicates
) -> AsyncIterator[Sequence[JournalMeta]]:
    """Yield the heads of the journals of one part. Raises ReadAgain if the topic grew, so that some have moved."""
    reader, layout, home = store.reader, part.layout, part.partition
    if predicates.keys is not None:
        asked = [key for key in sorted(predicates.keys) if layout.route(key).partition == home]
        found = [await reader.meta(layout.topic, key) for key in asked]
        yield [meta for meta in found if meta is not None]
    elif len(layout.generations) == 1:
        async for page in reader.metas(layout.topic, partition=home, page_size=_PAGE):
            yield page
        await check_layout(store, layout)
    else:
        async for page in reader.metas(layout.topic, page_size=_PAGE):
            yield [meta for meta in page if layout.route(meta.id).partition == home]


def _values(meta: JournalMeta) -> tuple[Any, ...]:
    return (
        meta.topic,
        meta.id,
        meta.seq_nr,
        meta.delete_to,
        meta.is_purged,
        meta.held_from,
        meta.partition,
        meta.offset,
        meta.generation,
        meta.segment_size,
        micros(meta.created_ms),
        micros(meta.updated_ms),
        meta.expire_after,
        micros(meta.expire_on_ms),
        None if meta.record_id is None else str(meta.record_id),
        meta.origin,
        list(meta.properties.items()),
        meta.metadata,
    )


POINTER_SCHEMA = (
    "topic string, partition int, generation int, offset bigint, log_time timestamp_ltz, created timestamp_ltz, "
    "updated timestamp_ltz, log_start bigint, log_end bigint, lag bigint"
)
_OFFSET_COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("generation", pa.int32()),
        ("offset", pa.int64()),
        ("log_time", TIME),
        ("created", TIME),
        ("updated", TIME),
        ("log_start", pa.int64()),
        ("log_end", pa.int64()),
        ("lag", pa.int64()),
    ]
)


class HeadracePointerSource(DataSource):
    """`spark.read.format("headrace_pointers")`. Options: the endpoints; `selection`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_pointers"

    def schema(self) -> str:
        """Return the columns."""
        return POINTER_SCHEMA

    def reader(self, schema: StructType) -> _OffsetReader:
        """Return the reader."""
        return _OffsetReader(self.options)


class _OffsetReader(SelectedReader):
    def partitions(self) -> Sequence[InputPartition]:
        """Return a part for each topic."""

        async def look() -> Sequence[str]:
            return await topics_of(await log_of(self._endpoints), await store_of(self._endpoints), self._selection)

        predicates = self._predicates.topics
        return [InputPartition(topic) for topic in run(look()) if predicates is None or topic in predicates]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a topic's offsets, in a worker."""
        if partition.value is not None:  # Spark plans an empty part if there is none
            yield batch_of_rows(run(_pointers(self._endpoints, partition.value)), _OFFSET_COLUMNS)


async def _pointers(endpoints: Endpoints, topic: str) -> list[tuple[Any, ...]]:
    log, store = await log_of(endpoints), await store_of(endpoints)
    layout = await Topology(log, store.settings, topic, is_reader=True).layout()
    return await side_by_side(_pointer(log, store, layout, number) for number in range(layout.partitions))


async def _pointer(log: Log, store: Store, layout: Layout, partition: int) -> tuple[Any, ...]:
    at = TopicPartition(layout.topic, partition)
    bounds, known = await log.bounds(at), await store.reader.replicated(at)
    if known is None or known.generation < layout.first_generation(partition):
        return (*at, *[None] * 5, bounds.start, bounds.end, bounds.end - bounds.start)
    times = (micros(known.log_time_ms), micros(known.created_ms), micros(known.updated_ms))
    lag = max(0, bounds.end - known.offset - 1)
    return (*at, known.generation, known.offset, *times, bounds.start, bounds.end, lag)
