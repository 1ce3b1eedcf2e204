"""How the driver follows a query: reports of Spark's listener, and the deadline of a run that has an end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY

from headrace.config import PipelineSettings
from headrace.errors import ReplicationStalled
from headrace.journal import Journal
from headrace.model import Event, TopicPartition
from headrace.pipeline import Endpoints, Replication, Selection
from headrace.pipeline.logs.plan import Plan
from headrace.pipeline.replication.outcomes import TaskOutcome, read_failed_batch, write_outcomes
from headrace.pipeline.replication.progress import ProgressReports
from headrace.pipeline.replication.replication import Ended
from headrace.pipeline.spark.process import log_of, run, store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(60)

AT = TopicPartition("t", 0)


def progress(run_id: str, batch: int) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(runId=run_id, json=json.dumps({"batchId": batch})))


def batches(found: list[dict[str, Any]]) -> list[int]:
    return [each["batchId"] for each in found]


def test_a_query_gets_its_own_reports_in_order() -> None:
    """FP5: reports of other queries of the session are left out, and none is given twice."""
    reports = ProgressReports()
    for run_id, batch in (("ours", 0), ("theirs", 7), ("ours", 1)):
        reports.onQueryProgress(progress(run_id, batch))
    assert batches(reports.take("ours", 5)) == [0, 1]
    assert reports.take("ours", 0) == []
    assert not reports.has_ended("ours")


def test_a_query_that_stopped_is_followed_to_its_end() -> None:
    """FP5: the report of the last batch comes after the query has stopped, from a thread of Spark's."""
    reports = ProgressReports()

    def tell() -> None:
        reports.onQueryTerminated(SimpleNamespace(runId="theirs"))
        reports.onQueryProgress(progress("ours", 0))
        reports.onQueryProgress(progress("ours", 1))
        reports.onQueryTerminated(SimpleNamespace(runId="ours"))

    telling = threading.Thread(target=tell)
    telling.start()
    assert batches(reports.take_to_end("ours", 30)) == [0, 1]
    telling.join()
    assert reports.has_ended("ours")
    assert reports.take_to_end("ours", 30) == []


def test_a_stop_is_heard_at_once() -> None:
    """FP5: a driver that waits for a report does not sleep through the stop."""
    reports = ProgressReports()
    waker = threading.Timer(0.05, reports.wake)
    began_s = time.monotonic()
    waker.start()
    assert reports.take("ours", 30) == []
    assert time.monotonic() - began_s < 20
    waker.join()


def plan(start: int) -> Plan:
    return Plan({}, starts={AT: start}, ends={AT: 10})


@pytest.fixture
def waiting(spark: SparkSession, tmp_path: Path) -> Callable[..., Replication]:
    """Return a job whose plans and ends are given: what it waits for never comes by itself."""

    def make(plans: Callable[[], Plan], ended: Ended = Ended.HELD) -> Replication:
        settings = PipelineSettings(once_timeout_s=0.3)
        job = Replication(spark, Endpoints.of(f"embedded:{tmp_path}"), Selection(("t",)), settings=settings)
        job._plan = lambda **_: plans()  # type: ignore[assignment,method-assign]
        job._query = lambda *_, **__: (ended, "t[0] waits for others")  # type: ignore[method-assign]
        job._pause = lambda _: time.sleep(0.01)  # type: ignore[method-assign]
        return job

    return make


def test_a_run_with_an_end_gives_up_when_nothing_moves(waiting: Callable[..., Replication]) -> None:
    """FP5: a partition that waits for others, which never come, ends `--once` with what it waits for."""
    job = waiting(lambda: plan(4))
    with pytest.raises(ReplicationStalled, match=r"has not moved for .* and 6 records are waiting: t\[0\] waits for"):
        job.run(once=True)


def test_a_run_with_an_end_goes_on_while_something_moves(waiting: Callable[..., Replication]) -> None:
    """FP5: however long it takes in all, a run is not given up as long as the stored offsets move."""
    began_s = time.monotonic()

    def moving() -> Plan:
        return plan(min(10, int((time.monotonic() - began_s) / 0.1)))

    assert waiting(moving).run(once=True).restarts > 0
    assert time.monotonic() - began_s > 0.9


def test_a_run_with_an_end_ends_though_its_topic_was_made_again(waiting: Callable[..., Replication]) -> None:
    """FP5: the new topic is shorter than the old one was when the run began, and the store has all of it."""
    plans = iter([plan(4), plan(4)])
    made_again = Plan({}, starts={AT: 3}, ends={AT: 3})
    assert waiting(lambda: next(plans, made_again)).run(once=True).restarts == 1


def test_a_micro_batch_may_take_longer_than_a_wait(waiting: Callable[..., Replication]) -> None:
    """FP5: a running micro-batch is given up only after ten times the wait, and not if the store moved meanwhile."""
    starts = [4]
    job = waiting(lambda: plan(starts[0]))
    job._give_up_s = 0.3
    job._check_movement(plan(4), patience=1)
    job._moved.at_s -= 2.0
    job._check_batch()
    job._moved.at_s -= 2.0
    starts = [5]
    job._check_batch()
    job._moved.at_s -= 4.0
    with pytest.raises(ReplicationStalled, match="the running micro-batch has not ended"):
        job._check_batch()


def outcome(partition: int, **facts: Any) -> TaskOutcome:
    base = {"topic": "t", "partition": partition, "task": 1, "first": 100, "seen": 119, "applied": 119, "records": 20}
    return TaskOutcome(**{**base, **facts})


def test_a_failed_batch_counts_what_it_wrote(tmp_path: Path) -> None:
    """FP5: of a batch that failed, finished tasks count whole and others as far as the store has their records."""
    held = outcome(1, applied=104, is_held=True)
    failed = outcome(2, applied=-1, records=5, error="the store is away")
    write_outcomes(tmp_path, 3, [outcome(0, rows=20), held, failed])
    found = read_failed_batch(tmp_path)
    assert [each.written().records for each in found] == [20, 5, 0]
    assert read_failed_batch(tmp_path) == []


def test_the_lag_is_known_while_no_batch_ends(spark: SparkSession, tmp_path: Path) -> None:
    """K10: a job whose batches fail or stand still must show that its lag grows; what is gone does not lag forever."""
    topic, endpoints = "waiting-topic", Endpoints.of(f"embedded:{tmp_path}")
    job = Replication(spark, endpoints)

    async def append(first: int, last: int) -> None:
        journal = Journal(await log_of(endpoints), await store_of(endpoints), topic, cache=None, partitions=1)
        for number in range(first, last + 1):
            await journal.append("k", [Event(number)])

    async def delete() -> None:
        await (await log_of(endpoints)).admin.delete(topic)

    def lag() -> float | None:
        job._plan()
        return REGISTRY.get_sample_value("headrace_pipeline_lag_records", {"topic": topic, "partition": "0"})

    run(append(1, 3))
    assert lag() == 3
    run(append(4, 5))
    assert lag() == 5
    run(delete())
    assert lag() is None
