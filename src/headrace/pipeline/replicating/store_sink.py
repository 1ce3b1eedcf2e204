"""The Spark sink that carries journals into the store: one task for each partition of a topic.

A task never fails: what went wrong in one partition is told in its message and must not end the others' tasks. The
batch fails as a whole when its messages are committed, and the driver begins again from the stored offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.errors import OperationFailed
from headrace.pipeline.replicating.outcomes import Outcome, write_outcomes
from headrace.pipeline.spark.places import PLACES_OPTION, Places

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["HeadraceStoreSink"]


class HeadraceStoreSink(DataSource):
    """`writeStream.format("headrace_store")`. Options: where log and store are; `outcomes`, a folder of the driver."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_store"

    def streamWriter(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: N802 - Spark's signature
        """Write a stream."""
        return _Writer(self.options)


class _Message(WriterCommitMessage):
    """What one task did."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = json.dumps(outcome.packed()) if outcome is not None else None


class _Writer(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._places = Places.unpack(options[PLACES_OPTION])
        self._outcomes = options["outcomes"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Replicate what a task was given; in a worker."""
        # Not where Spark only asks for the sink: that is three processes, and this is most of what they would import.
        from headrace.pipeline.replicating.tasks import replicate_partition

        return _Message(replicate_partition(self._places, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Tell the driver what the tasks did, and fail the batch if one of them could not do all of it."""
        outcomes = _outcomes(messages)
        write_outcomes(Path(self._outcomes), batchId, outcomes)
        unfinished = [outcome for outcome in outcomes if not outcome.is_complete]
        if unfinished:
            first = unfinished[0]
            raise OperationFailed(f"replicating {first.at}", first.error or "it waits for other partitions")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is to be undone: whatever was written is right, and is written again to the same effect."""


def _outcomes(messages: list[WriterCommitMessage | None]) -> list[Outcome]:
    packed = [message.outcome for message in messages if isinstance(message, _Message) and message.outcome]
    return [Outcome.unpack(json.loads(text)) for text in packed]
