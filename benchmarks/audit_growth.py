"""audit-growth: the cost of auditing an event, with more events and with more partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.bounds.kafka import RawProducer
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most
from benchmarks.harness.bench import Tell
from benchmarks.workloads.journals import KEYSPACE, Ground, ground, opened
from benchmarks.workloads.replications import Backlog, session
from headrace.pipeline import BatchReport, Endpoints, Replication, Selection, audit
from headrace.pipeline.replication.reports import SilentWatcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW, MORE, MOST = 100_000, 1_000_000, 10_000_000
PARTITIONS = (1, 8)
EVENTS_OF_JOURNAL = 100
SENT_AT_ONCE = 100_000


class Batches(SilentWatcher):
    """Tells how far the replication of a topic is."""

    def __init__(self, tell: Tell, count: int) -> None:
        self._tell = tell
        self._count = count
        self._done = 0

    def batch(self, report: BatchReport) -> None:
        """Tell of a batch."""
        self._done += report.records
        self._tell(
            f"{self._done:,} of {self._count:,} replicated, the last {report.records:,} in {report.took_s:.1f} s"
        )


class AuditGrowthContest:
    """Each topic holds its events from the beginning; its audit is repeated. The largest is made and audited once."""

    def __init__(self, spark: SparkSession, on: Ground, producer: RawProducer, stage: Stage) -> None:
        self._spark = spark
        self._on = on
        self._producer = producer
        self._stage = stage
        self._endpoints = Endpoints.of(
            f"kafka://{on.kafka.address}", store=f"cassandra://{on.cassandra.address}/{KEYSPACE}"
        )
        self._cost_of_most: float | None = None
        self._is_warm = False
        self._reads = 0.0

    async def fill(self, full: int, partitions: int) -> None:
        """Make a topic with replicated journals of a hundred events each."""
        count = self._count(full)
        self._stage.tell(f"replicating {count:,} events in {partitions} partition{'s' * (partitions > 1)}")
        # Journals one after the other: replication then meets each in few batches, and 10⁷ events take minutes.
        backlog = Backlog(_topic(full, partitions), partitions=partitions, events_of_journal=EVENTS_OF_JOURNAL)
        await opened(self._on.hr, backlog.topic, partitions=partitions)
        for start in range(0, count, SENT_AT_ONCE):
            await asyncio.to_thread(self._producer.send, backlog.take(min(SENT_AT_ONCE, count - start)))
        watcher = Batches(self._stage.tell, count)
        job = Replication(self._spark, self._endpoints, Selection((backlog.topic,)), watcher=watcher)
        await asyncio.to_thread(job.run, once=True)

    async def work(self) -> Readings:
        """Audit many events, in one partition and in eight; the most only once. The warm-up audits few."""
        if not self._is_warm:
            self._is_warm = True
            return await self.bound()
        readings = {
            "us_per_event_of_1_000_000_in_1": await self._cost_us(MORE, 1),
            "us_per_event_of_1_000_000_in_8": await self._cost_us(MORE, 8),
            "times_each_record_was_read": self._reads,
        }
        if not self._stage.is_huge:
            return readings
        if self._cost_of_most is None:
            await self.fill(MOST, 8)
            self._cost_of_most = await self._cost_us(MOST, 8)
        return {**readings, "us_per_event_of_10_000_000_in_8": self._cost_of_most}

    async def bound(self) -> Readings:
        """Audit few events, in one partition and in eight."""
        in_8 = await self._cost_us(FEW, 8)
        return {
            "us_per_event_of_1_000_000_in_1": await self._cost_us(FEW, 1),
            "us_per_event_of_1_000_000_in_8": in_8,
            "us_per_event_of_10_000_000_in_8": in_8,
            "times_each_record_was_read": 1.0,
        }

    async def _cost_us(self, full: int, partitions: int) -> float:
        return await asyncio.to_thread(self._audit, self._count(full), _topic(full, partitions))

    def _audit(self, count: int, topic: str) -> float:
        started_s = time.perf_counter()
        report = audit(self._spark, self._endpoints, Selection((topic,)))
        took_s = time.perf_counter() - started_s
        report.close()
        self._stage.tell(f"the audit of {count:,} events in {topic} took {took_s:.1f} s")
        if not report.is_clean or report.total("records") != count:
            raise BenchFailed(f"the audit of {topic} saw {report.total('records')} records, {report.found} findings")
        self._reads = report.total("read") / count  # with the mark that made the topic
        return 1e6 * took_s / count

    def _count(self, full: int) -> int:
        return self._stage.count(full, least=1000)


def _topic(full: int, partitions: int) -> str:
    return f"audited-{full}-{partitions}"


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        producer = RawProducer(on.kafka.address)
        try:
            with session(stage) as spark:
                contest = AuditGrowthContest(spark, on, producer, stage)
                for full in (FEW, MORE):
                    for partitions in PARTITIONS:
                        await contest.fill(full, partitions)
                yield Contest(contest.work, contest.bound)
        finally:
            producer.close()


def _measure(metric: str, against: str, *, is_huge: bool = False) -> Measure:
    return Measure(metric, unit="µs", against=against, target=at_most(1.2), is_huge=is_huge)


BENCH = Bench(
    name="audit-growth",
    work="the cost of auditing an event, Kafka and Cassandra: 10⁵, 10⁶ and (--huge) 10⁷ events, in 1 and 8 partitions",
    measures=(
        _measure("us_per_event_of_1_000_000_in_1", "the cost among 100 000"),
        _measure("us_per_event_of_1_000_000_in_8", "the cost among 100 000"),
        _measure("us_per_event_of_10_000_000_in_8", "the cost among 100 000", is_huge=True),
        Measure("times_each_record_was_read", unit="times", against="once", target=at_most(1.01)),
    ),
    setup=setup,
    most_rounds=2,
)
