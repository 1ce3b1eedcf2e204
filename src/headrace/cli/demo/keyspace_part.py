"""A keyspace on two nodes, each a process of its own; the owner is killed while it is being asked."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.app import Headrace
from headrace.cli.demo.node_processes import Load, both_ready, node_process, owners_of
from headrace.cli.demo.voice import say, tell
from headrace.keyspace import App, Keyspace, KeyspaceClient, State, handles, state
from headrace.model import partition_of

__all__ = ["Add", "Counters", "app", "show_keyspace"]

_CALLERS = 8


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


async def show_keyspace(hr: Headrace, address: str, suffix: str) -> None:
    """Start two nodes, ask them, kill the owner of half of the partitions, and count."""
    logging.getLogger("headrace.cluster").setLevel(logging.WARNING)
    say("A keyspace: state by key on two nodes, each a process; the one that owns a key is killed under load")
    async with node_process(address, "demo-a") as first, node_process(address, "demo-b") as second, hr.node() as me:
        await me.online("demo-counters", timeout_s=60)
        await both_ready(me, "demo-counters")
        counters, owners = hr.keyspace(Counters), owners_of(me, "demo-counters")
        tell(f"4 partitions, {owners}; {_CALLERS} callers add to a counter each, one call after the other")
        names = [f"counter-{n}{suffix}" for n in range(_CALLERS)]
        victim = me.view.owners["demo-counters"][partition_of(names[0].encode(), 4)].member
        await _kill_under_load(counters, names, first if victim == "demo-a" else second, victim)
        tell(f"the partitions now: {owners_of(me, 'demo-counters')}")


async def _kill_under_load(
    counters: KeyspaceClient, names: Sequence[str], process: asyncio.subprocess.Process, victim: str
) -> None:
    async def add(name: str, number: int) -> str | None:
        answer = await counters.ask(Add(name, 1), message_id=uuid.uuid4().hex)
        return None if answer == number else f"{name} is {answer} after {number} additions"

    load = Load()
    await load.run(names, add, process, victim=victim, calls="calls")
    kept = [await counters.get("counts", name) for name in load.done]
    done = list(load.done.values())
    tell(f"acknowledged {done}, read back {kept}: {'equal' if kept == done else 'NOT EQUAL'}")
