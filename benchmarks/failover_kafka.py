"""failover-kafka: a partition's owner is killed and frozen under load, on Kafka, with its group as coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Contest, Stage
from benchmarks.workloads.failovers import failover_bench, failovers
from benchmarks.workloads.servers import server

NAME = "failover-kafka"


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        async with failovers(NAME, stage, log=kafka.url) as contest:
            yield contest


BENCH = failover_bench(NAME, setup)
