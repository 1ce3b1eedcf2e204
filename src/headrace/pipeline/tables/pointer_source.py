"""A Spark data source over the replicated offsets, beside what the log holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition

from headrace.journal import Topology
from headrace.model import TopicPartition
from headrace.pipeline.logs.planning import topics_of
from headrace.pipeline.spark.arrow_rows import TIME, batch_of_rows, micros
from headrace.pipeline.spark.opened import log_of, run, store_of
from headrace.pipeline.spark.places import Places
from headrace.pipeline.tables.selected_reader import SelectedReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["POINTER_SCHEMA", "HeadracePointerSource"]

POINTER_SCHEMA = (
    "topic string, partition int, generation int, offset bigint, log_time timestamp, created timestamp, "
    "updated timestamp, log_start bigint, log_end bigint, lag bigint"
)
_ARROW = pa.schema(
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
    """`spark.read.format("headrace_pointers")`. Options: where log and store are; `selection`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_pointers"

    def schema(self) -> str:
        """Return the columns."""
        return POINTER_SCHEMA

    def reader(self, schema: StructType) -> _Reader:
        """Read."""
        return _Reader(self.options)


class _Reader(SelectedReader):
    def partitions(self) -> Sequence[InputPartition]:
        """Return a part for each topic."""

        async def look() -> Sequence[str]:
            return await topics_of(await log_of(self._places), await store_of(self._places), self._selection)

        wanted = self._wanted.topics
        return [InputPartition(topic) for topic in run(look()) if wanted is None or topic in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a topic's offsets; in a worker."""
        if partition.value is not None:  # Spark makes up a part where there is none
            yield batch_of_rows(run(_pointers(self._places, partition.value)), _ARROW)


async def _pointers(places: Places, topic: str) -> list[tuple[Any, ...]]:
    log, store = await log_of(places), await store_of(places)
    layout = await Topology(log, store.settings, topic, is_reader=True).layout()
    rows = []
    for partition in range(layout.partitions):
        at = TopicPartition(topic, partition)
        bounds = await log.bounds(at)
        known = await store.reader.replicated(at)
        if known is None or known.generation < layout.first_generation(partition):
            rows.append((*at, *[None] * 5, bounds.start, bounds.end, bounds.end - bounds.start))
            continue
        times = (micros(known.log_time_ms), micros(known.created_ms), micros(known.updated_ms))
        lag = max(0, bounds.end - known.offset - 1)
        rows.append((*at, known.generation, known.offset, *times, bounds.start, bounds.end, lag))
    return rows
