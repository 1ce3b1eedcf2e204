"""Micro-batches of one event in a process and Spark session of their own: the shipped job, or a sink of nothing.

`python -m benchmarks.workloads.small_batches SIDE FOLDER BATCHES` prints the times as JSON, in its last line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import headrace
from benchmarks.harness import BenchFailed, Stage
from benchmarks.workloads.journals import opened
from benchmarks.workloads.replications import Backlog, Job, filled, running, session
from headrace.model import TopicPartition
from headrace.pipeline import Endpoints
from headrace.pipeline.logs.frames import log_stream
from headrace.pipeline.replication.progress import ProgressReports
from headrace.pipeline.spark.session import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["JOB", "NOTHING", "SmallBatches"]

JOB, NOTHING = "job", "nothing"
TOPIC = "journals"
KEYS = 10
DEADLINE_S = 600.0


class SmallBatches(msgspec.Struct, frozen=True):
    """The times of one process: the session's start, from there to the end of the first batch, and those of others."""

    session_s: float
    first_batch_s: float
    batches_s: list[float]


class BareSink(DataSource):  # type: ignore[misc] # Spark's classes have no types
    """Takes what a stream brings and does nothing with it: what is left is Spark's own time."""

    @classmethod
    def name(cls) -> str:
        return "headrace_bench_bare"

    def streamWriter(self, schema: StructType, overwrite: bool) -> _Nothing:  # noqa: N802 - Spark's name
        return _Nothing()


class _Nothing(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Query(Protocol):
    """A running query over the topic."""

    async def times_s(self, count: int) -> list[float]:
        """Wait for batches of `count` more records; return their times."""
        ...


class BareQuery:
    """The query into the sink that does nothing."""

    def __init__(self, spark: SparkSession, endpoints: Endpoints, folder: str) -> None:
        register(spark, BareSink)
        frame = log_stream(spark, endpoints, {TopicPartition(TOPIC, 0): 0}, max_records=200_000)
        writer = frame.writeStream.format(BareSink.name()).option("checkpointLocation", folder)
        self._reports = ProgressReports()
        self._listening = self._reports.of(spark)
        self._listening.__enter__()
        self._query = writer.trigger(processingTime="0 seconds").start()

    async def times_s(self, count: int) -> list[float]:
        return await asyncio.to_thread(self._carried, count)

    def stop(self) -> None:
        self._query.stop()
        self._listening.__exit__(None, None, None)

    def _carried(self, count: int) -> list[float]:
        times: list[float] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while count > 0:
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"Spark did not end a batch within {DEADLINE_S:g} s")
            found = [each for each in self._reports.take(str(self._query.runId), 1.0) if each["numInputRows"]]
            count -= sum(each["numInputRows"] for each in found)
            times += [each["durationMs"]["triggerExecution"] / 1000 for each in found]
        return times


class ShippedJob:
    """The job, with the same times."""

    def __init__(self, job: Job) -> None:
        self._job = job

    async def times_s(self, count: int) -> list[float]:
        return [batch.took_s for batch in await self._job.carried(count)]


@asynccontextmanager
async def started(side: str, spark: SparkSession, endpoints: Endpoints, folder: Path) -> AsyncIterator[Query]:
    """Start the query of a side."""
    if side == JOB:
        async with running(spark, endpoints, [TOPIC]) as job:
            yield ShippedJob(job)
        return
    bare = BareQuery(spark, endpoints, (folder / "checkpoint").as_uri())
    try:
        yield bare
    finally:
        bare.stop()


async def measured(side: str, folder: Path, batches: int) -> SmallBatches:
    """Start Spark and the query, and give it single events, one after the other."""
    address = f"embedded:{folder / 'data'}"
    async with headrace.connect(address) as hr:
        await opened(hr, TOPIC, partitions=1)
    backlog = Backlog(TOPIC, partitions=1, keys=KEYS)
    await filled(address, backlog.take(1))
    began_s = time.perf_counter()
    with session(Stage(folder, 1.0, lambda _step: None)) as spark:
        session_s = time.perf_counter() - began_s
        async with started(side, spark, Endpoints.of(address), folder) as query:
            await query.times_s(2)  # and the mark that made the topic
            first_batch_s = time.perf_counter() - began_s - session_s
            times: list[float] = []
            for _ in range(batches):
                await filled(address, backlog.take(1))
                times += await query.times_s(1)
    return SmallBatches(session_s, first_batch_s, times)


if __name__ == "__main__":
    found = asyncio.run(measured(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
    print(msgspec.json.encode(found).decode(), flush=True)
