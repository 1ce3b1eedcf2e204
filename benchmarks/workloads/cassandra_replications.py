"""The shipped job from Kafka into Cassandra in its steady state, beside the driver writing rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawProducer
from benchmarks.bounds.row_writers import IN_FLIGHT, RowWriters
from benchmarks.harness import Stage, stopwatch
from benchmarks.workloads.journals import KEYSPACE, ground, opened
from benchmarks.workloads.replications import Backlog, Job, running, session
from headrace.pipeline import BatchReport, Endpoints

__all__ = ["SteadyReplication", "steady"]

TOPIC = "journals"
FIRST = 2_000
PARTITIONS = 4
PROCESSES = 2


class SteadyReplication:
    """Replicates further events each time; the driver writes rows of other journals, as many and as large."""

    def __init__(self, job: Job, producer: RawProducer, backlog: Backlog, writers: RowWriters) -> None:
        self._job = job
        self._producer = producer
        self._backlog = backlog
        self._writers = writers
        self.first_batch_s = 0.0

    async def begin(self) -> None:
        """Replicate a few events: the first batch pays for start-up."""
        await self._send(FIRST)
        first, *_ = await self._job.carried(FIRST + 1)  # and the mark that made the topic
        self.first_batch_s = first.took_s

    async def replicate(self, count: int) -> float:
        """Give the job events; return the time of the micro-batches that carried them."""
        await self._send(count)
        batches: list[BatchReport] = await self._job.carried(count)
        return sum(batch.took_s for batch in batches)

    async def write(
        self, count: int, *, is_single: bool = False, has_heads: bool = False, in_flight: int = IN_FLIGHT
    ) -> float:
        """Write rows with the driver; return how many a second."""
        writers = self._writers
        await asyncio.to_thread(writers.make, count, is_single=is_single, has_heads=has_heads, in_flight=in_flight)
        with stopwatch() as watch:
            await asyncio.to_thread(writers.write)
        return watch.rate(count)

    async def _send(self, count: int) -> None:
        await asyncio.to_thread(self._producer.send, self._backlog.take(count))


@asynccontextmanager
async def steady(stage: Stage, *, keys: int, written_keys: int | None = None) -> AsyncIterator[SteadyReplication]:
    """Start the servers, Spark and the job, and let it carry its first batch.

    The driver writes the rows of as many journals, or of `written_keys`.
    """
    async with ground(stage) as on:
        await opened(on.hr, TOPIC, partitions=PARTITIONS)
        endpoints = Endpoints.of(f"kafka://{on.kafka.address}", store=f"cassandra://{on.cassandra.address}/{KEYSPACE}")
        backlog = Backlog(TOPIC, partitions=PARTITIONS, keys=keys)
        producer = RawProducer(on.kafka.address)
        writers = RowWriters(
            on.cassandra.host, on.cassandra.port, KEYSPACE, processes=PROCESSES, keys=written_keys or keys
        )
        try:
            with session(stage) as spark:
                async with running(spark, endpoints, [TOPIC], tell=stage.tell) as job:
                    replication = SteadyReplication(job, producer, backlog, writers)
                    await replication.begin()
                    yield replication
        finally:
            writers.close()
            producer.close()
