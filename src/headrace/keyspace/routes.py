"""The way of a request to the partitions of a keyspace, whose number changes when it is resized."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.cluster import Gathered, Router
from headrace.errors import BadArgument, NotPartitionOwner, TimedOut
from headrace.keyspace.layouts import KeyspaceLayouts, group_of
from headrace.model import partition_of
from headrace.runtime import Lookout

__all__ = ["KeyspaceRoute"]

T = TypeVar("T")

_LOOK_EVERY_S = 0.05


class KeyspaceRoute:
    """Sends requests to the generation of a keyspace that is served; while it is being resized, they wait."""

    def __init__(self, name: str, router: Callable[[], Router], layouts: KeyspaceLayouts) -> None:
        self._name = name
        self._router = router
        self._layouts = layouts
        self._lookout = Lookout(self._is_served, every_s=_LOOK_EVERY_S)

    @property
    def partitions(self) -> int:
        """How many partitions the keyspace has now. Raises BadArgument if it was never served."""
        layout = self._layouts.get(self._name)
        if layout is None:
            raise BadArgument("keyspace", self._name, "no node of the cluster has served it yet; start one that does")
        return layout.partitions

    @property
    def group(self) -> str:
        """The group that serves it now, or did before the copying began."""
        layout = self._layouts.get(self._name)
        return group_of(self._name, 1 if layout is None else layout.generation)

    def served(self, routing: bytes) -> tuple[str, int] | None:
        """Return the group and the partition of a key; None while the keyspace is not served."""
        layout = self._layouts.get(self._name)
        if layout is None or not self._is_served():
            return None
        return group_of(self._name, layout.generation), partition_of(routing, layout.partitions)

    def partition(self, routing: bytes) -> int:
        """Return the partition of a key now."""
        return partition_of(routing, self.partitions)

    async def ask(
        self,
        routing: bytes,
        payload: bytes,
        *,
        command_id: str | None = None,
        is_read: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        """Ask the owner of a key."""

        async def send(group: str, left_s: float) -> bytes:
            return await self._router().ask(
                group, routing, payload, command_id=command_id, is_read=is_read, timeout_s=left_s
            )

        return await self._sent(send, timeout_s)

    async def ask_partition(
        self, group: str, partition: int, payload: bytes, *, is_read: bool = False, timeout_s: float | None = None
    ) -> bytes:
        """Ask the owner of a partition of a group; it waits while the keyspace is paused.

        Raises NotPartitionOwner if another group serves the keyspace by then, whose partitions have other keys.
        """
        loop, given_s = asyncio.get_running_loop(), self._router().time_for(timeout_s)
        deadline_s = loop.time() + given_s
        if not self._is_served():
            await self._served(deadline_s, given_s)
        if group != self.group:
            raise NotPartitionOwner(group, partition, self._name, "")
        left_s = max(deadline_s - loop.time(), 0.001)
        return await self._router().ask_partition(group, partition, payload, is_read=is_read, timeout_s=left_s)

    async def ack(self, routing: bytes, payload: bytes, *, message_id: str) -> bytes:
        """Ask the owner of a key, in three attempts."""

        async def send(group: str, left_s: float) -> bytes:
            return await self._router().ack(group, routing, payload, message_id=message_id)

        return await self._sent(send, None)

    def tell(self, routing: bytes, payload: bytes) -> None:
        """Send at most once."""
        self._router().tell(self.group, routing, payload)

    async def scatter(self, payload: bytes, *, is_read: bool = True, timeout_s: float | None = None) -> Gathered:
        """Ask all partitions."""

        async def send(group: str, left_s: float) -> Gathered:
            gathered = await self._router().scatter(group, payload, is_read=is_read, timeout_s=left_s)
            for error in gathered.failures.values():
                if isinstance(error, NotPartitionOwner) and is_read:
                    raise error  # the keyspace was resized meanwhile; all of it is asked again
            return gathered

        return await self._sent(send, timeout_s)

    async def _sent(self, send: Callable[[str, float], Awaitable[T]], timeout_s: float | None) -> T:
        """Send to the generation that is served; again, if another one is served by the time nothing was done."""
        loop = asyncio.get_running_loop()
        given_s = self._router().time_for(timeout_s)
        deadline_s = loop.time() + given_s
        while True:
            if not self._is_served():
                await self._served(deadline_s, given_s)
            try:
                return await send(self.group, max(deadline_s - loop.time(), 0.001))
            except NotPartitionOwner:
                if loop.time() >= deadline_s:
                    raise TimedOut(f"a request to keyspace {self._name!r}", given_s) from None
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _served(self, deadline_s: float, given_s: float) -> None:
        """Wait until a group serves the keyspace. Raises TimedOut."""
        while not self._is_served():
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimedOut(f"waiting for keyspace {self._name!r}, which is paused or being resized,", given_s)
            await self._lookout.wait(left_s)

    def _is_served(self) -> bool:
        """Return True if requests can be sent, or never will be: then sending one says why."""
        layout = self._layouts.get(self._name)
        return layout is None or (layout.phase == "serving" and self._router().knows(self.group))
