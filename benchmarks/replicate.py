"""replicate: journals from Kafka into Cassandra, by the shipped job on Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawProducer
from benchmarks.bounds.row_writers import IN_FLIGHT, RowWriters
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.journals import KEYSPACE, ground, opened
from benchmarks.workloads.replications import Backlog, Job, running, session
from headrace.pipeline import Endpoints

TOPIC = "journals"
EVENTS = 200_000
SINGLES = 20_000
FIRST = 2_000
PARTITIONS = 4
PROCESSES = 2
KEYS = 1000


class ReplicateContest:
    """Each round replicates further events; the bound writes rows of other journals, as many and as large."""

    def __init__(self, job: Job, producer: RawProducer, backlog: Backlog, writers: RowWriters, *, count: int) -> None:
        self._job = job
        self._producer = producer
        self._backlog = backlog
        self._writers = writers
        self._count = count
        self.first_batch_s = 0.0

    async def work(self) -> Readings:
        """Give the job events; its time is that of the micro-batches that carried them."""
        await asyncio.to_thread(self._producer.send, self._backlog.take(self._count))
        batches = await self._job.carried(self._count)
        rate = self._count / sum(batch.took_s for batch in batches)
        await asyncio.to_thread(self._producer.send, self._backlog.take(1))
        (small,) = await self._job.carried(1)
        return {
            "events_per_s": rate,
            "events_per_s_beside_one_at_a_time": rate,
            "events_per_s_beside_single_rows": rate,
            "first_batch_s": self.first_batch_s,
            "batch_of_one_s": small.took_s,
        }

    async def bound(self) -> Readings:
        """Write rows with the driver: in batches, one after another, and as single rows with many in flight."""
        singles = min(self._count, SINGLES)
        return {
            "events_per_s": await self._write(self._count),
            "events_per_s_beside_one_at_a_time": await self._write(singles // 4, is_single=True, in_flight=1),
            "events_per_s_beside_single_rows": await self._write(singles, is_single=True),
        }

    async def _write(self, count: int, *, is_single: bool = False, in_flight: int = IN_FLIGHT) -> float:
        await asyncio.to_thread(self._writers.make, count, is_single=is_single, in_flight=in_flight)
        with stopwatch() as watch:
            await asyncio.to_thread(self._writers.write)
        return watch.rate(count)


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        await opened(on.hr, TOPIC, partitions=PARTITIONS)
        endpoints = Endpoints.of(f"kafka://{on.kafka.address}", store=f"cassandra://{on.cassandra.address}/{KEYSPACE}")
        backlog = Backlog(TOPIC, partitions=PARTITIONS, keys=KEYS)
        producer = RawProducer(on.kafka.address)
        writers = RowWriters(on.cassandra.host, on.cassandra.port, KEYSPACE, processes=PROCESSES, keys=KEYS)
        try:
            await asyncio.to_thread(producer.send, backlog.take(FIRST))
            with session(stage) as spark:
                async with running(spark, endpoints, [TOPIC]) as job:
                    count = stage.count(EVENTS, least=5000)
                    contest = ReplicateContest(job, producer, backlog, writers, count=count)
                    first, *_ = await job.carried(FIRST + 1)  # and the mark that made the topic
                    contest.first_batch_s = first.took_s
                    yield Contest(contest.work, contest.bound)
        finally:
            writers.close()
            producer.close()


BENCH = Bench(
    name="replicate",
    work="200 000 events Kafka → Cassandra by the shipped job, steady state",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="cassandra-driver writing the same rows in the same batches from 2 processes",
            target=at_least(0.6),
        ),
        Measure(
            "events_per_s_beside_one_at_a_time",
            unit="events/s",
            against="the same rows one at a time, from each of 2 processes",
            target=at_least(5),
        ),
        Measure(
            "events_per_s_beside_single_rows",
            unit="events/s",
            against="the same rows as single requests, 64 in flight from each of 2 processes",
        ),
        Measure("first_batch_s", unit="s"),
        Measure("batch_of_one_s", unit="s"),
    ),
    setup=setup,
)
