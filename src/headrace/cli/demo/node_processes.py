"""Nodes of the demo, each a process of its own, and callers that go on while one of them is killed.

As a program it is the `headrace` command in a process that ends with its input: a demo that is killed must leave no
nodes behind.

python -m headrace.cli.demo.node_processes node run …
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.app import RunningNode
from headrace.cli.demo.voice import tell
from headrace.errors import HeadraceError

__all__ = ["Load", "both_ready", "node_process", "owners_of"]

_LOAD_S = 1.5

Call: TypeAlias = Callable[[str, int], Awaitable[str | None]]
"""The call of a caller with this number; it returns what is wrong with the answer, None if nothing is."""


@contextlib.asynccontextmanager
async def node_process(
    address: str, name: str, *parts: str, store: str | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a node in a process of its own while the block runs, with these parts, or with the counters only."""
    served = parts or ("headrace.cli.demo.keyspace_part:app",)
    tied = ("-m", "headrace.cli.demo.node_processes")  # it ends with this process, also if that is killed
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


@dataclass
class Load:
    """What callers saw: answered calls by caller, failures, wrong answers, the longest time without a success."""

    done: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    has_killed: bool = False
    is_over: bool = False

    async def run(
        self, callers: Iterable[str], call: Call, process: asyncio.subprocess.Process, *, victim: str, calls: str
    ) -> None:
        """Let callers call, each one call after the other, kill a node in the middle, and tell what they saw."""
        running = [asyncio.create_task(self._call(caller, call)) for caller in callers]
        await asyncio.sleep(_LOAD_S)
        before, self.longest_s = sum(self.done.values()), 0.0
        process.send_signal(signal.SIGKILL)
        self.has_killed = True
        await asyncio.sleep(2 * _LOAD_S)
        self.is_over = True
        await asyncio.gather(*running)
        more = sum(self.done.values()) - before
        tell(f"kill -9 of {victim} after {before} {calls}; {more} more since: {len(self.failures)} failed")
        tell(f"the longest time without a success: {self.longest_s:.2f} s")
        for each in [*self.failures, *self.wrong][:3]:
            tell(each)

    async def _call(self, caller: str, call: Call) -> None:
        last = time.monotonic()
        while not self.is_over:
            number = self.done.get(caller, 0) + 1
            try:
                wrong = await call(caller, number)
            except HeadraceError as error:
                self.failures.append(str(error))
                continue
            self.done[caller] = number
            if wrong is not None:
                self.wrong.append(wrong)
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now


async def both_ready(me: RunningNode, group: str) -> None:
    """Wait until both nodes own partitions, and each has a copy of all, so that it can take the other one's over.

    The node that came first hands some over, one at a time. Without that the scene is less impressive, but still right.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while not _are_ready(me, group):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def _are_ready(me: RunningNode, group: str) -> bool:
    owners = me.view.owners[group]
    held = [each for member in me.view.members.values() for each in member.holdings if each.group == group]
    copies = sum(each.is_online for each in held)
    return len({owner.member for owner in owners.values()}) == 2 and copies == 2 * me.view.groups[group].partitions


def owners_of(me: RunningNode, group: str) -> str:
    """Return which node owns which partition, in words."""
    owners = me.view.owners[group]
    return ", ".join(f"{partition} on {owners[partition].member}" for partition in sorted(owners))


def _end_with_input() -> None:
    """Ask this process to stop when whoever holds the other end of its input is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="headrace-demo-input", daemon=True).start()


if __name__ == "__main__":
    from headrace.cli.main import main

    _end_with_input()
    main()
