"""replicate-wide: few events in each of very many journals, from Kafka into Cassandra, by the shipped job on Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least
from benchmarks.workloads.cassandra_replications import SteadyReplication, steady

EVENTS = 200_000
KEYS = 100_000


class ReplicateWideContest:
    """Many journals of few events."""

    def __init__(self, replication: SteadyReplication, *, count: int) -> None:
        self._replication = replication
        self._count = count

    async def work(self) -> Readings:
        """Replicate."""
        return {"events_per_s": self._count / await self._replication.replicate(self._count)}

    async def bound(self) -> Readings:
        """Write each row, and each journal's head, as a request of its own."""
        return {"events_per_s": await self._replication.write(self._count, is_single=True, has_heads=True)}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with steady(stage, keys=stage.count(KEYS, least=2500)) as replication:
        contest = ReplicateWideContest(replication, count=stage.count(EVENTS, least=5000))
        yield Contest(contest.work, contest.bound)


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
