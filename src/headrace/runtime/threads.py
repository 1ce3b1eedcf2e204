"""Blocking functions as supervised workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias

from headrace.observe import get_logger
from headrace.runtime.workers import MakeCoroutine

__all__ = ["BlockingRun", "in_thread"]

BlockingRun: TypeAlias = Callable[[threading.Event], None]

_log = get_logger(__name__)


def in_thread(run: BlockingRun, *, name: str = "headrace-thread") -> MakeCoroutine:
    """Turn a blocking function into a worker: `supervisor.add("poller", in_thread(poll))`.

    Each run gets a thread of its own and an Event that is set when the worker is to stop; the function must
    check it and return soon. What it raises is the worker's crash.
    """

    async def worker() -> None:
        stop = threading.Event()
        done = asyncio.get_running_loop().create_future()
        # A daemon: a function that ignores its Event must not keep the process from ending.
        threading.Thread(target=_run, args=(run, stop, done), name=name, daemon=True).start()
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            stop.set()
            await done
            raise

    return worker


def _run(run: BlockingRun, stop: threading.Event, done: asyncio.Future[None]) -> None:
    error: BaseException | None = None
    try:
        run(stop)
    except BaseException as raised:  # raised again in the worker, by _settle
        error = raised
    loop = done.get_loop()
    if loop.is_closed():
        _log.warning("thread ended after its loop", thread=threading.current_thread().name, exc_info=error)
        return
    loop.call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
