"""The progress of a running query: Spark reports it to a listener, and the driver moves the stored offsets after it.

The sink gets no rows for control records and aborted transactions. So after a batch has succeeded, the stored offsets
move to the end of what the source covered: all records below that end are in the store then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.errors import OffsetOutOfRange, Unavailable
from headrace.journal import check_no_hole, replicate_batch, replicated_up_to
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.pipeline.logs.offsets import decode_offsets
from headrace.pipeline.logs.plan import Plan
from headrace.pipeline.replication.outcomes import TaskOutcome
from headrace.pipeline.replication.reports import BatchReport
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, store_of, tag_writer_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["ProgressReports", "ends_of", "finish_batch", "lag_of"]

_WOKEN = ("", None)

_logger = get_logger(__name__)


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


async def finish_batch(
    endpoints: Endpoints, plan: Plan, progress: Mapping[str, Any], outcomes: Sequence[TaskOutcome]
) -> BatchReport:
    """Move the stored offsets to the ends of a finished batch, and return its report."""
    source = progress["sources"][0]
    starts, ends = _offsets(source["startOffset"]) or dict(plan.starts), _offsets(source["endOffset"])
    applied = {outcome.at: outcome.applied for outcome in outcomes}
    moved = [at for at, end in ends.items() if end > starts.get(at, 0)]
    done = {at: max(starts.get(at, 0) - 1, applied.get(at, -1)) for at in moved}
    await asyncio.gather(*(_try_to_pass(endpoints, plan, at, ends[at], done[at]) for at in moved))
    latest = _offsets(source.get("latestOffset")) or ends
    return BatchReport(
        batch=progress["batchId"],
        records=int(progress["numInputRows"]),
        rows=sum(outcome.rows for outcome in outcomes),
        took_s=progress["durationMs"].get("triggerExecution", 0) / 1000,
        lag=lag_of(plan, latest, ends),
        outcomes=outcomes,
    )


def lag_of(
    plan: Plan, latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the lag of each partition behind the log's end, as the source or the plan saw it, whichever is later.

    Spark's source has reported an end below records that had been acknowledged long before.
    """
    return {at: max(0, latest.get(at, end) - end, plan.ends.get(at, end) - end) for at, end in ends.items()}


async def _try_to_pass(endpoints: Endpoints, plan: Plan, at: TopicPartition, end: int, done: int) -> None:
    """Move the stored offset to the end of a batch whose records up to `done` are in the store.

    It stays where it is if the store is unavailable or was set back meanwhile: a later batch or query moves it.
    """
    if done >= end - 1:
        return
    try:
        await _pass(endpoints, plan, at, end, done)
    except (Unavailable, OffsetOutOfRange) as error:
        _logger.warning("the stored offset was not moved", partition=str(at), end=end, error=str(error))


async def _pass(endpoints: Endpoints, plan: Plan, at: TopicPartition, end: int, done: int) -> None:
    store, layout = await store_of(endpoints), plan.layouts[at.topic]
    behind = await replicated_up_to(store, layout, at) + 1
    if behind <= done:
        await check_no_hole(await log_of(endpoints), at, behind, end)
    views = await tag_writer_of(endpoints, with_log=True)
    await replicate_batch(store, layout, at, [], up_to=end - 1, views=views)


def ends_of(progress: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the offsets (exclusive) up to which a batch and those before it have read the log."""
    return _offsets(progress["sources"][0]["endOffset"])


def _offsets(text: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - Spark gives text, or nothing
    if not text or text == "null":
        return {}
    return decode_offsets(text if isinstance(text, str) else msgspec.json.encode(text))
