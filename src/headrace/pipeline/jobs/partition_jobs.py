"""Jobs with one task for each partition of a topic: a Spark data source whose tasks work and report in rows.

A task never fails. An error is in the last row of its partition, so that the tasks of other partitions can finish. The
work of a job is in the job's own module.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.model import TopicPartition
from headrace.pipeline.jobs.expiry import purge_partition
from headrace.pipeline.jobs.job_reports import REPORT_COLUMNS
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.session import refuse_speculation, register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Arguments", "PartitionJob", "PurgeExpiredJob", "Work", "job_frame"]

Arguments: TypeAlias = Mapping[str, Any]
Work: TypeAlias = Callable[[Endpoints, TopicPartition, Arguments], "Iterator[pa.RecordBatch]"]


class _Part(InputPartition):
    """One partition of a topic."""

    def __init__(self, at: TopicPartition) -> None:
        super().__init__(at)
        self.at = at


class PartitionJob(DataSource):
    """A job. Its options are the endpoints, and `partitions` and `arguments` as JSON."""

    @abstractmethod
    def work(self) -> Work:
        """Return the function that a task runs. It is a module's function, because it is pickled by name."""

    def reader(self, schema: StructType) -> _Reader:
        """Return the reader, which plans the tasks and is sent to them."""
        return _Reader(self.work(), self.options)


class _Reader(DataSourceReader):
    def __init__(self, work: Work, options: Mapping[str, str]) -> None:
        self._work = work
        self._endpoints = Endpoints.unpack(options[ENDPOINTS_OPTION])
        self._partitions = [TopicPartition(*at) for at in json.loads(options["partitions"])]
        self._arguments: Arguments = json.loads(options["arguments"])

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each partition."""
        return [_Part(at) for at in self._partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run the job's function, in a worker."""
        if not isinstance(partition, _Part):
            raise TypeError(f"not a partition of a topic: {partition!r}")
        return self._work(self._endpoints, partition.at, self._arguments)


def job_frame(
    spark: SparkSession,
    job: type[PartitionJob],
    endpoints: Endpoints,
    partitions: Sequence[TopicPartition],
    arguments: Arguments,
) -> DataFrame:
    """Return a frame of the tasks' rows. Every action on the frame runs the job."""
    refuse_speculation(spark, job.name())
    register(spark, job)
    options = {
        ENDPOINTS_OPTION: endpoints.pack(),
        "partitions": json.dumps([list(at) for at in sorted(partitions)]),
        "arguments": json.dumps(dict(arguments)),
    }
    return spark.read.format(job.name()).options(**options).load()


class PurgeExpiredJob(PartitionJob):
    """Purges the expired journals."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace_purge_expired"

    def schema(self) -> str:
        """Return the columns."""
        return REPORT_COLUMNS

    def work(self) -> Work:
        """Return the function that a task runs."""
        return purge_partition
