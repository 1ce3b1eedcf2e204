"""Real processes that are killed, frozen and restarted under load, on the embedded log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.keyspace.cluster import Processes
from tests.keyspace.histories import under_load
from tests.keyspace.keyspace_process import now_ms
from tests.keyspace.setting import Place

from headrace.testing.conformance.log_setting import eventually
from headrace.testing.plugin import Size
from headrace.testing.processes import ChildProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Processes]:
    """Run three nodes, with two copies of each partition."""
    folder = tmp_path_factory.mktemp("keyspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))  # a child has this process' sys.path
        async with Processes(Place(f"embedded:{folder / 'log'}", str(folder / "state")), "a", "b", "c") as processes:
            await processes.settled()
            yield processes


async def test_an_owner_that_is_killed_costs_no_request(processes: Processes, size: Size) -> None:
    """C9: kill -9 under reads and asks with ids: none fails, no acknowledged write is lost or done twice."""
    for _ in range(size(1, 10)):
        await processes.settled()
        async with under_load(processes.caller.client, processes.keys(4)) as load:
            owner = processes.owner(0)
            processes.prepare(owner)
            processes.children[owner].kill()
            await load.go_on()
        await processes.start_again(owner)


async def test_an_owner_that_is_frozen_serves_nothing_when_it_wakes(processes: Processes, size: Size) -> None:
    """C7, C14, C15: it is deposed meanwhile; its own callers read nothing older than what was acknowledged before."""
    for _ in range(size(1, 10)):
        await processes.settled()
        keys = processes.keys(4)
        owner = processes.owner(0)
        child = processes.children[owner]
        child.send_line(f"read {keys[0]}")
        await asyncio.to_thread(child.wait_for_line, "^read ", 30)
        async with under_load(processes.caller.client, keys) as load:
            await processes.freeze(owner, processes.caller.headrace.log)
            await _deposed(processes, owner)
            await load.go_on()
            woken_ms = now_ms()
            child.resume()
            await _has_read_since(child, woken_ms)
        reads = [
            tuple(map(int, found)) for found in re.findall(r"^read (\d+) (\d+) (\d+)$", child.stdout, re.MULTILINE)
        ]
        history = load.histories[keys[0]]
        stale = [read for read in reads if read[0] < history.acknowledged_before(read[1])]
        assert not stale, stale[:5]
        assert any(began_ms > woken_ms for _, began_ms, _ in reads)


async def test_a_rolling_restart_costs_no_request(processes: Processes, size: Size) -> None:
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


async def _deposed(processes: Processes, node: str) -> None:
    async def is_deposed() -> bool:
        owners = processes.caller.node.view.owners.get("counters", {})
        return len(owners) == 2 and all(each.member != node for each in owners.values())

    await eventually(is_deposed, every_s=0.01, what="another owner")


async def _has_read_since(child: ChildProcess, moment_ms: int) -> None:
    async def has_read() -> bool:
        began = re.findall(r"^read \d+ (\d+) \d+$", child.stdout, re.MULTILINE)
        return any(int(each) > moment_ms for each in began)

    await eventually(has_read, every_s=0.02, what="a read of the woken node")
