"""A Spark data source over whole journals: rows of the store and the head of the log, folded, living events only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSource, InputPartition

from headrace.pipeline.spark.process import log_of, pulled, store_of
from headrace.pipeline.tables.journal_tasks import JOURNAL_SCHEMA, JournalsReader
from headrace.pipeline.tables.parts import JournalPart, SelectedReader
from headrace.pipeline.tables.scans import Counts, Manners

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceJournalSource"]


class HeadraceJournalSource(DataSource):
    """`spark.read.format("headrace_journal")`.

    Options: where log and store are; `selection`; `manners`; `counts`, a folder for what the tasks read.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_journal"

    def schema(self) -> str:
        """Return the columns."""
        return JOURNAL_SCHEMA

    def reader(self, schema: StructType) -> _Reader:
        """Read."""
        return _Reader(self.options)


class _Reader(SelectedReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._manners = msgspec.json.decode(options["manners"], type=Manners)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part; in a worker."""
        if not isinstance(partition, JournalPart):
            return  # Spark makes up a part where there is none
        layout = partition.layout
        counts = Counts(layout.topic, partition.partition)

        async def batches() -> AsyncIterator[pa.RecordBatch]:
            log, store = await log_of(self._places), await store_of(self._places)
            reader = JournalsReader(log, store, partition, self._wanted, self._manners, counts)
            async for batch in reader.batches():
                yield batch

        try:
            yield from pulled(batches())
        finally:
            counts.write(self._counts)
