"""replicate-wide: few events in each of very many journals, from Kafka into Cassandra, by the shipped job on Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least
from benchmarks.workloads.cassandra_replications import SteadyReplication, steady

EVENTS = 200_000
KEYS = 100_000
# Part of the work that the bound does, and the warm-up: as single requests all of it would take minutes.
SAMPLE = 0.2


class ReplicateWideContest:
    """Many journals of few events."""

    def __init__(self, replication: SteadyReplication, *, count: int) -> None:
        self._replication = replication
        self._count = count
        self._is_warm = False

    async def work(self) -> Readings:
        """Replicate; the first time only some events."""
        count = self._count if self._is_warm else self._sample
        self._is_warm = True
        return {"events_per_s": count / await self._replication.replicate(count)}

    async def bound(self) -> Readings:
        """Write some of the rows, and the head of each of their journals, as requests of their own."""
        return {"events_per_s": await self._replication.write(self._sample, is_single=True, has_heads=True)}

    @property
    def _sample(self) -> int:
        return int(self._count * SAMPLE)


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    keys = stage.count(KEYS, least=2500)
    async with steady(stage, keys=keys, written_keys=int(keys * SAMPLE)) as replication:
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
    most_rounds=3,
)
