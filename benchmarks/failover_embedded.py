"""failover-embedded: a partition's owner is killed and frozen under load, on the embedded log and coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Stage
from benchmarks.workloads.failovers import MEASURES, failovers


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with failovers(stage, log=f"embedded:{stage.folder / 'log'}") as contest:
        yield contest


BENCH = Bench(
    name="failover-embedded",
    work="kill -9 and SIGSTOP of a partition's owner under reads and asks with ids: the longest time without a success",
    measures=MEASURES,
    setup=setup,
)
