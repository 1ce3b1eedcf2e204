"""A store that is behind the query that writes into it: set back, or of a topic that was made again, beside the job."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.test_jobs_meanwhile import TOPIC, Here
from tests.pipeline.tier import Dump, Tier, append_all, dump_of
from tests.suites.journal_setting import records_of, replicate

from headrace.config import HeadraceSettings
from headrace.errors import TimedOut
from headrace.journal import JOURNAL_TOPIC, Journal
from headrace.log import Log
from headrace.model import Event, NewRecord, TopicPartition
from headrace.pipeline import Endpoints, Selection
from headrace.pipeline.logs.offsets import encode_offsets
from headrace.pipeline.logs.plan import plan_of
from headrace.pipeline.logs.records import batch_of_records
from headrace.pipeline.replication import progress
from headrace.pipeline.replication.outcomes import TaskOutcome
from headrace.pipeline.replication.progress import finish_batch
from headrace.pipeline.replication.task import replicate_partition
from headrace.pipeline.spark.process import close_all
from headrace.store import Store, open_store

AT = TopicPartition(TOPIC, 0)


class Job(Here):
    """A topic with one partition, and the parts of the job that write its store."""

    def append(self, *numbers: int) -> None:
        async def append(log: Log, store: Store) -> None:
            journal = Journal(log, store, TOPIC, cache=None, partitions=1, lease_s=0.05)
            for n in numbers:
                await journal.append("k", [Event(n, n)])

        self.on(append)

    def abort(self) -> None:
        """Write a record that is aborted."""

        async def abort(log: Log, _: Store) -> None:
            producer = await log.transactional("t")
            await producer.begin()
            await producer.append([NewRecord(TOPIC, b"aborted", b"{}", (), partition=0)])
            await producer.abort()
            await producer.close()

        self.on(abort)

    def task(self, first: int) -> TaskOutcome:
        """Run the task of a query that reads on from an offset."""
        records = [each for each in self.on(lambda log, _: records_of(log, TOPIC)) if each.offset >= first]
        done = replicate_partition(self.endpoints, iter([batch_of_records(records)]))
        assert done is not None
        return done

    def finish(self, first: int, end: int) -> None:
        """Do what the driver does after a batch from `first` up to `end` in which no task had records."""
        source = {"startOffset": encode_offsets({AT: first}), "endOffset": encode_offsets({AT: end})}
        report = {"batchId": 0, "numInputRows": 0, "durationMs": {}, "sources": [source]}

        async def finish(log: Log, store: Store) -> None:
            await finish_batch(self.endpoints, await plan_of(log, store, Selection((TOPIC,))), report, [])

        self.on(finish)

    @property
    def replicated(self) -> int:
        """The replicated offset."""
        found = self.on(lambda _, store: store.reader.replicated(AT))
        return found.offset if found is not None else -1

    @property
    def end(self) -> int:
        """The end of the log."""
        return self.on(lambda log, _: log.bounds(AT)).end

    def expected(self, folder: Path) -> Dump:
        """Return what the log makes of an empty store."""

        async def fold(log: Log, _: Store) -> Dump:
            other = await open_store(f"embedded:{folder}")
            await replicate(log, other, TOPIC)
            found = await dump_of(other, TOPIC)
            await other.close()
            return found

        return self.on(fold)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    settings = HeadraceSettings.model_validate({"tags": {"enabled": False}})
    yield Job(Endpoints.of(f"embedded:{tmp_path}", settings=settings))
    close_all()


def test_a_task_leaves_nothing_out_between_the_store_and_its_records(job: Job, tmp_path: Path) -> None:
    """E4: the store was set back to offset 1, and the query reads on from offset 4: it must begin again at 2."""
    job.append(1, 2)
    assert job.task(0).is_complete
    job.append(3, 4, 5, 6)
    outcome = job.task(4)
    assert "is replicated up to offset 1 only, and the batch lacks 2" in (outcome.error or "")
    assert not outcome.is_fault
    assert job.replicated == 1
    assert job.task(2).is_complete
    assert job.dump() == job.expected(tmp_path / "other")


def test_a_topic_that_was_made_again_is_replicated_from_its_start(job: Job, tmp_path: Path) -> None:
    """E4: the new topic is longer than the old one already, so that the query of the old one reads on in it."""
    job.append(1, 2)
    assert job.task(0).is_complete
    job.on(lambda log, _: log.admin.delete(TOPIC))
    job.on(lambda log, _: log.admin.create(TOPIC, partitions=1, config=JOURNAL_TOPIC))
    job.append(3, 4, 5, 6)
    assert job.task(2).error is not None
    assert job.task(0).is_complete
    _, rows = job.dump()  # type: ignore[misc]
    assert [row.seq_nr for row in rows["k"]] == [1, 2, 3, 4, 5, 6]


def test_aborted_records_before_a_task_are_no_hole(job: Job, tmp_path: Path) -> None:
    """E16: the driver had not yet passed them when the next batch began."""
    job.append(1)
    assert job.task(0).is_complete
    job.abort()
    first = job.end
    job.append(2)
    assert job.task(first).is_complete
    assert job.dump() == job.expected(tmp_path / "other")


def test_the_driver_passes_aborted_records_and_nothing_else(job: Job) -> None:
    """E16: the replicated offset moves to the end of a batch, unless the store was set back meanwhile."""
    job.append(1)
    assert job.task(0).is_complete
    job.abort()
    job.finish(1, job.end)
    assert job.replicated == job.end - 1
    before = job.end
    job.append(2)
    first = job.end
    job.abort()
    job.finish(first, job.end)
    assert job.replicated == before - 1


def test_a_store_that_is_away_when_a_batch_has_ended_does_not_end_the_job(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K13: its offset is not moved, and a later batch moves it, over what the first one covered as well."""
    job.append(1)
    assert job.task(0).is_complete
    job.abort()
    middle = job.end

    async def away(*_: Any, **__: Any) -> None:
        raise TimedOut("move the replicated offset", 1.0)

    monkeypatch.setattr(progress, "replicate_batch", away)
    job.finish(1, middle)
    assert job.replicated == 0
    monkeypatch.undo()
    job.abort()
    job.finish(middle, job.end)
    assert job.replicated == job.end - 1


@pytest.mark.timeout(120)
def test_a_store_that_is_set_back_beside_the_job_catches_up(spark: Any, crash_file: Path, tmp_path: Path) -> None:
    """K12: the job continues from where the store is now, though nothing more is written."""
    tier = Tier(spark, Endpoints.of(f"embedded:{tmp_path}"), crash_file)
    tier.keep_views()
    store, yesterday = tmp_path / "store.db", tmp_path / "yesterday.db"
    tier.with_journal(TOPIC, lambda journal: append_all(journal, 3, 2), partitions=1)
    copy(store, to=yesterday)
    with tier.replicating(TOPIC, discover_every_s=0.2):
        until(lambda: tier.dump(TOPIC) == tier.expected(TOPIC))
        copy(yesterday, to=store)
        assert tier.dump(TOPIC) == ({}, {})
        until(lambda: tier.dump(TOPIC) == tier.expected(TOPIC))


def copy(database: Path, *, to: Path) -> None:
    """Copy a database that is in use, in one transaction."""
    with closing(sqlite3.connect(database, timeout=30)) as source, closing(sqlite3.connect(to, timeout=30)) as target:
        source.backup(target)


def until(condition: Callable[[], bool]) -> None:
    event, deadline = threading.Event(), 300
    while not condition():
        assert deadline > 0, "it did not happen in time"
        deadline -= 1
        event.wait(0.1)
