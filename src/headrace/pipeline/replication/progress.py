"""The progress of a running query, as Spark reports it to a listener, and the wait for the next report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["ProgressReports"]

_WOKEN = ("", None)


class ProgressReports(StreamingQueryListener):
    """Keeps the reports of a session's queries until they are taken.

    Spark calls a listener in a thread of its own, for every query of the session, in the order of the query's batches,
    and with its end last. Under extreme load Spark drops reports; the caller checks from time to time if a query still
    runs, and what a lost report would have moved is moved by the next one.
    """

    def __init__(self) -> None:
        self._reports: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
        self._ended: set[str] = set()

    @contextmanager
    def of(self, spark: SparkSession) -> Iterator[None]:
        """Listen to a session's queries while the block runs."""
        spark.streams.addListener(self)
        try:
            yield
        finally:
            with suppress(Exception):  # the session may be gone already
                spark.streams.removeListener(self)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Ignore it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Keep the report of a batch."""
        self._reports.put((str(event.progress.runId), event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Ignore it."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Keep the end of a query."""
        self._reports.put((str(event.runId), None))

    def wake(self) -> None:
        """Let `take` return. It may be called from any thread or signal handler."""
        self._reports.put(_WOKEN)

    def has_ended(self, run_id: str) -> bool:
        """Return True if the end of a query was reported, and everything before it was taken."""
        return run_id in self._ended

    def take(self, run_id: str, timeout_s: float) -> list[dict[str, Any]]:
        """Return the new reports of a query, waiting for the first one; none if it ended or the time is over."""
        found = self._next(run_id, max(0.0, timeout_s))
        while not self._reports.empty():
            found += self._next(run_id, 0.0)
        return found

    def take_to_end(self, run_id: str, timeout_s: float) -> list[dict[str, Any]]:
        """Return the new reports of a query that has stopped, up to its end."""
        found: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended(run_id) and (left_s := deadline_s - time.monotonic()) > 0:
            found += self.take(run_id, left_s)
        return found

    def _next(self, run_id: str, timeout_s: float) -> list[dict[str, Any]]:
        try:
            of, text = self._reports.get(timeout=timeout_s)
        except Empty:
            return []
        if text is None:
            self._ended.add(of)
        return [json.loads(text)] if text is not None and of == run_id else []
