"""replicate: journals from Kafka into Cassandra, by the shipped job on Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least
from benchmarks.workloads.cassandra_replications import SteadyReplication, steady

EVENTS = 200_000
SINGLES = 20_000
KEYS = 1000


class ReplicateContest:
    """Few journals of many events."""

    def __init__(self, replication: SteadyReplication, *, count: int) -> None:
        self._replication = replication
        self._count = count

    async def work(self) -> Readings:
        """Replicate many events, and one."""
        rate = self._count / await self._replication.replicate(self._count)
        return {
            "events_per_s": rate,
            "events_per_s_beside_one_at_a_time": rate,
            "events_per_s_beside_single_rows": rate,
            "first_batch_s": self._replication.first_batch_s,
            "batch_of_one_s": await self._replication.replicate(1),
        }

    async def bound(self) -> Readings:
        """Write rows with the driver: in batches, one after another, and as single rows with many in flight."""
        singles, write = min(self._count, SINGLES), self._replication.write
        return {
            "events_per_s": await write(self._count),
            "events_per_s_beside_one_at_a_time": await write(singles // 4, is_single=True, in_flight=1),
            "events_per_s_beside_single_rows": await write(singles, is_single=True),
        }


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with steady(stage, keys=KEYS) as replication:
        contest = ReplicateContest(replication, count=stage.count(EVENTS, least=5000))
        yield Contest(contest.work, contest.bound)


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
