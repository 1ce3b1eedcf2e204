"""What callers see while real processes that own keyspaces are killed and frozen, on whichever log they stand."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest
from tests.keyspace.cluster import Processes
from tests.keyspace.followers import followed_keys
from tests.keyspace.histories import under_load
from tests.keyspace.keyspace_process import now_ms
from tests.keyspace.setting import Place

from headrace.testing.conformance.log_setting import eventually
from headrace.testing.plugin import Size
from headrace.testing.processes import ChildProcess


@contextlib.asynccontextmanager
async def running_processes(place: Place, *ids: str) -> AsyncIterator[Processes]:
    """Run nodes in processes of their own, with two copies of each partition."""
    async with Processes(place, *ids) as processes:
        await processes.settled()
        yield processes


@pytest.mark.asyncio(loop_scope="module")
class ProcessExam:
    """The tests. A tier has the fixture `processes`, which all of them share."""

    async def test_an_owner_that_is_killed_costs_no_request(self, processes: Processes, size: Size) -> None:
        """C9: kill -9 under reads and asks with ids: none fails, no acknowledged write is lost or done twice."""
        for _ in range(size(1, 10)):
            await processes.settled()
            async with under_load(processes.caller.client, processes.keys(4)) as load:
                owner = await processes.owner(0)
                processes.prepare(owner)
                processes.children[owner].kill()
                await load.go_on()
            await processes.start_again(owner)

    async def test_a_client_of_the_gateway_sees_every_change_while_an_owner_is_killed(
        self, processes: Processes, size: Size
    ) -> None:
        """G13: its socket stays open and shows each change of each key once and in order, or marks where some miss."""
        caller = processes.caller
        for _ in range(size(1, 10)):
            await processes.settled()
            keys = processes.keys(4)
            async with followed_keys(caller.headrace, keys) as seen:
                async with under_load(caller.client, keys):
                    owner = await processes.owner(0)
                    processes.prepare(owner)
                    processes.children[owner].kill()
                    await seen.go_on()
                await seen.reach({key: await caller.client.get("totals", key) for key in keys})
            seen.check()
            await processes.start_again(owner)

    async def test_an_owner_that_is_frozen_serves_nothing_when_it_wakes(self, processes: Processes, size: Size) -> None:
        """C7, C14, C15: it is deposed meanwhile; its own callers read nothing older than what was acknowledged."""
        for _ in range(size(1, 10)):
            await processes.settled()
            keys = processes.keys(4)
            owner = await processes.owner(0)
            child = processes.children[owner]
            child.send_line(f"read {keys[0]}")
            await asyncio.to_thread(child.wait_for_line, "^read ", 30)
            async with under_load(processes.caller.client, keys) as load:
                await processes.freeze(owner, processes.caller.headrace.log)
                await _deposed(processes, owner)
                await load.go_on()
                woken_ms = now_ms()
                child.resume()
                await _has_read_since(child, keys[0], woken_ms)
            reads = _reads(child, keys[0])
            history = load.histories[keys[0]]
            stale = [read for read in reads if read[0] < history.acknowledged_before(read[1])]
            assert not stale, stale[:5]
            assert any(began_ms > woken_ms for _, began_ms, _ in reads)


async def _deposed(processes: Processes, node: str) -> None:
    async def is_deposed() -> bool:
        owners = processes.caller.node.view.owners.get("counters", {})
        return len(owners) == 2 and all(each.member != node for each in owners.values())

    await eventually(is_deposed, every_s=0.01, what="another owner")


async def _has_read_since(child: ChildProcess, key: str, moment_ms: int) -> None:
    async def has_read() -> bool:
        return any(began_ms > moment_ms for _, began_ms, _ in _reads(child, key))

    await eventually(has_read, every_s=0.02, what="a read of the woken node")


def _reads(child: ChildProcess, key: str) -> list[tuple[int, int, int]]:
    """Return what a process has read of a key: the value, when it began to read, and when it had it."""
    found = re.findall(rf"^read {key} (\d+) (\d+) (\d+)$", child.stdout, re.MULTILINE)
    return [(int(value), int(began_ms), int(ended_ms)) for value, began_ms, ended_ms in found]
