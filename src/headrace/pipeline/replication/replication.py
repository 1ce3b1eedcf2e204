"""The driver of replication: it plans, runs a query, watches it, and starts again from the stored offsets.

A new query is started when topics appear or grow, when a partition had to wait at the boundary of a growth, and when
something failed. That takes about a second, and the stored offsets stay the only source of progress.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config import PipelineSettings
from headrace.errors import BadArgument, OperationFailed, Unavailable, WorkerFailed
from headrace.journal import Topology
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.pipeline.logs.frames import log_stream
from headrace.pipeline.logs.plan import Plan, Selection, plan_of
from headrace.pipeline.replication.removal import check_plan, remove_old
from headrace.pipeline.replication.reports import (
    RESTARTS,
    BatchReport,
    ReplicationWatcher,
    SilentWatcher,
    TaskOutcome,
    count,
    read_outcomes,
    read_unfinished,
)
from headrace.pipeline.replication.sink import finish_batch
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of, tag_writer_of
from headrace.pipeline.spark.session import register
from headrace.runtime import Backoff
from headrace.store import ReplicatedOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Replication", "Summary", "accept_loss"]

_logger = get_logger(__name__)


async def accept_loss(endpoints: Endpoints, topic: str, partition: int, last: int) -> None:
    """Move the replicated offset to `last`. Raises BadArgument unless the log begins just behind it."""
    log, store = await log_of(endpoints), await store_of(endpoints)
    at = TopicPartition(topic, partition)
    bounds = await log.bounds(at)
    if last != bounds.start - 1:
        rule = f"the log of {at} begins at {bounds.start}, so the last lost offset is {bounds.start - 1}; give that one"
        raise BadArgument("--accept-loss", last, rule)
    layout = await Topology(log, store.settings, topic).layout()
    before = await store.reader.replicated(at)
    known = layout.of_topic(before)
    if known is not None and known.offset >= last:
        return
    now_ms = time.time_ns() // 1_000_000
    base = before or ReplicatedOffset(
        at=at, generation=0, offset=-1, log_time_ms=0, created_ms=now_ms, updated_ms=now_ms
    )
    # The boundary of a generation may be among the lost records; it counts as passed.
    generation = max(base.generation, layout.generation_at(partition, last + 1))
    moved = msgspec.structs.replace(base, generation=generation, offset=last, updated_ms=now_ms)
    await store.writer.move_replicated(moved)
    first = known.offset + 1 if known is not None else 0
    _logger.warning("loss accepted", partition=str(at), first=first, last=last)


_LOOK_EVERY_S = 0.05
_LET_BATCH_END_S = 20.0
_RETRY = Backoff(first_s=0.2, factor=2.0, limit_s=10.0, jitter=0.2)


@dataclass(slots=True)
class Summary:
    """The result of a run of replication."""

    batches: int = 0
    records: int = 0
    rows: int = 0
    restarts: int = 0


class Ended(Enum):
    """Why a query ended."""

    DONE = "done"
    STOPPED = "stopped"
    CHANGED = "topics changed"
    HELD = "waiting for others"
    FAILED = "failed"


class Replication:
    """Replicates journals into the store, once or until it is stopped."""

    def __init__(
        self,
        spark: SparkSession,
        endpoints: Endpoints,
        selection: Selection | None = None,
        *,
        settings: PipelineSettings | None = None,
        watcher: ReplicationWatcher | None = None,
    ) -> None:
        self._spark = spark
        self._endpoints = endpoints
        self._selection = selection or Selection()
        self._settings = settings or PipelineSettings()
        self._watcher = watcher or SilentWatcher()
        self._stop = threading.Event()
        self._give_up_s: float | None = None
        self._summary = Summary()
        self._remove_at_s = 0.0

    def stop(self) -> None:
        """Stop after the running micro-batch. It may be called from any thread or signal handler."""
        self._stop.set()

    def run(self, *, once: bool = False) -> Summary:
        """Replicate until `stop`; with `once`, until everything that the log held at the start is in the store.

        Raises errors that an operator must act on: RecordsLost, WrongPartitionCount, …. Passing failures are waited
        out; with `once` for at most `once_timeout_s` each. Raises WorkerFailed if Spark ended the session.
        """
        self._give_up_s = self._settings.once_timeout_s if once else None
        target = self._plan() if once else None
        failures, before = 0, None
        while (plan := self._plan()) is not None and not (target is not None and _is_reached(plan, target)):
            if not plan.starts:
                self._pause(self._settings.discover_every_s)
                continue
            failures, before = failures + 1 if plan.starts == before else 0, plan.starts
            ended, error = self._query(plan, once=once)
            if ended is Ended.STOPPED:
                break
            if ended is not Ended.DONE:
                self._summary.restarts += 1
                RESTARTS.labels(ended.value).inc()
            if ended is Ended.FAILED:
                self._failed(error, failures)
            elif ended is Ended.HELD:  # it waits for other partitions, which is no failure
                self._notify(f"starts again: {error}")
                self._pause(_RETRY.delay_s(min(failures, 3) + 1))
        if plan is not None and once:
            self._remove_old(plan)
        return self._summary

    def _plan(self, *, is_checked: bool = True) -> Plan | None:
        """Plan from the log and the store, waiting while they are unavailable. None if `stop` was called meanwhile."""

        async def look() -> Plan:
            plan = await plan_of(await log_of(self._endpoints), await store_of(self._endpoints), self._selection)
            if is_checked:
                await check_plan(self._endpoints, plan, now_ms=_now_ms())
            tags = await tag_writer_of(self._endpoints, with_log=True)
            for layout in plan.layouts.values():
                await tags.open_topic(layout)
            return plan

        attempt, began_s = 0, time.monotonic()
        while not self._stop.is_set():
            try:
                return run(look())
            except Unavailable as error:
                if self._give_up_s is not None and time.monotonic() - began_s > self._give_up_s:
                    raise
                attempt += 1
                delay_s = _RETRY.delay_s(attempt)
                self._notify(f"waiting: {error}")
                self._pause(delay_s)
        return None

    def _query(self, plan: Plan, *, once: bool) -> tuple[Ended, str]:
        with tempfile.TemporaryDirectory(prefix="headrace-pipeline-") as folder:
            outcomes = Path(folder) / "outcomes"
            outcomes.mkdir()
            try:
                query = self._start(plan, folder, outcomes, once=once)
            except Exception:
                self._check_session()
                raise
            try:
                return self._watch(query, plan, outcomes, once=once)
            finally:
                with contextlib.suppress(Exception):  # the session may be gone already
                    query.stop()

    def _start(self, plan: Plan, folder: str, outcomes: Path, *, once: bool) -> Any:  # noqa: ANN401
        from headrace.pipeline.replication.sink import HeadraceStoreSink

        register(self._spark, HeadraceStoreSink)
        frame = log_stream(self._spark, self._endpoints, plan.starts, max_records=self._settings.max_records)
        writer = (
            frame.writeStream.format("headrace_store")
            .option(ENDPOINTS_OPTION, self._endpoints.pack())
            .option("outcomes", str(outcomes))
            .option("checkpointLocation", (Path(folder) / "checkpoint").as_uri())
        )
        interval = f"{int(self._settings.interval_s * 1000)} milliseconds"
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)).start()

    def _watch(self, query: Any, plan: Plan, outcomes: Path, *, once: bool) -> tuple[Ended, str]:  # noqa: ANN401
        """Finish batches as they end, until the query ends or another one is needed."""
        seen = ""
        look_at_s = time.monotonic() + self._settings.discover_every_s
        while True:
            is_active = query.isActive
            seen = self._finish_batches(query, plan, outcomes, seen)
            if not is_active:
                error = query.exception()
                if error is None:
                    return Ended.DONE, ""
                return (Ended.STOPPED, "") if self._stop.is_set() else _reason(str(error), read_unfinished(outcomes))
            if self._stop.is_set():
                self._let_batch_end(query)
                query.stop()
                self._finish_batches(query, plan, outcomes, seen)
                return Ended.STOPPED, ""
            if not once and time.monotonic() > look_at_s:
                look_at_s = time.monotonic() + self._settings.discover_every_s
                if self._has_changed(plan):
                    self._let_batch_end(query)
                    return Ended.CHANGED, ""
            if not once and time.monotonic() > self._remove_at_s:
                self._remove_old(plan)
            self._stop.wait(_LOOK_EVERY_S)

    def _finish_batches(self, query: Any, plan: Plan, outcomes: Path, seen: str) -> str:  # noqa: ANN401
        """Move the stored offsets to the ends of finished batches; return the time of the last one."""
        for progress in _progress_after(query, seen):
            seen = progress["timestamp"]
            source = progress["sources"][0] if progress["sources"] else None
            if source is None or source["endOffset"] == source["startOffset"]:
                continue  # Spark also reports from time to time when there is nothing to do
            report = run(finish_batch(self._endpoints, plan, progress, read_outcomes(outcomes, progress["batchId"])))
            self._summary.batches += 1
            self._summary.records += report.records
            self._summary.rows += report.rows
            count(report)
            self._report(report)
        return seen

    def _remove_old(self, plan: Plan) -> None:
        """Remove replicated records that are older than their topic's retention from the log."""
        self._remove_at_s = time.monotonic() + self._settings.remove_every_s
        for text in run(remove_old(self._endpoints, plan.layouts, now_ms=_now_ms())):
            self._notify(text)

    def _report(self, report: BatchReport) -> None:
        for outcome in report.outcomes:
            for key in outcome.quarantined:
                self._notify(
                    f"journal {key!r} is quarantined: a record can't be decoded; headrace pipeline quarantine list"
                )
            for stray in outcome.strays:
                self._notify(f"a record of a key that has moved is void: {stray} of {outcome.at}")
        self._watcher.batch(report)

    def _has_changed(self, plan: Plan) -> bool:
        """Return True if topics or layouts have changed. Raises errors that an operator must act on."""
        now = self._plan(is_checked=False)
        return now is not None and now.shape() != plan.shape()

    def _let_batch_end(self, query: Any) -> None:  # noqa: ANN401
        """Wait for the running micro-batch. This only saves work: a batch that is cut short is replayed."""
        deadline_s = time.monotonic() + _LET_BATCH_END_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)

    def _failed(self, error: str, failures: int) -> None:
        """Wait before the next attempt. Raises OperationFailed after too many attempts without progress."""
        self._check_session()
        if failures >= self._settings.attempts:
            raise OperationFailed(f"replicating {self._selection}", error)
        self._notify(f"starts again: {error}")
        if failures:
            self._pause(_RETRY.delay_s(failures))

    def _check_session(self) -> None:
        """Raise WorkerFailed if Spark has ended the session. Only the caller can start another one."""
        if self._spark.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - there is no public way to ask
            reason = "Spark ended its session: executors died too often, or the cluster's master is gone"
            raise WorkerFailed(
                f"replication of {self._selection}", f"{reason}; run it again, it continues from the stored offsets"
            )

    def _notify(self, text: str) -> None:
        _logger.warning("replication", event_text=text)
        self._watcher.event(text)

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)


