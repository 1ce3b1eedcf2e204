"""engine-remote: commands to aggregates that another node owns, beside the same to aggregates of the caller's node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Stage, at_least, at_most
from benchmarks.workloads.engine_contests import PARTITIONS
from benchmarks.workloads.engines import IN_FLIGHT, EnginePlace, counter_engine, measured
from headrace.testing.processes import running_function

AGAINST = "the same commands to an engine that the caller's own node serves"
COMMANDS = 20_000
SINGLE = 500


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    commands, single = stage.count(COMMANDS, least=IN_FLIGHT), stage.count(SINGLE, least=20)
    place = EnginePlace(f"embedded:{stage.folder / 'log'}", "", str(stage.folder / "state"))
    away, near = counter_engine(partitions=PARTITIONS), counter_engine("near-counters", partitions=PARTITIONS)
    with running_function("benchmarks.workloads.engines:serve_counters", *place, "owner", PARTITIONS) as child:
        await asyncio.to_thread(child.wait_for_line, "serves", 60)
        async with place.node("caller", near) as hr:
            yield Contest(
                lambda: measured(hr.engine(away), commands, single), lambda: measured(hr.engine(near), commands, single)
            )


BENCH = Bench(
    name="engine-remote",
    work=f"commands to the owner of their aggregates in another process: {IN_FLIGHT} in flight, then one; embedded",
    measures=(
        Measure("commands_per_s", unit="commands/s", against=AGAINST, target=at_least(0.7)),
        Measure("one_command_p50_ms", unit="ms", against=AGAINST, target=at_most(1.5)),
    ),
    setup=setup,
)
