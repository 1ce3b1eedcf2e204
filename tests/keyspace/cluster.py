"""Real processes that are the nodes of one cluster, and a node in the test's own process that calls them."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from tests.keyspace.keyspace_process import Counters
from tests.keyspace.setting import Place, Served, new_key, serving

from headrace.log import Log
from headrace.model import NewRecord
from headrace.testing.conformance.log_setting import eventually, new_topic
from headrace.testing.processes import ChildProcess, running_function

__all__ = ["Processes"]


class Processes:
    """Nodes by their ids. A test may kill, freeze or restart them; each has a successor at hand, ready to start."""

    def __init__(self, place: Place, *ids: str) -> None:
        self._place = place
        self._ids = ids
        self._held = contextlib.AsyncExitStack()
        self._spares: dict[str, ChildProcess] = {}
        self.children: dict[str, ChildProcess] = {}
        self._caller: Served | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._held.aclose()
            raise
        return self

    async def _start(self) -> None:
        for node in self._ids:
            self.children[node] = self._spawn(node)
        for child in self.children.values():
            await _until(child, "ready")
            child.send_line("start")
        for child in self.children.values():
            await _until(child, "started")
        self._caller = await self._held.enter_async_context(serving(self._place, "caller", calls=Counters))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._held.aclose()

    @property
    def caller(self) -> Served:
        """The node of this process."""
        assert self._caller is not None
        return self._caller

    def keys(self, count: int) -> list[str]:
        """Return new keys, spread over the partitions."""
        return [new_key(n % 2) for n in range(count)]

    async def owner(self, partition: int) -> str:
        """Return the node that owns a partition, as the caller knows it, when it knows one."""

        async def is_known() -> bool:
            return partition in self.caller.node.view.owners.get("counters", {})

        await eventually(is_known, every_s=0.01, what="an owner")
        return self.caller.node.view.owners["counters"][partition].member

    async def settled(self) -> None:
        """Wait until every partition has an owner and a standby that has caught up."""

        async def is_settled() -> bool:
            view = self.caller.node.view
            held = [each for facts in view.members.values() for each in facts.holdings if each.is_online]
            copies = [sum(each.partition == n for each in held) for n in range(2)]
            return len(view.owners.get("counters", {})) == 2 and copies >= [2, 2] and min(copies) >= 2

        await eventually(is_settled, every_s=0.02, what="two copies of all")

    def prepare(self, node: str) -> None:
        """Begin a process that will be this node once it is told so: what it imports takes its time."""
        self._spares[node] = self._spawn(node)

    async def start_again(self, node: str) -> None:
        """Let the process that was prepared be the node."""
        child = self.children[node] = self._spares.pop(node)
        await _until(child, "ready")
        child.send_line("start")
        await _until(child, "started")

    async def stop(self, node: str) -> None:
        """Drain a node and end its process in an orderly way."""
        child = self.children[node]
        child.send_line("drain")
        await _until(child, "drained")
        child.send_line("stop")
        await _until(child, "stopped")

    async def freeze(self, node: str, log: Log) -> None:
        """Stop a process at a moment at which the log goes on without it.

        One that is stopped while it holds the write lock of the embedded log's file stops all others.
        """
        side = await new_topic(log)
        child = self.children[node]
        for _ in range(50):
            child.pause()
            try:
                async with asyncio.timeout(0.2):
                    await log.append([NewRecord(side, b"k", b"v")])
                return
            except TimeoutError:
                child.resume()
        raise AssertionError("the process held the log's write lock whenever it was stopped")

    def _spawn(self, node: str) -> ChildProcess:
        run = running_function("tests.keyspace.keyspace_process:run_node", *self._place, node)
        return self._held.enter_context(run)


async def _until(child: ChildProcess, line: str) -> None:
    await asyncio.to_thread(child.wait_for_line, f"^{line}$", 60)
