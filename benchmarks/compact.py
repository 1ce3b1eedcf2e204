"""compact: the newest record of each key of a topic on Kafka, by Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.servers import server
from headrace.config import PipelineSettings
from headrace.log import open_log
from headrace.model import NewRecord, TopicConfig
from headrace.pipeline import Endpoints, compact, spark_session, topic_frame
from headrace.pipeline.spark.process import close_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "values"
RECORDS = 1_000_000
KEYS = 100_000
PARTITIONS = 8
APPENDED_AT_ONCE = 20_000
TOLD_EVERY = 200_000


class CompactContest:
    """Both sides read the whole topic with the same source and count the result."""

    def __init__(self, spark: SparkSession, endpoints: Endpoints, *, count: int, keys: int) -> None:
        self._spark = spark
        self._endpoints = endpoints
        self._count = count
        self._keys = keys

    async def work(self) -> Readings:
        """Read Headrace's view, with all its columns."""
        return await self._timed(compact(self._topic()))

    async def bound(self) -> Readings:
        """Let Spark find the newest value."""
        from pyspark.sql import functions as f

        newest = f.max_by("value", "offset").alias("value")
        return await self._timed(self._topic().groupBy("topic", "key").agg(newest))

    def _topic(self) -> DataFrame:
        return topic_frame(self._spark, self._endpoints, TOPIC)

    async def _timed(self, frame: DataFrame) -> Readings:
        from pyspark.sql import functions as f

        # Every column is looked at, so that none is left out of the plan.
        looked = frame.select(f.hash(*frame.columns).alias("hash")).agg(f.count("hash"), f.max("hash"))
        with stopwatch() as watch:
            ((left, _),) = await asyncio.to_thread(looked.collect)
        if left != self._keys:
            raise BenchFailed(f"{self._keys} keys were written but {left} are left")
        return {"records_per_s": watch.rate(self._count)}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    count = stage.count(RECORDS, least=1000)
    keys = min(stage.count(KEYS, least=100), count)
    with server("kafka", stage) as kafka:
        address = f"kafka://{kafka.address}"
        await _fill(address, stage, count=count, keys=keys)
        endpoints = Endpoints.of(address, store=f"embedded:{stage.folder / 'store'}")
        stage.tell("starting Spark")
        spark = spark_session(PipelineSettings(master="local[2]"), name="headrace bench")
        try:
            contest = CompactContest(spark, endpoints, count=count, keys=keys)
            yield Contest(contest.work, contest.bound)
        finally:
            close_all()
            spark.stop()


async def _fill(address: str, stage: Stage, *, count: int, keys: int) -> None:
    stage.tell(f"writing {count:,} records")
    written = events(count, keys=keys)
    log = await open_log(address)
    try:
        await log.admin.create(TOPIC, partitions=PARTITIONS, config=TopicConfig())
        for start in range(0, count, APPENDED_AT_ONCE):
            if start and start % TOLD_EVERY == 0:
                stage.tell(f"{start:,} of {count:,} written")
            some = written[start : start + APPENDED_AT_ONCE]
            await log.append([NewRecord(TOPIC, event.key, event.value) for event in some])
    finally:
        await log.close()


BENCH = Bench(
    name="compact",
    work="the compact view of 1 000 000 records of 100 000 keys, Kafka",
    measures=(
        Measure(
            "records_per_s",
            unit="records/s",
            against="Spark's own max_by of the value over the same source",
            target=at_least(0.8),
        ),
    ),
    setup=setup,
    most_rounds=3,
)
