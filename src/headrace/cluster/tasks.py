"""Running several things at once, of which none may outlive the others' failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["together"]


async def together(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all to their ends. When one fails, or the caller is cancelled, the others are cancelled and waited for."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
