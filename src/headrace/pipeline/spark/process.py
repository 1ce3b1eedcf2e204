"""Logs and stores of this process, opened when first asked for and kept; rows and errors on their way to Spark."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.errors import BadArgument, HeadraceError
from headrace.pipeline.spark.places import Endpoints

if TYPE_CHECKING:
    from headrace.log import Log
    from headrace.store import Store
    from headrace.tags import TagTrim, TagWriter, UntaggedViews

__all__ = [
    "TIME",
    "batch_of_rows",
    "close_all",
    "log_of",
    "micros",
    "pulled",
    "run",
    "store_of",
    "tag_trim_of",
    "tag_writer_of",
    "told",
]

# What Spark's type `timestamp` is in Arrow.
TIME = pa.timestamp("us", tz="UTC")


def batch_of_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, whose values stand in the order of the schema, as a batch."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def micros(timestamp_ms: int | None) -> int | None:
    """Return a time as Arrow keeps it."""
    return None if timestamp_ms is None else timestamp_ms * 1000


def told(error: BaseException) -> str:
    """Return an error in one line."""
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


T = TypeVar("T")


class _Process:
    """The loop of this process and what is open on it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.opening = asyncio.Lock()
        self.logs: dict[str, Log] = {}
        self.stores: dict[str, Store] = {}
        self.tag_writers: dict[str, TagWriter] = {}
        self.tag_trims: dict[str, TagTrim] = {}
        self.thread = threading.Thread(target=self.loop.run_forever, name="headrace-pipeline", daemon=True)
        self.thread.start()


_lock = threading.Lock()
_process: _Process | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on this process' loop and wait for it. Raises BadArgument in the loop's own thread."""
    here = _here()
    try:
        _check_thread(here)
    except BadArgument:
        work.close()
        raise
    return asyncio.run_coroutine_threadsafe(work, here.loop).result()


async def log_of(places: Endpoints) -> Log:
    """Return the open log; to be called on the loop."""
    from headrace.log import open_log

    here, key = _here(), places.pack()
    async with here.opening:
        if key not in here.logs:
            here.logs[key] = await open_log(places.log, settings=places.settings_of_log())
        return here.logs[key]


async def store_of(places: Endpoints) -> Store:
    """Return the open store; to be called on the loop."""
    from headrace.store import open_store

    here, key = _here(), places.pack()
    async with here.opening:
        if key not in here.stores:
            here.stores[key] = await open_store(places.store, settings=places.settings_of_store())
        return here.stores[key]


async def tag_trim_of(places: Endpoints) -> TagTrim | None:
    """Return who removes old buckets of views by tag; None if all are kept. It remembers how far it is."""
    from headrace.tags import TagTrim

    settings = places.settings_of_tags()
    if not settings.enabled or not settings.retention_s:
        return None
    here, key = _here(), places.pack()
    if key not in here.tag_trims:
        here.tag_trims[key] = TagTrim(await log_of(places), await store_of(places), settings)
    return here.tag_trims[key]


async def tag_writer_of(places: Endpoints, *, with_log: bool = False) -> TagWriter | UntaggedViews:
    """Return who writes the views by tag, or sees that none are due. `with_log` it can open topics; to be called so."""
    from headrace.tags import TagWriter, UntaggedViews

    settings = places.settings_of_tags()
    if not settings.enabled:
        return UntaggedViews(await store_of(places), settings)
    here, key = _here(), f"{with_log} {places.pack()}"
    if key not in here.tag_writers:
        log = await log_of(places) if with_log else None
        here.tag_writers[key] = TagWriter(await store_of(places), settings, log=log)
    return here.tag_writers[key]


def close_all() -> None:
    """Close everything that is open in this process; what is asked for later is opened again."""
    global _process
    with _lock:
        if _process is not None:
            _check_thread(_process)
        here, _process = _process, None
    if here is None or here.pid != os.getpid():
        return
    asyncio.run_coroutine_threadsafe(_close(here), here.loop).result()
    here.loop.call_soon_threadsafe(here.loop.stop)
    here.thread.join()
    here.loop.close()


def _check_thread(here: _Process) -> None:
    """Refuse a blocking call in the thread whose loop would have to serve it."""
    if threading.current_thread() is here.thread:
        rule = "it would wait for itself; await the asynchronous call instead"
        raise BadArgument("calling thread", here.thread.name, rule)


async def _close(here: _Process) -> None:
    for store in here.stores.values():
        await store.close()
    for log in here.logs.values():
        await log.close()


def _here() -> _Process:
    """Return this process' loop; a forked worker has inherited its parent's, whose thread is not there."""
    global _process  # noqa: PLW0603 - one loop a process is the point
    with _lock:
        if _process is None or _process.pid != os.getpid():
            _process = _Process()
        return _process


def pulled(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items, each waited for when it is asked for."""

    async def one() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    try:
        while (found := run(one())) is not None:
            yield found[0]
    finally:
        run(_close_iterator(items))


async def _close_iterator(items: AsyncIterator[T]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
