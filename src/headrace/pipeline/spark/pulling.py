"""From an asynchronous iterator on this process' loop to the plain one that Spark wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from headrace.pipeline.spark.opened import run

__all__ = ["pulled"]

T = TypeVar("T")


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
        run(_close(items))


async def _close(items: AsyncIterator[T]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