def _progress_after(query: Any, seen: str) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return the query's progress reports after a time, oldest first.

    Spark keeps a thousand reports. Only the new ones are read: reading all of them takes most of a second.
    """
    kept = query._jsq.recentProgress()  # noqa: SLF001 - the public property reads all of them
    found: list[dict[str, Any]] = []
    for place in reversed(range(len(kept))):
        progress = json.loads(kept[place].json())
        if progress["timestamp"] <= seen:
            break
        found.append(progress)
    return found[::-1]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_reached(plan: Plan, target: Plan) -> bool:
    return all(plan.starts.get(at, end) >= end for at, end in target.ends.items())


def _reason(text: str, unfinished: Sequence[TaskOutcome]) -> tuple[Ended, str]:
    """Return why a batch failed, from the reports of its tasks or else from Spark's message."""
    errors = [f"{outcome.at}: {outcome.error}" for outcome in unfinished if outcome.error is not None]
    if errors:
        return Ended.FAILED, errors[0]
    if unfinished:
        return Ended.HELD, f"{unfinished[0].at} waits at the boundary of a growth, or for the back-fill of a tag"
    for line in reversed(text.splitlines()):
        _, found, said = line.partition("headrace.errors.")
        if found and ": " in said:
            return Ended.FAILED, said.partition(": ")[2]
    return Ended.FAILED, text.strip().splitlines()[0] if text.strip() else "the query failed without a message"
