"""replicate-wide: few events in each of very many journals, from Kafka into Cassandra, by the shipped job on Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawProducer
from benchmarks.bounds.row_writers import RowWriters
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads.journals import KEYSPACE, ground, opened
from benchmarks.workloads.replications import Backlog, Job, running, session
from headrace.pipeline import Endpoints

TOPIC = "journals"
EVENTS = 200_000
FIRST = 2_000
PARTITIONS = 4
PROCESSES = 2
KEYS = 100_000


class ReplicateWideContest:
    """Each round replicates further events; the bound writes rows and heads of other journals, as many and as large."""

    def __init__(self, job: Job, producer: RawProducer, backlog: Backlog, writers: RowWriters, *, count: int) -> None:
        self._job = job
        self._producer = producer
        self._backlog = backlog
        self._writers = writers
        self._count = count

    async def work(self) -> Readings:
        """Give the job events; its time is that of the micro-batches that carried them."""
        await asyncio.to_thread(self._producer.send, self._backlog.take(self._count))
        batches = await self._job.carried(self._count)
        return {"events_per_s": self._count / sum(batch.took_s for batch in batches)}

    async def bound(self) -> Readings:
        """Write each row, and each journal's head, as a request of its own."""
        await asyncio.to_thread(self._writers.make, self._count, is_single=True, has_heads=True)
        with stopwatch() as watch:
            await asyncio.to_thread(self._writers.write)
        return {"events_per_s": watch.rate(self._count)}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        await opened(on.hr, TOPIC, partitions=PARTITIONS)
        endpoints = Endpoints.of(f"kafka://{on.kafka.address}", store=f"cassandra://{on.cassandra.address}/{KEYSPACE}")
        keys = stage.count(KEYS, least=2500)
        backlog = Backlog(TOPIC, partitions=PARTITIONS, keys=keys)
        producer = RawProducer(on.kafka.address)
        writers = RowWriters(on.cassandra.host, on.cassandra.port, KEYSPACE, processes=PROCESSES, keys=keys)
        try:
            await asyncio.to_thread(producer.send, backlog.take(FIRST))
            with session(stage) as spark:
                async with running(spark, endpoints, [TOPIC]) as job:
                    await job.carried(FIRST + 1)  # and the mark that made the topic
                    contest = ReplicateWideContest(
                        job, producer, backlog, writers, count=stage.count(EVENTS, least=5000)
                    )
                    yield Contest(contest.work, contest.bound)
        finally:
            writers.close()
            producer.close()


BENCH = Bench(
    name="replicate-wide",
    work="200 000 events of 100 000 journals, Kafka → Cassandra by the shipped job, steady state",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="the same rows and heads as single requests, 64 in flight from each of 2 processes",
            target=at_least(0.6),
        ),
    ),
    setup=setup,
)
