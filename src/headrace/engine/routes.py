"""The way of a command to its engine: while the engine is paused, it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.cluster import Router
from headrace.engine.models import Engine
from headrace.engine.pausing import is_served, layout_key
from headrace.errors import TimedOut
from headrace.keyspace import KeyspaceLayouts
from headrace.model import partition_of
from headrace.runtime import Lookout

__all__ = ["EngineRoute"]

_LOOK_EVERY_S = 0.02


class EngineRoute:
    """The requests of one client to one engine: an `EngineRouter`."""

    def __init__(self, engine: Engine[Any], router: Callable[[], Router], layouts: KeyspaceLayouts | None) -> None:
        self._engine = engine
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
        loop, given_s = asyncio.get_running_loop(), self._router().time_for(timeout_s)
        deadline_s = loop.time() + given_s
        while not self._is_served():
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise TimedOut(f"waiting for engine {self._engine.name!r}, which is paused or being rebuilt,", given_s)
            await self._lookout.wait(left_s)
        left_s = max(deadline_s - loop.time(), 0.001)
        return await self._router().ask(group, key, payload, command_id=command_id, is_read=is_read, timeout_s=left_s)

    def _is_served(self) -> bool:
        """Return True if requests can be sent, or never could: then sending one says why."""
        if self._layouts is None or self._layouts.get(layout_key(self._engine.name)) is None:
            return True
        return is_served(self._layouts, self._engine.name) and self._router().knows(self._engine.name)
