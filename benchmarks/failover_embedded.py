"""failover-embedded: a partition's owner is killed and frozen under load, on the embedded log and coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Contest, Stage
from benchmarks.workloads.failovers import failover_bench, failovers

NAME = "failover-embedded"


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with failovers(NAME, stage, log=f"embedded:{stage.folder / 'log'}") as contest:
        yield contest


BENCH = failover_bench(NAME, setup)
