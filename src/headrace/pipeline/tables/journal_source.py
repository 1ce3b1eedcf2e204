"""The Spark data source of whole journals: the events of the store and of the log's head that are not deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSource, InputPartition

from headrace.pipeline.spark.process import blocking_iterator, log_of, store_of
from headrace.pipeline.tables.journal_tasks import JOURNAL_SCHEMA, JournalsReader
from headrace.pipeline.tables.parts import JournalPart, SelectedReader
from headrace.pipeline.tables.scans import Counts, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceJournalSource"]


class HeadraceJournalSource(DataSource):
    """`spark.read.format("headrace_journal")`.

    Options: the endpoints; `selection`; `read_options`; `counts`, a folder for the counts of the tasks.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_journal"

    def schema(self) -> str:
        """Return the columns."""
        return JOURNAL_SCHEMA

    def reader(self, schema: StructType) -> _Reader:
        """Return the reader."""
        return _Reader(self.options)


class _Reader(SelectedReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._read_options = msgspec.json.decode(options["read_options"], type=ReadOptions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, in a worker."""
        if not isinstance(partition, JournalPart):
            return  # Spark plans an empty part if there is none
        layout = partition.layout
        counts = Counts(layout.topic, partition.partition)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            log, store = await log_of(self._endpoints), await store_of(self._endpoints)
            reader = JournalsReader(log, store, partition, self._predicates, self._read_options, counts)
            async for batch in reader.batches():
                yield batch

        try:
            yield from blocking_iterator(batches())
        finally:
            counts.write(self._counts)
