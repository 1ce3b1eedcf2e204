"""Callers that go on while a node is killed, and what they saw: shared by the scenes with two nodes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.app import RunningNode
from headrace.cli.demo.voice import tell
from headrace.errors import HeadraceError

__all__ = ["Load", "both_own", "owners_of"]

_LOAD_S = 1.5

Call: TypeAlias = Callable[[str, int], Awaitable[str | None]]
"""The call of a caller with this number; it returns what is wrong with the answer, None if nothing is."""


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


async def both_own(me: RunningNode, group: str) -> None:
    """Wait until two nodes own partitions: the one that came first hands some over, one at a time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while len({each.member for each in me.view.owners[group].values()}) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def owners_of(me: RunningNode, group: str) -> str:
    """Return which node owns which partition, in words."""
    owners = me.view.owners[group]
    return ", ".join(f"{partition} on {owners[partition].member}" for partition in sorted(owners))
