"""A node in a process of its own, which does what it is told by lines and reports by lines.

Times are those of the clock that all processes of a machine share, in milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass

from tests.keyspace.setting import Place, Served, serving

from headrace.errors import HeadraceError
from headrace.keyspace import Keyspace, State, handles, state
from headrace.runtime import SYSTEM_CLOCK

__all__ = ["Add", "Counters", "now_ms", "run_node"]

_PAUSE_S = 0.005


@dataclass
class Add:
    """Add one to a counter."""

    id: str


class Counters(Keyspace, partitions=2, replicas=2):
    """A counter for each key: each ask returns a number that no other one returns."""

    totals: State[str, int] = state()

    @handles
    async def add(self, message: Add) -> int:
        """Count."""
        total = (await self.totals.get(message.id) or 0) + 1
        await self.totals.put(message.id, total)
        return total


def now_ms() -> int:
    """Return the time since the machine's start."""
    return SYSTEM_CLOCK.boot_time().ms


def run_node(address: str, folder: str, name: str, node_id: str) -> None:
    """Get ready, and be a node from the line `start` on, until the line `stop` or the end of the input."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s")
    asyncio.run(_run(Place(address, folder, name), node_id))


async def _run(place: Place, node_id: str) -> None:
    _say("ready")
    if await _line() != "start":
        return
    reading: list[asyncio.Task[None]] = []
    async with serving(place, node_id, Counters) as served:
        _say("started")
        while (line := await _line()) not in ("stop", ""):
            match line.split():
                case ["drain"]:
                    await served.node.drain(timeout_s=30)
                    _say("drained")
                case ["read", key]:
                    for task in reading:
                        task.cancel()
                    reading = [asyncio.create_task(_read(served, key))]
    _say("stopped")


async def _read(served: Served, key: str) -> None:
    """Read a key again and again, as a caller on this very node."""
    while True:
        began_ms = now_ms()
        try:
            value = await served.client.get("totals", key)
        except HeadraceError as error:
            _say(f"failed {type(error).__name__}")
        else:
            _say(f"read {key} {value or 0} {began_ms} {now_ms()}")
        began_ms, own = now_ms(), served.client.read_at_once("totals", key)
        if own is not None:
            _say(f"read {key} {served.client.decode_at_once('totals', own.data)} {began_ms} {now_ms()}")
        await asyncio.sleep(_PAUSE_S)


async def _line() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


def _say(what: str) -> None:
    print(what, flush=True)
