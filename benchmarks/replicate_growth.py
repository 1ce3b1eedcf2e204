"""replicate-growth: the cost of replicating an event, with more events and with more partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawProducer
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_most
from benchmarks.workloads.journals import KEYSPACE, ground, opened
from benchmarks.workloads.replications import Backlog, Job, running, session
from headrace.pipeline import Endpoints

FEW, MORE, MANY = 10_000, 100_000, 1_000_000
PARTITIONS = (1, 4, 16)
AMONG = 4
FIRST = 2_000


class GrowthContest:
    """The cost of an event is the time of the micro-batches that carried it, divided by their events."""

    def __init__(self, job: Job, producer: RawProducer, backlogs: Mapping[int, Backlog], stage: Stage) -> None:
        self._job = job
        self._producer = producer
        self._backlogs = backlogs
        self._stage = stage
        self._cost_of_many: float | None = None
        self._is_warm = False

    async def work(self) -> Readings:
        """Replicate more events, and more partitions; the most only once."""
        if self._is_warm and self._cost_of_many is None:
            self._cost_of_many = await self._cost_us(MANY, AMONG)
        self._is_warm = True
        of_more = await self._cost_us(MORE, AMONG)
        return {
            "us_per_event_of_100_000": of_more,
            "us_per_event_of_1_000_000": self._cost_of_many or 0.0,
            "us_per_event_4_partitions": of_more,
            "us_per_event_16_partitions": await self._cost_us(MORE, 16),
        }

    async def bound(self) -> Readings:
        """Replicate the fewest events, and those of one partition."""
        of_few = await self._cost_us(FEW, AMONG)
        of_one = await self._cost_us(MORE, 1)
        return {
            "us_per_event_of_100_000": of_few,
            "us_per_event_of_1_000_000": of_few,
            "us_per_event_4_partitions": of_one,
            "us_per_event_16_partitions": of_one,
        }

    async def _cost_us(self, full: int, partitions: int) -> float:
        count = self._stage.count(full, least=1000)
        backlog = self._backlogs[partitions]
        left = count
        while left:  # a million records at once would be a gigabyte here
            some = min(left, MORE)
            await asyncio.to_thread(self._producer.send, backlog.take(some))
            left -= some
        batches = await self._job.carried(count)
        return 1e6 * sum(batch.took_s for batch in batches) / count


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        backlogs = {nr: Backlog(f"journals-{nr}", partitions=nr) for nr in PARTITIONS}
        producer = RawProducer(on.kafka.address)
        for backlog in backlogs.values():
            await opened(on.hr, backlog.topic, partitions=backlog.partitions)
            await asyncio.to_thread(producer.send, backlog.take(FIRST))
        endpoints = Endpoints.of(f"kafka://{on.kafka.address}", store=f"cassandra://{on.cassandra.address}/{KEYSPACE}")
        try:
            with session(stage) as spark:
                async with running(spark, endpoints, [backlog.topic for backlog in backlogs.values()]) as job:
                    await job.carried((FIRST + 1) * len(backlogs))  # with the marks that made the topics
                    contest = GrowthContest(job, producer, backlogs, stage)
                    yield Contest(contest.work, contest.bound)
        finally:
            producer.close()


def _measure(metric: str, against: str) -> Measure:
    return Measure(metric, unit="µs", against=against, target=at_most(1.2))


BENCH = Bench(
    name="replicate-growth",
    work="the cost of an event, Kafka → Cassandra: 10⁴ to 10⁶ events (4 partitions), 1 to 16 partitions (10⁵ events)",
    measures=(
        _measure("us_per_event_of_100_000", "the cost among 10 000"),
        _measure("us_per_event_of_1_000_000", "the cost among 10 000"),
        _measure("us_per_event_4_partitions", "the cost with 1 partition"),
        _measure("us_per_event_16_partitions", "the cost with 1 partition"),
    ),
    setup=setup,
)
