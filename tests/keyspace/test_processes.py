"""Real processes that are killed, frozen and restarted under load, on the embedded log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.keyspace.cluster import Processes
from tests.keyspace.histories import under_load
from tests.keyspace.process_exam import ProcessExam, running_processes
from tests.keyspace.setting import Place

from headrace.testing.plugin import Size


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Processes]:
    """Run three nodes."""
    folder = tmp_path_factory.mktemp("keyspace")
    place = Place(f"embedded:{folder / 'log'}", str(folder / "state"))
    async with running_processes(place, "a", "b", "c") as processes:
        yield processes


class TestProcessesEmbedded(ProcessExam):
    """All of it, and what needs time."""

    async def test_a_rolling_restart_costs_no_request(self, processes: Processes, size: Size) -> None:
        """C13: one node after the other is drained, stopped and started again under load; nothing fails or is lost."""
        for _ in range(size(1, 3)):
            for node in ("a", "b", "c"):
                processes.prepare(node)
            async with under_load(processes.caller.client, processes.keys(4)) as load:
                for node in ("a", "b", "c"):
                    await processes.stop(node)
                    await processes.start_again(node)
                    await processes.settled()
                await load.go_on()
