"""The shipped replication job, running continuously, with more events each round."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import BenchFailed, Stage
from benchmarks.harness.bench import Tell
from benchmarks.workloads.events import KEYS, events
from headrace.config import PipelineSettings
from headrace.journal.append import AppendOptions, record_of
from headrace.log import open_log
from headrace.model import Event, NewRecord, TopicPartition, partition_of
from headrace.pipeline import BatchReport, Endpoints, Replication, Selection, spark_session
from headrace.pipeline.spark.process import close_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Backlog", "Job", "filled", "running", "session"]

MASTER = "local[2]"
APPENDED_AT_ONCE = 20_000
DEADLINE_S = 900.0
LOOK_EVERY_S = 0.02
TOLD_FROM_S = 3.0


class Backlog:
    """Appends of one event each to the journals of one topic, numbered on from round to round.

    The journals take turns, event by event. With `events_of_journal` each gets all its events before the next one.
    """

    def __init__(self, topic: str, *, partitions: int, keys: int = KEYS, events_of_journal: int | None = None) -> None:
        self.topic = topic
        self.partitions = partitions
        self._keys = keys
        self._events_of_journal = events_of_journal
        self._written = 0

    def take(self, count: int) -> list[NewRecord]:
        """Return the next records, as the journal would write them."""
        first = self._written
        self._written += count
        return [self._record(first + nr, event.value) for nr, event in enumerate(events(count, keys=self._keys))]

    def _record(self, nr: int, value: bytes) -> NewRecord:
        journal, index = nr % self._keys, nr // self._keys
        if self._events_of_journal is not None:
            journal, index = divmod(nr, self._events_of_journal)
        id_ = f"key-{journal:04d}"
        at = TopicPartition(self.topic, partition_of(id_.encode(), self.partitions))
        return record_of(at, id_, [Event(index + 1, value)], AppendOptions())


async def filled(address: str, records: Sequence[NewRecord]) -> None:
    """Append the records to the log."""
    log = await open_log(address)
    try:
        for start in range(0, len(records), APPENDED_AT_ONCE):
            await log.append(records[start : start + APPENDED_AT_ONCE])
    finally:
        await log.close()


class Job:
    """The job in a thread of its own, and its reports."""

    def __init__(
        self,
        spark: SparkSession,
        endpoints: Endpoints,
        selection: Selection,
        settings: PipelineSettings,
        *,
        tell: Tell | None = None,
    ) -> None:
        self._tell = tell
        self._replication = Replication(spark, endpoints, selection, settings=settings, watcher=self)
        self._thread = threading.Thread(target=self._run, name="bench-replication", daemon=True)
        self._reports: list[BatchReport] = []
        self._failure: BaseException | None = None
        self._thread.start()

    def batch(self, report: BatchReport) -> None:
        """Remember a batch, and tell of one that took its time."""
        self._reports.append(report)
        if self._tell is not None and report.took_s >= TOLD_FROM_S:
            self._tell(f"a micro-batch of {report.records:,} records took {report.took_s:.1f} s")

    def event(self, text: str) -> None:
        """Fail: a job that starts again must not be measured."""
        self._failure = BenchFailed(f"the job said: {text}")

    async def carried(self, count: int) -> list[BatchReport]:
        """Wait until `count` more records are in the store; returns the batches that carried them."""
        deadline_s = time.monotonic() + DEADLINE_S
        while sum(report.records for report in self._reports) < count:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"{count} records were not replicated within {DEADLINE_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)
        done, self._reports = self._reports, []
        return done

    def stop(self) -> None:
        """End it."""
        self._replication.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._replication.run()
        except BaseException as error:  # raised in the waiting thread
            self._failure = error


@contextmanager
def session(stage: Stage) -> Iterator[SparkSession]:
    """Start Spark on both cores."""
    stage.tell("starting Spark")
    spark = spark_session(PipelineSettings(master=MASTER), name="headrace bench")
    try:
        yield spark
    finally:
        close_all()
        spark.stop()


@asynccontextmanager
async def running(
    spark: SparkSession,
    endpoints: Endpoints,
    topics: Sequence[str],
    *,
    settings: PipelineSettings | None = None,
    tell: Tell | None = None,
) -> AsyncIterator[Job]:
    """Run the job on the topics."""
    job = Job(spark, endpoints, Selection(tuple(topics)), settings or PipelineSettings(master=MASTER), tell=tell)
    try:
        yield job
    finally:
        await asyncio.to_thread(job.stop)
