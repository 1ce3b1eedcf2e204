"""Appends to journals, beside a plain producer of the same records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawProducer, create_topic
from benchmarks.harness import Contest, Readings, Stage, stopwatch
from benchmarks.workloads.events import events
from benchmarks.workloads.journals import JournalAppend, append_to, appends_to, ground, opened
from headrace.journal import Journal
from headrace.journal.append import AppendOptions, record_of
from headrace.model import NewRecord, TopicPartition, partition_of

__all__ = ["against_producer"]

TOPIC = "journals"
RAW_TOPIC = "raw-journals"
PARTITIONS = 4


class AppendContest:
    """Both sides write the same records, each to a topic of its own; the bound's are encoded beforehand."""

    def __init__(self, journal: Journal, producer: RawProducer, *, count: int, append_size: int) -> None:
        self._journal = journal
        self._producer = producer
        self._events = events(count)
        self._append_size = append_size
        self._numbers: dict[str, int] = {}
        self._appends: list[JournalAppend] = []

    async def work(self) -> Readings:
        """Append to the journals, which go on from round to round."""
        self._appends = appends_to(self._events, size=self._append_size, numbers=self._numbers)
        with stopwatch() as watch:
            await append_to(self._journal, self._appends)
        return {"events_per_s": watch.rate(len(self._events))}

    async def bound(self) -> Readings:
        """Produce."""
        records = [_record(append) for append in self._appends]
        with stopwatch() as watch:
            self._producer.send(records)
        return {"events_per_s": watch.rate(len(self._events))}


@asynccontextmanager
async def against_producer(stage: Stage, *, full: int, append_size: int) -> AsyncIterator[Contest]:
    """Open a journal and a producer that waits as long for more records as the journal's does."""
    async with ground(stage) as on:
        create_topic(on.kafka.address, RAW_TOPIC, partitions=PARTITIONS)
        journal = await opened(on.hr, TOPIC, partitions=PARTITIONS)
        producer = RawProducer(on.kafka.address, linger_ms=on.hr.settings.log.kafka.linger_ms)
        try:
            count = stage.count(full, least=append_size)
            contest = AppendContest(journal, producer, count=count, append_size=append_size)
            yield Contest(contest.work, contest.bound)
        finally:
            producer.close()


def _record(append: JournalAppend) -> NewRecord:
    at = TopicPartition(RAW_TOPIC, partition_of(append.id.encode(), PARTITIONS))
    return record_of(at, append.id, append.events, AppendOptions())
