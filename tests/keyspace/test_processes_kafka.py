"""Real processes that are killed and frozen under load, on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.keyspace.cluster import Processes
from tests.keyspace.histories import under_load
from tests.keyspace.process_exam import ProcessExam, running_processes
from tests.keyspace.setting import Place

from headrace.services import RunningService


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(kafka: RunningService, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Processes]:
    """Run two nodes, in a cluster of the module's own."""
    place = Place(f"kafka://{kafka.address}", str(tmp_path_factory.mktemp("keyspace")), f"c-{uuid.uuid4().hex[:8]}")
    async with running_processes(place, "a", "b") as processes:
        yield processes


@pytest.mark.servers
class TestProcessesKafka(ProcessExam):
    """All of it, and a restart."""

    async def test_a_restart_costs_no_request(self, processes: Processes) -> None:
        """C13: a node is drained, stopped and started again under load: its partitions are handed over, and back."""
        processes.prepare("a")
        async with under_load(processes.caller.client, processes.keys(4)) as load:
            await processes.stop("a")
            await processes.start_again("a")
            await processes.settled()
            await load.go_on()
