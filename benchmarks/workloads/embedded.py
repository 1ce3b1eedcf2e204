"""Appends to the embedded log, beside the same rows put straight into SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import REGISTRY

from benchmarks.bounds.sqlite import RecordTable
from benchmarks.harness import BenchFailed, Contest, Readings, Stage, stopwatch
from benchmarks.workloads.appends import append_all, appends_of
from benchmarks.workloads.events import events
from headrace.log import Log, open_log
from headrace.model import TopicConfig

__all__ = ["against_sqlite"]

PARTITIONS = 4
TOPIC = "events"


class EmbeddedContest:
    """Both sides write the same events; the bound commits as many rows at once as the log just did."""

    def __init__(self, log: Log, table: RecordTable, *, count: int, append_size: int) -> None:
        self._log = log
        self._table = table
        self._events = events(count)
        self._appends = appends_of(TOPIC, self._events, size=append_size)
        self._group_size = 0

    async def work(self) -> Readings:
        """Append to the log."""
        before = _commits()
        with stopwatch() as watch:
            await append_all(self._log, self._appends)
        self._group_size = max(1, round(len(self._events) / (_commits() - before)))
        return {"events_per_s": watch.rate(len(self._events)), "group_size": self._group_size}

    async def bound(self) -> Readings:
        """Insert into the table."""
        rows = self._table.rows(self._events)
        with stopwatch() as watch:
            self._table.insert(rows, group_size=self._group_size)
        return {"events_per_s": watch.rate(len(rows))}


@asynccontextmanager
async def against_sqlite(stage: Stage, *, full: int, append_size: int) -> AsyncIterator[Contest]:
    """Open both files in the stage's folder."""
    log = await open_log(f"embedded:{stage.folder / 'log'}")
    table = RecordTable(stage.folder / "raw.db", partitions=PARTITIONS)
    try:
        await log.admin.create(TOPIC, partitions=PARTITIONS, config=TopicConfig())
        contest = EmbeddedContest(log, table, count=stage.count(full, least=append_size), append_size=append_size)
        yield Contest(contest.work, contest.bound)
    finally:
        table.close()
        await log.close()


def _commits() -> float:
    commits = REGISTRY.get_sample_value("headrace_sqlite_group_size_count")
    if commits is None:
        raise BenchFailed("the embedded log does not count its commits (headrace_sqlite_group_size)")
    return commits
