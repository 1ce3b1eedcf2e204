"""The Spark sink that replicates journals into the store.

A task never fails. An error of one partition is in its outcome, so that the tasks of other partitions can finish. The
batch fails as a whole when the outcomes are committed, and the driver starts again from the stored offsets.

Spark asks for the sink in three processes of their own beside the tasks, at the start of every query. They pass options
on and write files, so this module imports little: most of Headrace would take each of them most of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.errors import OperationFailed
from headrace.pipeline.replication.outcomes import TaskOutcome, write_outcomes
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceStoreSink"]


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
