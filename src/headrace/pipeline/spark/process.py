"""Connections of this process: an event loop in a thread, and the logs and stores that are open on it.

Spark's workers live between batches, so connections are kept; idle workers vanish, so nothing here is the only copy,
and a missing connection is opened again. The loop has a thread of its own, because a worker's main thread belongs to
Spark. The conversions of rows and errors for Spark are here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.pipeline.spark.endpoints import Endpoints
from headrace.runtime import LoopThread, error_text

if TYPE_CHECKING:
    from headrace.journal import KeptHeads
    from headrace.log import Log
    from headrace.store import Store
    from headrace.tags import TagTrim, TagWriter, UntaggedViews

__all__ = [
    "TIME",
    "batch_of_rows",
    "blocking_iterator",
    "close_all",
    "kept_heads_of",
    "log_of",
    "micros",
    "one_line",
    "run",
    "side_by_side",
    "store_of",
    "tag_trim_of",
    "tag_writer_of",
]

# The Arrow type of Spark's `timestamp`.
TIME = pa.timestamp("us", tz="UTC")


def batch_of_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of rows; the values of each row are in the order of the schema."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def micros(timestamp_ms: int | None) -> int | None:
    """Return a time in microseconds, as Arrow keeps it."""
    return None if timestamp_ms is None else timestamp_ms * 1000


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, with the class of a foreign error."""
    return error_text(error)


T = TypeVar("T")

_AT_ONCE = 16


async def side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await requests, up to 16 at the same time, and return their results in the given order.

    All of them end before an error is raised, and the error is that of the first in order, not of the quickest.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(request: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await request

    found = await asyncio.gather(*(one(request) for request in work), return_exceptions=True)
    done = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        done.append(each)
    return done


class _Process:
    """The event loop of this process, and the connections that are open on it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = LoopThread("headrace-pipeline", what="the pipeline of this process")
        self.opening = asyncio.Lock()
        self.logs: dict[str, Log] = {}
        self.stores: dict[str, Store] = {}
        self.tag_writers: dict[str, TagWriter] = {}
        self.tag_trims: dict[str, TagTrim] = {}
        self.kept_heads: dict[str, KeptHeads] = {}


_lock = threading.Lock()
_process: _Process | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the process's loop and wait for it. Raises BadArgument in the loop's own thread."""
    return _here().loop.run(work)


async def log_of(endpoints: Endpoints) -> Log:
    """Return the log, opened on first use. It must be awaited on the process's loop."""
    from headrace.log import open_log

    here, key = _here(), endpoints.pack()
    async with here.opening:
        if key not in here.logs:
            here.logs[key] = await open_log(endpoints.log, settings=endpoints.settings_of_log())
        return here.logs[key]


async def store_of(endpoints: Endpoints) -> Store:
    """Return the store, opened on first use. It must be awaited on the process's loop."""
    from headrace.store import open_store

    here, key = _here(), endpoints.pack()
    async with here.opening:
        if key not in here.stores:
            here.stores[key] = await open_store(endpoints.store, settings=endpoints.settings_of_store())
        return here.stores[key]


async def tag_trim_of(endpoints: Endpoints) -> TagTrim | None:
    """Return the trimmer of old buckets of views by tag, which keeps its progress; None if all buckets are kept."""
    from headrace.tags import TagTrim

    settings = endpoints.settings_of_tags()
    if not settings.enabled or not settings.retention_s:
        return None
    here, key = _here(), endpoints.pack()
    if key not in here.tag_trims:
        here.tag_trims[key] = TagTrim(await log_of(endpoints), await store_of(endpoints), settings)
    return here.tag_trims[key]


async def tag_writer_of(endpoints: Endpoints, *, with_log: bool = False) -> TagWriter | UntaggedViews:
    """Return the writer of views by tag, or the check that none are expected. It opens topics only `with_log`."""
    from headrace.tags import TagWriter, UntaggedViews

    settings = endpoints.settings_of_tags()
    if not settings.enabled:
        return UntaggedViews(await store_of(endpoints), settings)
    here, key = _here(), f"{with_log} {endpoints.pack()}"
    if key not in here.tag_writers:
        log = await log_of(endpoints) if with_log else None
        here.tag_writers[key] = TagWriter(await store_of(endpoints), settings, log=log)
    return here.tag_writers[key]


def kept_heads_of(endpoints: Endpoints) -> KeptHeads:
    """Return the heads that this process keeps of the journals it replicates."""
    from headrace.journal import KeptHeads

    return _here().kept_heads.setdefault(endpoints.pack(), KeptHeads())


def close_all() -> None:
    """Close all connections of this process. They are opened again when they are used again."""
    global _process
    with _lock:
        if _process is not None:
            _process.loop.check_thread()
        here, _process = _process, None
    if here is None or here.pid != os.getpid():
        return
    here.loop.run(_close(here))
    here.loop.close()


async def _close(here: _Process) -> None:
    for store in here.stores.values():
        await store.close()
    for log in here.logs.values():
        await log.close()


def _here() -> _Process:
    """Return this process's loop. A forked worker makes its own: the thread of its parent's loop does not run in it."""
    global _process  # noqa: PLW0603 - one loop a process is the point
    with _lock:
        if _process is None or _process.pid != os.getpid():
            _process = _Process()
        return _process


def blocking_iterator(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items of an asynchronous iterator, waiting for each on the process's loop; closes it at the end."""
    with contextlib.closing(_here().loop.iterate(items)) as blocking:
        yield from blocking
