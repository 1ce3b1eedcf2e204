"""replicate-small: the start of replication and micro-batches of one event, beside a sink that does nothing."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import msgspec

from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_most
from benchmarks.workloads.small_batches import JOB, NOTHING, SmallBatches

SESSIONS = 3
BATCHES = 20
SHOWN_LINES = 20


class ReplicateSmallContest:
    """Each side starts a process with a Spark session of its own, so that none finds Spark warm."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._sessions = stage.count(SESSIONS)
        self._batches = stage.count(BATCHES, least=3)

    async def work(self) -> Readings:
        """Run the shipped job."""
        return await self._medians(JOB)

    async def bound(self) -> Readings:
        """Run the same query with the sink that does nothing."""
        return await self._medians(NOTHING)

    async def _medians(self, side: str) -> Readings:
        found = [await self._measured(side) for _ in range(self._sessions)]
        return {
            "first_batch_s": median(each.first_batch_s for each in found),
            "batch_s": median(took_s for each in found for took_s in each.batches_s),
        }

    async def _measured(self, side: str) -> SmallBatches:
        with tempfile.TemporaryDirectory(dir=self._stage.folder) as folder:
            module = "benchmarks.workloads.small_batches"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, side, folder, str(self._batches),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                out, told = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
        if process.returncode != 0:
            raise BenchFailed("\n".join(told.decode(errors="replace").splitlines()[-SHOWN_LINES:]))
        found = msgspec.json.decode(out.splitlines()[-1], type=SmallBatches)
        first, batches = f"first batch {found.first_batch_s:.2f} s", f"batches of one {median(found.batches_s):.3f} s"
        self._stage.tell(f"{side}: Spark's start {found.session_s:.1f} s, {first}, {batches}")
        return found


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    contest = ReplicateSmallContest(stage)
    yield Contest(contest.work, contest.bound)


AGAINST = "the same query, a sink that does nothing"
BENCH = Bench(
    name="replicate-small",
    work="the first micro-batch of a session, and those of one event, embedded log → embedded store by the shipped job",
    measures=(
        Measure("first_batch_s", unit="s", against=AGAINST, target=at_most(1.5)),
        Measure("batch_s", unit="s", against=AGAINST, target=at_most(1.5)),
    ),
    setup=setup,
    is_one_round=True,
)
