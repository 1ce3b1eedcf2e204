"""An event loop in a thread, and blocking calls into it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from headrace.errors import BadArgument, Closed
from headrace.observe import get_logger

__all__ = ["BlockingIterator", "LoopThread"]

T = TypeVar("T")

_logger = get_logger(__name__)


class LoopThread:
    """Runs coroutines for threads that have no event loop; `what` is the thing that a call after `close` names."""

    def __init__(self, name: str = "headrace-sync", *, what: str = "this connection") -> None:
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._endings: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; an interrupt cancels it.

        Raises Closed after `close`, and BadArgument in the loop's own thread.
        """
        try:
            self.check_thread()
        except BadArgument:
            coroutine.close()
            raise
        if not self._thread.is_alive():
            coroutine.close()
            raise Closed(self._what)
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        try:
            self._loop.call_soon_threadsafe(self._begin_for, coroutine, tasks, outcome)
            return outcome.result()
        except BaseException:
            # Not through a handle that the call above returns: an interrupt may come before it is assigned.
            self._loop.call_soon_threadsafe(_cancel, tasks)
            raise

    def check_thread(self) -> None:
        """Raise BadArgument in the loop's own thread: a blocking call there would wait for itself."""
        if threading.current_thread() is self._thread:
            rule = "it would wait for itself; await the asynchronous call instead"
            raise BadArgument("calling thread", self._thread.name, rule)

    def iterate(self, items: AsyncIterator[T]) -> BlockingIterator[T]:
        """Return a blocking iterator over an asynchronous one, which is closed when the caller stops."""
        return BlockingIterator(self, items)

    def run_later(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine without waiting for it; `finish` does. Any thread may call this, at any moment."""
        try:
            self._loop.call_soon_threadsafe(self._begin, coroutine)
        except RuntimeError:  # the loop is closed, and so is everything that ran in it
            coroutine.close()

    def finish(self) -> None:
        """Wait for the coroutines of `run_later`."""
        self.run(self._wait_for_endings())

    def close(self) -> None:
        """Finish what `run_later` started, cancel the background tasks that are left, and stop the loop."""
        if self._thread.is_alive():
            self.finish()
            self.run(self._end_the_rest())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _begin_for(self, coroutine: Coroutine[Any, Any, T], tasks: list[asyncio.Task[T]], outcome: Future[T]) -> None:
        tasks.append(self._loop.create_task(coroutine))
        tasks[0].add_done_callback(lambda task: _tell(task, outcome))

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _wait_for_endings(self) -> None:
        while self._endings:
            await asyncio.wait(self._endings)

    async def _end_the_rest(self) -> None:
        """Do what `asyncio.run` does at its end: a task that is left pending is reported on stderr by asyncio."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        _cancel(list(left))
        for outcome in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(outcome, Exception):
                _logger.warning("a background task failed while it was ended", error=repr(outcome))
        await self._loop.shutdown_asyncgens()


class BlockingIterator(Iterator[T], Generic[T]):
    """The items of an asynchronous iterator, for a thread that blocks.

    It is not a generator: the garbage collector may find a half-read one in any thread, also in the loop's own, and a
    generator would wait there for the loop to close its source. This one asks the loop to close it and does not wait.
    """

    def __init__(self, loop: LoopThread, items: AsyncIterator[T]) -> None:
        self._loop = loop
        self._items: AsyncIterator[T] | None = items
        self._pulling: list[asyncio.Task[Any]] = []

    def __next__(self) -> T:
        if self._items is None:
            raise StopIteration
        try:
            return self._loop.run(_pull(self._items, self._pulling))
        except StopAsyncIteration:
            self._items = None
            raise StopIteration from None

    def close(self) -> None:
        """Stop reading, and wait until the source is closed."""
        items, self._items = self._items, None
        if items is not None:
            self._loop.run(_close(items, self._pulling))

    def __del__(self) -> None:
        items = self._items
        if items is not None:
            self._loop.run_later(_close(items, self._pulling))


async def _pull(items: AsyncIterator[T], pulling: list[asyncio.Task[Any]]) -> T:
    pulling[:] = [task for task in (asyncio.current_task(),) if task is not None]
    return await anext(items)


async def _close(items: AsyncIterator[Any], pulling: list[asyncio.Task[Any]]) -> None:
    """Close an iterator; if it was interrupted while it fetched an item, that ends first."""
    _cancel(pulling)
    if pulling:
        await asyncio.wait(pulling)
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks, each once: a second cancellation would interrupt the clean-up after the first."""
    for task in tasks:
        if not task.cancelling():
            task.cancel()


def _tell(task: asyncio.Task[T], outcome: Future[T]) -> None:
    """Pass the result of a coroutine to the thread that waits for it."""
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
