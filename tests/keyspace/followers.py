"""A client of the gateway that follows counters over a WebSocket, and whether it saw each change of them once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import websockets
from tests.keyspace.keyspace_process import Counters

from headrace.app import Headrace
from headrace.gateway import serving

__all__ = ["Followed", "followed_keys"]


class Followed:
    """What one socket has seen: by key, the totals in the order of their pushes, with those that were marked."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = keys
        self.pushes: dict[str, list[tuple[int, bool]]] = {key: [] for key in keys}
        self.tokens: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def take(self, push: Mapping[str, Any]) -> None:
        """Take a push. Each ask adds one, so a total says which change it is."""
        assert push["op"] in ("value", "lagged"), push
        key = self._keys[push["id"]]
        is_marked = push["op"] == "lagged" or push.get("is_present", False)
        self.pushes[key].append((push["value"] or 0, is_marked))
        self.tokens.append((key, push["offset"]))
        self._news.set()

    async def go_on(self, changes: int = 5) -> None:
        """Return when every key has been pushed so many times more."""
        await self._until({key: len(each) + changes for key, each in self.pushes.items()}, len)

    async def reach(self, totals: Mapping[str, int]) -> None:
        """Return when the last total of every key has come."""
        await self._until(totals, lambda each: each[-1][0] if each else 0)

    def check(self) -> None:
        """Fail if a change came twice, or too late, or is missing without a mark."""
        for key, each in self.pushes.items():
            for (before, _), (total, is_marked) in itertools.pairwise(each):
                is_next = total == before + 1 or (is_marked and total >= before)
                assert is_next, f"{key}: {total} came after {before}, marked: {is_marked}"
        assert len(set(self.tokens)) == len(self.tokens)

    async def _until(self, wanted: Mapping[str, int], progress: Any) -> None:
        async with asyncio.timeout(60):
            while any(progress(self.pushes[key]) < least for key, least in wanted.items()):
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def followed_keys(hr: Headrace, keys: list[str]) -> AsyncIterator[Followed]:
    """Serve the counters at a port while the block runs, and follow keys with one socket."""
    seen = Followed(keys)

    async def read_on(socket: Any) -> None:
        async for frame in socket:
            seen.take(json.loads(frame))

    async with contextlib.AsyncExitStack() as opened:
        gateway = await opened.enter_async_context(serving(hr.gateway(Counters), hr.settings.gateway))
        url = f"{gateway.url.replace('http', 'ws')}/socket"
        socket = await opened.enter_async_context(
            websockets.connect(url, subprotocols=[websockets.Subprotocol("headrace.v1")])
        )
        for number, key in enumerate(keys):
            asked = {"op": "subscribe", "id": number, "keyspace": "counters", "state": "totals", "key": key}
            await socket.send(json.dumps(asked))
        reading = asyncio.create_task(read_on(socket))
        try:
            yield seen
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
