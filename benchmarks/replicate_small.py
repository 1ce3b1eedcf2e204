"""replicate-small: the time of a micro-batch of one event, beside the same query with a sink that does nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import headrace
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most
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

TOPIC, BARE_TOPIC = "journals", "bare"
KEYS = 10
BATCHES = 20
DEADLINE_S = 120.0


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


class BareQuery:
    """A query over one topic into the sink that does nothing."""

    def __init__(self, spark: SparkSession, endpoints: Endpoints, folder: str) -> None:
        register(spark, BareSink)
        frame = log_stream(spark, endpoints, {TopicPartition(BARE_TOPIC, 0): 0}, max_records=200_000)
        writer = frame.writeStream.format(BareSink.name()).option("checkpointLocation", folder)
        self._reports = ProgressReports()
        self._listening = self._reports.of(spark)
        self._listening.__enter__()
        self._query = writer.trigger(processingTime="0 seconds").start()

    def carried(self, count: int) -> list[float]:
        """Wait for batches of `count` more records; return their times."""
        times: list[float] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while count > 0:
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"Spark did not end a batch within {DEADLINE_S:g} s")
            found = [each for each in self._reports.take(str(self._query.runId), 1.0) if each["numInputRows"]]
            count -= sum(each["numInputRows"] for each in found)
            times += [each["durationMs"]["triggerExecution"] / 1000 for each in found]
        return times

    def stop(self) -> None:
        self._query.stop()
        self._listening.__exit__(None, None, None)


class ReplicateSmallContest:
    """Each round gives each query single events, one after the other."""

    def __init__(self, address: str, job: Job, bare: BareQuery, backlogs: Sequence[Backlog], *, batches: int) -> None:
        self._address = address
        self._job = job
        self._bare = bare
        self._ours, self._theirs = backlogs
        self._batches = batches

    async def work(self) -> Readings:
        times = []
        for _ in range(self._batches):
            await filled(self._address, self._ours.take(1))
            times += [batch.took_s for batch in await self._job.carried(1)]
        return {"batch_s": _median(times)}

    async def bound(self) -> Readings:
        times: list[float] = []
        for _ in range(self._batches):
            await filled(self._address, self._theirs.take(1))
            times += await asyncio.to_thread(self._bare.carried, 1)
        return {"batch_s": _median(times)}


def _median(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    address = f"embedded:{stage.folder / 'data'}"
    endpoints = Endpoints.of(address)
    async with headrace.connect(address) as hr:
        for topic in (TOPIC, BARE_TOPIC):
            await opened(hr, topic, partitions=1)
    backlogs = [Backlog(topic, partitions=1, keys=KEYS) for topic in (TOPIC, BARE_TOPIC)]
    for backlog in backlogs:
        await filled(address, backlog.take(1))
    with session(stage) as spark:
        async with running(spark, endpoints, [TOPIC]) as job:
            bare = BareQuery(spark, endpoints, (stage.folder / "checkpoint").as_uri())
            try:
                await job.carried(2)  # and the mark that made the topic
                await asyncio.to_thread(bare.carried, 2)
                contest = ReplicateSmallContest(address, job, bare, backlogs, batches=stage.count(BATCHES))
                yield Contest(contest.work, contest.bound)
            finally:
                bare.stop()


BENCH = Bench(
    name="replicate-small",
    work="micro-batches of one event, embedded log → embedded store by the shipped job, one after the other",
    measures=(Measure("batch_s", unit="s", against="the same query, a sink that does nothing", target=at_most(1.5)),),
    setup=setup,
    most_rounds=3,
)
