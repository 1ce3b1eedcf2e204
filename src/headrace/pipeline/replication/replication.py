"""The driver of replication: it plans, runs a query, watches it, and starts again from the stored offsets.

A new query is started when topics appear or grow, when a partition had to wait at the boundary of a growth, and when
something failed. That takes about a second, and the stored offsets stay the only source of progress.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config import PipelineSettings
from headrace.errors import BadArgument, OperationFailed, ReplicationStalled, Unavailable, WorkerFailed
from headrace.journal import Topology
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.pipeline.logs.frames import log_stream
from headrace.pipeline.logs.offsets import Offsets
from headrace.pipeline.logs.plan import Plan, Selection, plan_of
from headrace.pipeline.replication.outcomes import TaskOutcome, read_failed_batch, read_outcomes
from headrace.pipeline.replication.progress import ProgressReports, ends_of, finish_batch
from headrace.pipeline.replication.removal import check_plan, remove_old
from headrace.pipeline.replication.reports import (
    LAST_BATCH,
    RESTARTS,
    RUNNING,
    ReplicationWatcher,
    SilentWatcher,
    count,
    count_lag,
    count_outcomes,
)
from headrace.pipeline.spark.endpoints import ENDPOINTS_OPTION, Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of, tag_writer_of
from headrace.pipeline.spark.session import is_jvm_gone, refuse_connect, refuse_speculation, register
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
_CHECK_EVERY_S = 1.0
_END_TOLD_S = 5.0
_BATCH_PATIENCE = 10  # a large micro-batch moves the stored offsets late
_RUNNING_BATCH = "the running micro-batch has not ended"
_SESSION_ENDED = "Spark ended its session: executors died too often, or the cluster's master is gone"
_JVM_GONE = "Spark's JVM is gone: it was killed, or it ran out of memory (pipeline.driver_memory)"
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


@dataclass(slots=True)
class _Movement:
    """When the stored offsets moved last, and what replication has waited for since."""

    starts: Offsets | None = None
    at_s: float = field(default_factory=time.monotonic)
    waits_for: str = _RUNNING_BATCH

    @property
    def ago_s(self) -> float:
        """The time since."""
        return time.monotonic() - self.at_s

    def now(self) -> None:
        """Note a movement."""
        self.at_s = time.monotonic()

    def to(self, starts: Offsets) -> bool:
        """Note where the stored offsets are. Return True if that is elsewhere than before."""
        has_moved, self.starts = starts != self.starts, starts
        if has_moved:
            self.now()
        return has_moved


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
        refuse_connect(
            spark, "replication needs the driver's files and its listener", "run `headrace pipeline replicate` instead"
        )
        refuse_speculation(spark, "replication")
        self._spark = spark
        self._endpoints = endpoints
        self._selection = selection or Selection()
        self._settings = settings or PipelineSettings()
        self._watcher = watcher or SilentWatcher()
        self._stop = threading.Event()
        self._reports = ProgressReports()
        self._give_up_s: float | None = None
        self._moved = _Movement()
        self._reached: dict[TopicPartition, int] = {}
        self._planned: set[TopicPartition] = set()
        self._summary = Summary()
        self._remove_at_s = 0.0

    def stop(self) -> None:
        """Stop after the running micro-batch. It may be called from any thread or signal handler."""
        self._stop.set()
        self._reports.wake()

    def run(self, *, once: bool = False) -> Summary:
        """Replicate until `stop`; with `once`, until everything that the log held at the start is in the store.

        Raises errors that an operator must act on: RecordsLost, WrongPartitionCount, …. Passing failures are waited
        out; with `once` for at most `once_timeout_s`, then ReplicationStalled or the failure itself is raised. Raises
        WorkerFailed if Spark ended the session, or its JVM is gone.
        """
        self._give_up_s = self._settings.once_timeout_s if once else None
        self._check_session()
        LAST_BATCH.set_to_current_time()
        try:
            with self._reports.of(self._spark):
                return self._run(once=once)
        except Exception as error:
            if is_jvm_gone(error):  # or the watcher lost a connection of its own
                self._check_session()
            raise

    def _run(self, *, once: bool) -> Summary:
        target = self._plan() if once else None
        failures, before = 0, None
        while (plan := self._plan()) is not None and not (target is not None and _is_reached(plan, target)):
            if not plan.starts:
                self._pause(self._settings.discover_every_s)
                continue
            failures, before = failures + 1 if plan.starts == before else 0, plan.starts
            self._check_movement(plan, patience=1)
            ended, error = self._query(plan, once=once)
            if ended is Ended.STOPPED:
                break
            if ended is not Ended.DONE:
                self._summary.restarts += 1
                RESTARTS.labels(ended.value).inc()
            self._moved.waits_for = error or _RUNNING_BATCH
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
                plan = run(look())
            except Unavailable as error:
                if self._give_up_s is not None and time.monotonic() - began_s > self._give_up_s:
                    raise
                attempt += 1
                delay_s = _RETRY.delay_s(attempt)
                self._notify(f"waiting: {error}")
                self._pause(delay_s)
            else:
                self._count_lag(plan)
                return plan
        return None

    def _count_lag(self, plan: Plan) -> None:
        """Count what waits. It is looked at while no batch ends, too: then an operator must know that it grows."""
        count_lag(plan.lags, gone=self._planned - plan.lags.keys())
        self._planned = set(plan.lags)

    def _query(self, plan: Plan, *, once: bool) -> tuple[Ended, str]:
        with tempfile.TemporaryDirectory(prefix="headrace-pipeline-") as folder:
            outcomes = Path(folder) / "outcomes"
            outcomes.mkdir()
            try:
                query = self._start(plan, folder, outcomes, once=once)
            except Exception:
                self._check_session()
                raise
            RUNNING.inc()
            try:
                return self._watch(query, plan, outcomes, once=once)
            finally:
                RUNNING.dec()
                with contextlib.suppress(Exception):  # the session may be gone already
                    query.stop()

    def _start(self, plan: Plan, folder: str, outcomes: Path, *, once: bool) -> Any:  # noqa: ANN401
        from headrace.pipeline.replication.sink import HeadraceStoreSink

        register(self._spark, HeadraceStoreSink)
        frame = log_stream(self._spark, self._endpoints, plan.starts, max_records=self._settings.max_records)
        writer = (
            frame.writeStream.format("headrace_store")
            .queryName(f"headrace: {self._selection} ({uuid.uuid4().hex[:6]})")  # for people; Spark wants it unique
            .option(ENDPOINTS_OPTION, self._endpoints.pack())
            .option("outcomes", str(outcomes))
            .option("checkpointLocation", (Path(folder) / "checkpoint").as_uri())
        )
        interval = f"{int(self._settings.interval_s * 1000)} milliseconds"
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)).start()

    def _watch(self, query: Any, plan: Plan, outcomes: Path, *, once: bool) -> tuple[Ended, str]:  # noqa: ANN401
        """Finish batches as they end, until the query ends or another one is needed."""
        run_id = str(query.runId)
        self._reached = dict(plan.starts)
        look_at_s = time.monotonic() + self._settings.discover_every_s
        while True:
            next_s = min(look_at_s - time.monotonic(), _CHECK_EVERY_S) if not once else _CHECK_EVERY_S
            self._finish_batches(self._reports.take(run_id, next_s), plan, outcomes)
            if self._stop.is_set() and query.isActive:
                self._let_batch_end(query)
                self._end(query, plan, outcomes)
                return Ended.STOPPED, ""
            if self._reports.has_ended(run_id) or not query.isActive:
                return self._ended(query, plan, outcomes)
            if once:
                self._check_batch()
                continue
            if time.monotonic() > look_at_s:
                look_at_s = time.monotonic() + self._settings.discover_every_s
                if self._has_changed(plan):
                    self._let_batch_end(query)
                    self._end(query, plan, outcomes)
                    return Ended.CHANGED, ""
            if time.monotonic() > self._remove_at_s:
                self._remove_old(plan)

    def _end(self, query: Any, plan: Plan, outcomes: Path) -> None:  # noqa: ANN401
        """Stop the query, and finish what it did."""
        query.stop()
        self._finish_batches(self._reports.take_to_end(str(query.runId), _END_TOLD_S), plan, outcomes)
        self._count_failed(read_failed_batch(outcomes))

    def _ended(self, query: Any, plan: Plan, outcomes: Path) -> tuple[Ended, str]:  # noqa: ANN401
        """Return why a query ended without being stopped. What a failed batch has written is counted too."""
        self._finish_batches(self._reports.take_to_end(str(query.runId), _END_TOLD_S), plan, outcomes)
        failed = read_failed_batch(outcomes)
        self._count_failed(failed)
        error = query.exception()
        if error is None:
            return Ended.DONE, ""
        return (Ended.STOPPED, "") if self._stop.is_set() else _reason(str(error), failed)

    def _finish_batches(self, reports: Sequence[Mapping[str, Any]], plan: Plan, outcomes: Path) -> None:
        """Move the stored offsets to the ends of finished batches."""
        for progress in reports:
            source = progress["sources"][0] if progress["sources"] else None
            if source is None or source["endOffset"] == source["startOffset"]:
                continue  # Spark also reports from time to time when there is nothing to do
            report = run(finish_batch(self._endpoints, plan, progress, read_outcomes(outcomes, progress["batchId"])))
            self._reached |= ends_of(progress)
            self._summary.batches += 1
            self._summary.records += report.records
            self._summary.rows += report.rows
            self._moved.now()
            count(report)
            self._notify_keys(report.outcomes)
            self._watcher.batch(report)

    def _count_failed(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Count what the tasks of a failed batch have written: it stays, and is not written again."""
        written = [outcome.written() for outcome in outcomes]
        self._summary.records += sum(outcome.records for outcome in written)
        self._summary.rows += sum(outcome.rows for outcome in written)
        count_outcomes(written)
        self._notify_keys(written)

    def _check_batch(self) -> None:
        """Raise ReplicationStalled if the store has got nothing for a long time, though a micro-batch is running."""
        if self._give_up_s is None or self._moved.ago_s < _BATCH_PATIENCE * self._give_up_s:
            return
        now = self._plan(is_checked=False)
        if now is not None:
            self._check_movement(now, patience=_BATCH_PATIENCE)

    def _check_movement(self, plan: Plan, *, patience: int) -> None:
        """Raise ReplicationStalled if a run with an end has waited too long for the stored offsets to move."""
        if self._moved.to(plan.starts) or self._give_up_s is None:
            return
        if self._moved.ago_s > patience * self._give_up_s:
            raise ReplicationStalled(str(self._selection), self._moved.ago_s, plan.lag, self._moved.waits_for)

    def _remove_old(self, plan: Plan) -> None:
        """Remove replicated records that are older than their topic's retention from the log."""
        self._remove_at_s = time.monotonic() + self._settings.remove_every_s
        for text in run(remove_old(self._endpoints, plan.layouts, now_ms=_now_ms())):
            self._notify(text)

    def _notify_keys(self, outcomes: Sequence[TaskOutcome]) -> None:
        for outcome in outcomes:
            for key in outcome.quarantined:
                self._notify(
                    f"journal {key!r} is quarantined: a record can't be decoded; headrace pipeline quarantine list"
                )
            for stray in outcome.strays:
                self._notify(f"a record of a key that has moved is void: {stray} of {outcome.at}")

    def _has_changed(self, plan: Plan) -> bool:
        """Return True if topics or layouts have changed, or stored offsets are behind what finished batches have read.

        They are behind if the store was set back, or was away when they were to be moved. Raises errors that an
        operator must act on.
        """
        now = self._plan(is_checked=False)
        if now is None:
            return False
        behind = [at for at, end in self._reached.items() if now.starts.get(at, end) < min(end, now.ends.get(at, end))]
        if behind:
            more = f", and so in {len(behind) - 1} other partitions" if len(behind) > 1 else ""
            self._notify(f"starts again: the store lacks {behind[0]} from offset {now.starts[behind[0]]} on{more}")
        return bool(behind) or now.shape() != plan.shape()

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
        context = self._spark.sparkContext._jsc  # noqa: SLF001 - there is no public way to ask
        try:
            is_over = context is None or context.sc().isStopped()
        except Exception as error:
            if is_jvm_gone(error):
                raise self._session_failed(_JVM_GONE) from error
            raise
        if is_over:
            raise self._session_failed(_SESSION_ENDED)

    def _session_failed(self, reason: str) -> WorkerFailed:
        again = "run it again, it continues from the stored offsets"
        return WorkerFailed(f"replication of {self._selection}", f"{reason}; {again}")

    def _notify(self, text: str) -> None:
        _logger.warning("replication", event_text=text)
        self._watcher.event(text)

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_reached(plan: Plan, target: Plan) -> bool:
    """Return True if the store has what the log held; of a topic that was made again since, if it has all of that."""
    return all(plan.starts.get(at, end) >= min(end, plan.ends.get(at, end)) for at, end in target.ends.items())


def _reason(text: str, outcomes: Sequence[TaskOutcome]) -> tuple[Ended, str]:
    """Return why a batch failed, from the reports of its tasks or else from Spark's message."""
    unfinished = [outcome for outcome in outcomes if not outcome.is_complete]
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
