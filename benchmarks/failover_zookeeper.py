"""failover-zookeeper: a partition's owner is killed and frozen under load, on Kafka, with ZooKeeper as coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Contest, Stage
from benchmarks.workloads.failovers import failover_bench, failovers
from benchmarks.workloads.servers import server

NAME = "failover-zookeeper"


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka, server("zookeeper", stage) as zookeeper:
        async with failovers(NAME, stage, log=kafka.url, coordinator=f"zookeeper://{zookeeper.address}") as contest:
            yield contest


BENCH = failover_bench(NAME, setup)
