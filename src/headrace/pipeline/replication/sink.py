"""The Spark sink that replicates journals into the store, and the move of stored offsets after a batch.

A task never fails. An error of one partition is in its outcome, so that the tasks of other partitions can finish. The
batch fails as a whole when the outcomes are committed, and the driver starts again from the stored offsets.

The sink gets no rows for control records and aborted transactions. So after a batch has succeeded, the stored offsets
move to the end of what the source covered: all records below that end are in the store then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.errors import OperationFailed
from headrace.journal import replicate_batch
from headrace.model import TopicPartition
from headrace.pipeline.logs.plan import Plan, decode_offsets
from headrace.pipeline.replication.reports import BatchReport, TaskOutcome, write_outcomes
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import store_of, tag_writer_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceStoreSink", "finish_batch", "lag_of"]


async def finish_batch(
    endpoints: Endpoints, plan: Plan, progress: Mapping[str, Any], outcomes: Sequence[TaskOutcome]
) -> BatchReport:
    """Move the stored offsets to the ends of a finished batch, and return its report."""
    source = progress["sources"][0]
    starts, ends = _offsets(source["startOffset"]) or dict(plan.starts), _offsets(source["endOffset"])
    applied = {outcome.at: outcome.applied for outcome in outcomes}
    moved = [at for at, end in ends.items() if end > starts.get(at, 0)]
    await asyncio.gather(*(_pass(endpoints, plan, at, ends[at], applied.get(at, -1)) for at in moved))
    latest = _offsets(source.get("latestOffset")) or ends
    return BatchReport(
        batch=progress["batchId"],
        records=int(progress["numInputRows"]),
        rows=sum(outcome.rows for outcome in outcomes),
        took_s=progress["durationMs"].get("triggerExecution", 0) / 1000,
        lag=lag_of(plan, latest, ends),
        outcomes=outcomes,
    )


def lag_of(
    plan: Plan, latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the lag of each partition behind the log's end, as the source or the plan saw it, whichever is later.

    Spark's source has reported an end below records that had been acknowledged long before.
    """
    return {at: max(0, latest.get(at, end) - end, plan.ends.get(at, end) - end) for at, end in ends.items()}


async def _pass(endpoints: Endpoints, plan: Plan, at: TopicPartition, end: int, applied: int) -> None:
    if applied < end - 1:
        store, views = await store_of(endpoints), await tag_writer_of(endpoints, with_log=True)
        await replicate_batch(store, plan.layouts[at.topic], at, [], up_to=end - 1, views=views)


def _offsets(text: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - Spark gives text, or nothing
    if not text or text == "null":
        return {}
    return decode_offsets(text if isinstance(text, str) else msgspec.json.encode(text))


class HeadraceStoreSink(DataSource):
    """`writeStream.format("headrace_store")`. Options: the endpoints; `outcomes`, a folder of the driver."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_store"

    def streamWriter(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: N802 - Spark's signature
        """Return the writer of a stream."""
        return _Writer(self.options)


class _Message(WriterCommitMessage):
    """The outcome of one task, as Spark sends it to the driver."""

    def __init__(self, outcome: TaskOutcome | None) -> None:
        self.outcome = json.dumps(outcome.packed()) if outcome is not None else None


class _Writer(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._endpoints = Endpoints.unpack(options[ENDPOINTS_OPTION])
        self._outcomes = options["outcomes"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Replicate the records of a task, in a worker."""
        # Imported here, because three more processes only ask for the sink, and this is most of their imports.
        from headrace.pipeline.replication.task import replicate_partition

        return _Message(replicate_partition(self._endpoints, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write the outcomes for the driver, and fail the batch if a task could not finish."""
        outcomes = _outcomes(messages)
        write_outcomes(Path(self._outcomes), batchId, outcomes)
        unfinished = [outcome for outcome in outcomes if not outcome.is_complete]
        if unfinished:
            first = unfinished[0]
            raise OperationFailed(f"replicating {first.at}", first.error or "it waits for other partitions")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Undo nothing: what was written is right. The outcomes of tasks that ended are counted by the driver."""
        write_outcomes(Path(self._outcomes), batchId, _outcomes(messages))


def _outcomes(messages: list[WriterCommitMessage | None]) -> list[TaskOutcome]:
    packed = [message.outcome for message in messages if isinstance(message, _Message) and message.outcome]
    return [TaskOutcome.unpack(json.loads(text)) for text in packed]
