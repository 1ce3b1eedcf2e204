"""A Spark data source over the log's port, for logs that Spark has no source of its own for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace.errors import OffsetOutOfRange, RecordsLost
from headrace.model import TopicPartition
from headrace.pipeline.logs.plan import Offsets, decode_offsets, encode_offsets, items
from headrace.pipeline.logs.records import LOG_SCHEMA, batch_of_records
from headrace.pipeline.spark.places import PLACES_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceLogSource", "Slice", "admit"]


def admit(starts: Offsets, ends: Offsets, most: int) -> dict[TopicPartition, int]:
    """Return where each partition's part ends so that all together hold at most `most` offsets.

    Small backlogs are taken whole; what they leave of their share goes to the larger ones. A partition that has
    anything gets at least one record, so that none starves.
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

    Options: where the log is, `starts` (the first offset by partition) and, in batch reads, `ends`; `maxrecords`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_log"

    def schema(self) -> str:
        """Return the columns."""
        return LOG_SCHEMA

    def reader(self, schema: StructType) -> _Batch:
        """Read once."""
        return _Batch(self.options)

    def streamReader(self, schema: StructType) -> _Stream:  # noqa: N802 - Spark's name
        """Read on."""
        return _Stream(self.options)


class _Batch(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._places = Endpoints.unpack(options[PLACES_OPTION])
        self._starts = decode_offsets(options["starts"])
        self._ends = decode_offsets(options["ends"])

    def partitions(self) -> Sequence[InputPartition]:
        """Return one slice for each partition that has something."""
        return _slices(self._starts, self._ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice; in a worker."""
        return _read(self._places, partition)


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._places = Endpoints.unpack(options[PLACES_OPTION])
        self._starts = decode_offsets(options["starts"])
        self._max_records = int(options["maxrecords"])
        self._until: dict[TopicPartition, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Begin where the options say."""
        return _plain(self._starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Take so many records a batch."""
        return ReadMaxRows(self._max_records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End where the log ends now."""
        self._until = run(_ends(self._places, list(self._starts)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch goes: an equal share of the limit for each partition that has more."""
        begins = dict(items(start))
        ends = self._until or run(_ends(self._places, list(begins)))
        if isinstance(limit, ReadAllAvailable):
            return _plain(ends)
        return _plain(admit(begins, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_records))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the log ends."""
        return _plain(run(_ends(self._places, list(self._starts))))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one slice for each partition that has something."""
        return _slices(dict(items(start)), dict(items(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice; in a worker."""
        return _read(self._places, partition)


def _plain(offsets: Offsets) -> dict[str, Any]:
    import json

    decoded: dict[str, Any] = json.loads(encode_offsets(offsets))
    return decoded


def _slices(starts: Offsets, ends: Offsets) -> list[InputPartition]:
    return [Slice(at, starts.get(at, 0), end) for at, end in sorted(ends.items()) if end > starts.get(at, 0)]


async def _ends(places: Endpoints, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    log = await log_of(places)
    return {at: (await log.bounds(at)).end for at in partitions}


def _read(places: Endpoints, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read batch by batch, each on the loop, so that Spark gets the first before the last is read."""
    if not isinstance(partition, Slice):
        return  # what Spark plans for a source without any partition
    batches = run(_open(places, partition))
    try:
        while (batch := run(_next(batches))) is not None:
            if batch.records:
                yield batch_of_records(batch.records)
    except OffsetOutOfRange as error:
        raise RecordsLost(error.topic, error.partition, partition.start, error.start - 1) from error
    finally:
        run(batches.aclose())


async def _open(places: Endpoints, part: Slice) -> Any:  # noqa: ANN401 - an async generator
    log = await log_of(places)
    return log.read(part.at, part.start, part.end, max_records=_RECORDS_AT_ONCE)


async def _next(batches: Any) -> Any:  # noqa: ANN401
    return await anext(batches, None)
