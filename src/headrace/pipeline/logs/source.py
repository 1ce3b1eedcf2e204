"""The Spark data source over the Log port, for logs that Spark itself can't read.

It has one task for each partition, Arrow batches, admission control and `availableNow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace.errors import OffsetOutOfRange, RecordsLost
from headrace.model import TopicPartition
from headrace.pipeline.logs.offsets import Offsets, decode_offsets, encode_offsets, items
from headrace.pipeline.logs.records import LOG_SCHEMA, batch_of_records
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, side_by_side

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceLogSource", "Slice", "batch_ends", "divided"]


def batch_ends(starts: Offsets, ends: Offsets, most: int) -> dict[TopicPartition, int]:
    """Return where each partition's part of a batch ends, so that the batch holds at most `most` offsets.

    Small backlogs are taken whole, and the rest of their share goes to larger ones. A partition with a backlog gets
    at least one record, so that none starves.
    """
    waiting = {at: max(0, end - starts.get(at, 0)) for at, end in ends.items()}
    taken: dict[TopicPartition, int] = {}
    left = most
    for count, (size, at) in enumerate(sorted((size, at) for at, size in waiting.items())):
        share = max(1, left // (len(waiting) - count))
        taken[at] = min(size, share)
        left -= taken[at]
    return {at: starts.get(at, 0) + taken[at] for at in ends}


_RECORDS_AT_ONCE = 5000


class Slice(InputPartition):
    """Offsets of one partition, from `start` up to `end` (exclusive)."""

    def __init__(self, at: TopicPartition, start: int, end: int) -> None:
        super().__init__((at, start, end))
        self.at = at
        self.start = start
        self.end = end


class HeadraceLogSource(DataSource):
    """`spark.read.format("headrace_log")`, and readStream.

    Options: the endpoints; `starts`, the first offset by partition; `maxrecords` in streams. In batch reads: `ends`;
    `tasks`, about how many there are to be; `skipsremoved`, to leave out records that were removed since.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_log"

    def schema(self) -> str:
        """Return the columns."""
        return LOG_SCHEMA

    def reader(self, schema: StructType) -> _Batch:
        """Return the reader of a batch."""
        return _Batch(self.options)

    def streamReader(self, schema: StructType) -> _Stream:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        return _Stream(self.options)


class _Batch(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._endpoints = Endpoints.unpack(options[ENDPOINTS_OPTION])
        self._starts = decode_offsets(options["starts"])
        self._ends = decode_offsets(options["ends"])
        self._tasks = int(options["tasks"])
        self._skips_removed = options["skipsremoved"] == "true"

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices of each partition that has records: long partitions have more of them."""
        return divided(_slices(self._starts, self._ends), self._tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice, in a worker."""
        return _read(self._endpoints, partition, skips_removed=self._skips_removed)


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._endpoints = Endpoints.unpack(options[ENDPOINTS_OPTION])
        self._starts = decode_offsets(options["starts"])
        self._max_records = int(options["maxrecords"])
        self._until: dict[TopicPartition, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the first offsets, which the options name."""
        return _plain(self._starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most records of a batch."""
        return ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the log's present end as the end of the stream."""
        self._until = run(_ends(self._endpoints, list(self._starts)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the ends of the next batch: each partition with a backlog gets an equal share of the limit."""
        begins = dict(items(start))
        ends = self._until or run(_ends(self._endpoints, list(begins)))
        if isinstance(limit, ReadAllAvailable):
            return _plain(ends)
        return _plain(batch_ends(begins, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_records))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the log."""
        return _plain(run(_ends(self._endpoints, list(self._starts))))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one slice for each partition that has records."""
        return _slices(dict(items(start)), dict(items(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice, in a worker."""
        return _read(self._endpoints, partition)


def _plain(offsets: Offsets) -> dict[str, Any]:
    import json

    decoded: dict[str, Any] = json.loads(encode_offsets(offsets))
    return decoded


def divided(slices: Sequence[Slice], tasks: int) -> list[Slice]:
    """Divide slices into about `tasks` of them, of about the same length."""
    most = -(-sum(each.end - each.start for each in slices) // max(1, tasks)) or 1
    return [
        Slice(each.at, start, min(start + most, each.end))
        for each in slices
        for start in range(each.start, each.end, most)
    ]


def _slices(starts: Offsets, ends: Offsets) -> list[Slice]:
    return [Slice(at, starts.get(at, 0), end) for at, end in sorted(ends.items()) if end > starts.get(at, 0)]


async def _ends(endpoints: Endpoints, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    log = await log_of(endpoints)
    bounds = await side_by_side(log.bounds(at) for at in partitions)
    return {at: each.end for at, each in zip(partitions, bounds, strict=True)}


def _read(endpoints: Endpoints, partition: InputPartition, *, skips_removed: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the records batch by batch, so that Spark gets the first batch before the last one is read."""
    if not isinstance(partition, Slice):
        return  # Spark plans an empty partition for a source that has none
    start = partition.start
    while start < partition.end:
        batches = run(_open(endpoints, partition.at, start, partition.end))
        try:
            while (batch := run(_next(batches))) is not None:
                if batch.records:
                    yield batch_of_records(batch.records)
                start = batch.next_offset
            return
        except OffsetOutOfRange as error:
            if not skips_removed or error.offset >= error.start:
                raise RecordsLost(error.topic, error.partition, partition.start, error.start - 1) from error
            start = error.start
        finally:
            run(batches.aclose())


async def _open(endpoints: Endpoints, at: TopicPartition, start: int, end: int) -> Any:  # noqa: ANN401 - an async generator
    log = await log_of(endpoints)
    return log.read(at, start, end, max_records=_RECORDS_AT_ONCE)


async def _next(batches: Any) -> Any:  # noqa: ANN401
    return await anext(batches, None)
