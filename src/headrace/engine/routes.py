"""The way of a command to its engine: while the engine is paused, it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.cluster import Router
from headrace.engine.commands import Answer, CommandRequest, decode_answer, encode_request
from headrace.engine.models import Engine
from headrace.engine.partition import EnginePartition
from headrace.engine.pausing import is_served, layout_key
from headrace.errors import TimedOut
from headrace.keyspace import KeyspaceLayouts
from headrace.model import partition_of
from headrace.runtime import Lookout

__all__ = ["EngineRoute"]

_LOOK_EVERY_S = 0.02


class _OwnCommand:
    """A command whose owner is in this process: a `TypedRequest`."""

    __slots__ = ("_host", "_request")

    def __init__(self, host: EnginePartition[Any], request: CommandRequest) -> None:
        self._host = host
        self._request = request

    def here(self, deadline_s: float) -> Awaitable[Answer]:
        """Put it into the queue of its partition."""
        return self._host.submit_until(self._request, deadline_s)

    def payload(self) -> bytes:
        """Return the command as it travels."""
        return encode_request(self._request)

    def decoded(self, reply: bytes) -> Answer:
        """Return the answer of an owner elsewhere."""
        return decode_answer(reply)


class EngineRoute:
    """The requests of one client to one engine: an `EngineRouter`. `host` returns this process's own partitions."""

    def __init__(
        self,
        engine: Engine[Any],
        router: Callable[[], Router],
        layouts: KeyspaceLayouts | None,
        host: Callable[[int], EnginePartition[Any] | None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._host = host
        self._router = router
        self._layouts = layouts
        self._lookout = Lookout(self._is_served, every_s=_LOOK_EVERY_S)

    def partition(self, group: str, key: bytes) -> int:
        """Return the partition of a key."""
        return partition_of(key, self._engine.partitions)

    async def ask(
        self,
        group: str,
        key: bytes,
        payload: bytes,
        *,
        command_id: str | None = None,
        is_read: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the owner's reply. Raises TimedOut if the engine is paused for longer than the request may take."""
        left_s = await self._time_left(timeout_s)
        return await self._router().ask(group, key, payload, command_id=command_id, is_read=is_read, timeout_s=left_s)

    async def send(self, partition: int, request: CommandRequest, *, timeout_s: float | None) -> Answer:
        """Return the owner's answer to a command; one whose owner is in this process goes straight to its queue."""
        router, name, key = self._router(), self._engine.name, request.aggregate.encode()
        left_s = router.time_for(timeout_s) if self._is_served() else await self._time_left(timeout_s)
        host, command_id = self._host(partition), request.command_id
        if host is None or not router.is_here(name, partition):
            payload = encode_request(request)
            return decode_answer(await router.ask(name, key, payload, command_id=command_id, timeout_s=left_s))
        asked = _OwnCommand(host, request)
        return await router.ask_here(name, key, partition, asked, command_id=command_id, timeout_s=left_s)

    async def _time_left(self, timeout_s: float | None) -> float:
        """Wait until the engine is served; return how long the request may take from then on. Raises TimedOut."""
        loop, given_s = asyncio.get_running_loop(), self._router().time_for(timeout_s)
        deadline_s = loop.time() + given_s
        while not self._is_served():
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise TimedOut(f"waiting for engine {self._engine.name!r}, which is paused or being rebuilt,", given_s)
            await self._lookout.wait(left_s)
        return max(deadline_s - loop.time(), 0.001)

    def _is_served(self) -> bool:
        """Return True if requests can be sent, or never could: then sending one says why."""
        if self._layouts is None or self._layouts.get(layout_key(self._engine.name)) is None:
            return True
        return is_served(self._layouts, self._engine.name) and self._router().knows(self._engine.name)
