"""A Spark data source over the heads of journals in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition

from headrace.pipeline.spark.arrow_rows import TIME, batch_of_rows, micros
from headrace.pipeline.spark.opened import store_of
from headrace.pipeline.spark.pulling import pulled
from headrace.pipeline.tables.counting import Counts
from headrace.pipeline.tables.journal_parts import JournalPart
from headrace.pipeline.tables.selected_reader import SelectedReader
from headrace.pipeline.tables.wanted import Wanted
from headrace.store import JournalMeta, StoreReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["META_SCHEMA", "HeadraceMetaSource"]

META_SCHEMA = (
    "topic string, key string, seq_nr bigint, delete_to bigint, is_purged boolean, held_from bigint, partition int, "
    "offset bigint, generation int, segment_size int, created timestamp, updated timestamp, expire_after string, "
    "expire_on timestamp, record_id string, origin string, properties map<string,string>, metadata string"
)
_ARROW = pa.schema(
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
    """`spark.read.format("headrace_meta")`. Options: where log and store are; `selection`; `counts`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_meta"

    def schema(self) -> str:
        """Return the columns."""
        return META_SCHEMA

    def reader(self, schema: StructType) -> _Reader:
        """Read."""
        return _Reader(self.options)


class _Reader(SelectedReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part; in a worker."""
        if not isinstance(partition, JournalPart):
            return  # Spark makes up a part where there is none
        counts = Counts(partition.layout.topic, partition.partition)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            reader = (await store_of(self._places)).reader
            async for page in _metas(reader, partition, self._wanted):
                counts.metas += len(page)
                yield batch_of_rows([_values(meta) for meta in page], _ARROW)

        try:
            yield from pulled(batches())
        finally:
            counts.write(self._counts)


async def _metas(reader: StoreReader, part: JournalPart, wanted: Wanted) -> AsyncIterator[Sequence[JournalMeta]]:
    layout, home = part.layout, part.partition
    if wanted.keys is not None:
        asked = [key for key in sorted(wanted.keys) if layout.route(key).partition == home]
        found = [await reader.meta(layout.topic, key) for key in asked]
        yield [meta for meta in found if meta is not None]
    elif len(layout.generations) == 1:
        async for page in reader.metas(layout.topic, partition=home, page_size=_PAGE):
            yield page
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
