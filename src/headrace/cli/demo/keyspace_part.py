"""A keyspace on two nodes, each a process of its own; the owner is killed while it is being asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from headrace.app import Headrace, RunningNode
from headrace.cli.demo.voice import say, tell
from headrace.errors import HeadraceError
from headrace.keyspace import App, Keyspace, KeyspaceClient, State, handles, state
from headrace.model import partition_of

__all__ = ["Add", "Counters", "app", "node_process", "show_keyspace"]

_CALLERS = 8
_LOAD_S = 1.5


@dataclass
class Add:
    """Add to a counter."""

    id: str
    by: int


class Counters(Keyspace, name="demo-counters", partitions=4, replicas=2):
    """Counters by name."""

    counts: State[str, int] = state(store="memory")

    @handles
    async def add(self, message: Add) -> int:
        """Add, and return the sum."""
        total = (await self.counts.get(message.id) or 0) + message.by
        await self.counts.put(message.id, total)
        return total


app = App(Counters)


@dataclass
class _Load:
    """What callers saw: acknowledged additions by counter, failures, and the longest time without a success."""

    done: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    is_over: bool = False


async def show_keyspace(hr: Headrace, address: str) -> None:
    """Start two nodes, ask them, kill the owner of half of the partitions, and count."""
    logging.getLogger("headrace.cluster").setLevel(logging.WARNING)
    say("A keyspace: state by key on two nodes, each a process; the one that owns a key is killed under load")
    async with node_process(address, "demo-a") as first, node_process(address, "demo-b") as second, hr.node() as me:
        await me.online("demo-counters", timeout_s=60)
        await _both_own(me)
        counters = hr.keyspace(Counters)
        tell(f"4 partitions, owners {_owners(me)}; {_CALLERS} callers add to a counter each, one call after the other")
        victim = me.view.owners["demo-counters"][partition_of(b"counter-0", 4)].member
        await _kill_under_load(counters, first if victim == "demo-a" else second, victim)
        tell(f"owners now: {_owners(me)}")


async def _kill_under_load(counters: KeyspaceClient, process: asyncio.subprocess.Process, victim: str) -> None:
    load = _Load()
    callers = [asyncio.create_task(_call(counters, f"counter-{n}", load)) for n in range(_CALLERS)]
    await asyncio.sleep(_LOAD_S)
    before, load.longest_s = sum(load.done.values()), 0.0
    process.send_signal(signal.SIGKILL)
    await asyncio.sleep(2 * _LOAD_S)
    load.is_over = True
    await asyncio.gather(*callers)
    total = sum(load.done.values())
    tell(f"kill -9 of {victim} after {before} calls; {total - before} more since: {len(load.failures)} failed calls")
    tell(f"the longest time without a success: {load.longest_s:.2f} s")
    for each in [*load.failures, *load.wrong][:3]:
        tell(each)
    kept = [await counters.get("counts", name) for name in load.done]
    done = list(load.done.values())
    tell(f"acknowledged {done}, read back {kept}: {'equal' if kept == done else 'NOT EQUAL'}")


async def _call(counters: KeyspaceClient, name: str, load: _Load) -> None:
    last = time.monotonic()
    while not load.is_over:
        try:
            answer = await counters.ask(Add(name, 1), message_id=uuid.uuid4().hex)
        except HeadraceError as error:
            load.failures.append(str(error))
            continue
        load.done[name] = load.done.get(name, 0) + 1
        if answer != load.done[name]:
            load.wrong.append(f"{name} is {answer} after {load.done[name]} additions")
        now = time.monotonic()
        load.longest_s, last = max(load.longest_s, now - last), now


async def _both_own(me: RunningNode) -> None:
    """Wait until both nodes own partitions: the one that came first hands some over, one at a time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while len({each.member for each in me.view.owners["demo-counters"].values()}) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def _owners(me: RunningNode) -> str:
    owners = me.view.owners["demo-counters"]
    return ", ".join(f"{partition} {owners[partition].member}" for partition in sorted(owners))


@contextlib.asynccontextmanager
async def node_process(
    address: str, name: str, *parts: str, store: str | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a node in a process of its own while the block runs, with these parts, or with the counters only."""
    served = parts or ("headrace.cli.demo.keyspace_part:app",)
    tied = ("-m", "headrace.cli.demo.tied_process")  # it ends with this process, also if that is killed
    command = [sys.executable, *tied, "node", "run", *served, *(("--store", store) if store else ())]
    unheard: Any = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, "--node-id", name, "--log", address, stdin=asyncio.subprocess.PIPE, stdout=unheard, stderr=unheard
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
