"""failover-kafka: a partition's owner is killed and frozen under load, on Kafka, with its group as coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Stage
from benchmarks.workloads.failovers import MEASURES, failovers
from benchmarks.workloads.servers import server


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        async with failovers(stage, log=kafka.url) as contest:
            yield contest


BENCH = Bench(
    name="failover-kafka",
    work="kill -9 and SIGSTOP of a partition's owner under reads and asks with ids: the longest time without a success",
    measures=MEASURES,
    setup=setup,
)
