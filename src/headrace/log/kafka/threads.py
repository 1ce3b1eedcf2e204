"""Blocking calls of the driver, off the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from headrace.errors import Closed

__all__ = ["Threads"]

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads that run calls; with `count` 1 the calls run one after the other, in order."""

    def __init__(self, name: str, *, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=f"headrace-kafka-{name}")
        self._is_ended = False
        self._running: set[asyncio.Future[Any]] = set()

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin a call; the returned future can be awaited or left alone. Raises Closed after `join`."""
        if self._is_ended:
            raise Closed("the Kafka log")
        call = functools.partial(function, *args, **kwargs)
        running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call to its end. Cancelling stops the wait, not the call."""
        return await asyncio.shield(self.start(function, *args, **kwargs))

    async def join(self) -> None:
        """Take no more calls, let those that run come to their end, and end the threads."""
        self._is_ended = True
        self._executor.shutdown(wait=False)
        if self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown(wait=True)
