"""Reading the file: short read transactions in threads, counted and timed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headrace.errors import Closed
from headrace.sqlite import Readers
from headrace.store.metrics import REQUEST_SECONDS, REQUESTS

__all__ = ["Access"]

T = TypeVar("T")


class Access:
    """The readers of one open store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers = Readers(path)
        self.is_closed = False

    def check(self) -> None:
        """Raise Closed after the store was closed."""
        if self.is_closed:
            raise Closed(f"the store in {self._path.parent}")

    async def ask(self, operation: str, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query; what was committed before sees it."""
        self.check()
        started_s, outcome = time.perf_counter(), "failed"
        try:
            answer = await self._readers.run(query)
            outcome = "done"
            return answer
        finally:
            REQUESTS.labels("embedded", operation, outcome).inc()
            REQUEST_SECONDS.labels("embedded", operation).observe(time.perf_counter() - started_s)

    def close(self) -> None:
        """Wait for what is being read, then close the connections."""
        self._readers.close()
