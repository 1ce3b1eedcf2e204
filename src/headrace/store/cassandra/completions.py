"""From the driver's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

__all__ = ["Completions"]


class Completions:
    """Hands answers over; those that arrive together wake the loop once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False

    def succeeded(self, rows: Any, future: asyncio.Future[Any]) -> None:  # noqa: ANN401 - the driver has no types
        """Take an answer, in the driver's thread."""
        self._post(future, rows, None)

    def failed(self, error: BaseException, future: asyncio.Future[Any]) -> None:
        """Take a failure, in the driver's thread."""
        self._post(future, None, error)

    def _post(self, future: asyncio.Future[Any], rows: Any, error: BaseException | None) -> None:  # noqa: ANN401
        self._ready.append((future, rows, error))
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            return  # the loop was closed without closing us: nobody is left to tell

    def _deliver(self) -> None:
        self._is_woken = False  # first: what is posted from here on wakes the loop again
        while self._ready:
            future, rows, error = self._ready.popleft()
            if future.done():
                continue  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(rows)
