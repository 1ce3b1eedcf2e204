"""Batches out of a stream: what is there now, up to a size; who is alone does not wait for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from headrace.tags import TaggedEvent

__all__ = ["batches"]


async def batches(
    events: AsyncGenerator[TaggedEvent, None], *, size: int, queue: int = 2, idle_s: float | None = None
) -> AsyncGenerator[list[TaggedEvent], None]:
    """Yield the events in batches; while one is being handled the next gathers, up to `size` events.

    Where nothing comes for `idle_s`, an empty batch says so.
    """
    gathered: asyncio.Queue[TaggedEvent | None] = asyncio.Queue(size * queue)
    feeding = asyncio.create_task(_feed(events, gathered), name="headrace-projection-feed")
    try:
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    event = await gathered.get()
            except TimeoutError:
                yield []
                continue
            if event is None:
                break
            batch = [event]
            while len(batch) < size and not gathered.empty():
                more = gathered.get_nowait()
                if more is None:
                    yield batch
                    await feeding
                    return
                batch.append(more)
            yield batch
        await feeding
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _feed(events: AsyncGenerator[TaggedEvent, None], into: asyncio.Queue[TaggedEvent | None]) -> None:
    try:
        async with aclosing(events):
            async for event in events:
                await into.put(event)
    finally:
        if not _is_cancelled():
            await into.put(None)  # the end, or a failure that the reader will raise


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
