"""Pages that are read one ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

__all__ = ["one_ahead"]

T = TypeVar("T")


async def one_ahead(pages: AsyncGenerator[T, None]) -> AsyncIterator[T]:
    """Yield the pages; while the caller handles one, the next one is fetched, and no more than that."""
    upcoming = _fetch(pages)
    try:
        while (page := await upcoming) is not None:
            upcoming = _fetch(pages)
            yield page
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
        await pages.aclose()


def _fetch(pages: AsyncGenerator[T, None]) -> asyncio.Future[T | None]:
    return asyncio.ensure_future(anext(pages, None))
