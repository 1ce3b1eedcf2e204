"""read-head: one long journal of which nothing is replicated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawConsumer
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.journals import append_to, appends_to, ground, opened, read_all
from headrace.app import Headrace
from headrace.journal import HeadCache, Journal

TOPIC = "journals"
EVENTS = 10_000


class HeadContest:
    """Both sides read the same range of the log, which holds nothing but the journal."""

    def __init__(self, hr: Headrace, journal: Journal, consumer: RawConsumer, *, id_: str, count: int) -> None:
        self._hr = hr
        self._journal = journal
        self._consumer = consumer
        self._id = id_
        self._count = count
        self._end = consumer.ends(TOPIC, [0])[0]

    async def work(self) -> Readings:
        """Read the journal: with a head cache that knows nothing yet, and with one that follows the partition."""
        with stopwatch() as followed:
            await read_all(self._journal, self._id, expected=self._count)
        cache = HeadCache(self._hr.log, self._hr.store.reader)
        fresh = Journal(self._hr.log, self._hr.store, TOPIC, cache=cache)
        await fresh.mark(self._id, "the topic is known")
        try:
            with stopwatch() as first:
                await read_all(fresh, self._id, expected=self._count)
        finally:
            await cache.close()
        return {"events_per_s": first.rate(self._count), "events_per_s_followed": followed.rate(self._count)}

    async def bound(self) -> Readings:
        """Consume the range."""
        with stopwatch() as watch:
            count = self._consumer.consume(TOPIC, {0: (0, self._end)})
        if count < self._count:
            raise BenchFailed(f"{self._count} events were appended but {count} records consumed")
        return dict.fromkeys(("events_per_s", "events_per_s_followed"), watch.rate(self._count))


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    async with ground(stage) as on:
        journal = await opened(on.hr, TOPIC, partitions=1)
        appends = appends_to(events(stage.count(EVENTS), keys=1), size=1, numbers={})
        await append_to(journal, appends)
        consumer = RawConsumer(on.kafka.address)
        try:
            contest = HeadContest(on.hr, journal, consumer, id_=appends[-1].id, count=len(appends))
            yield Contest(contest.work, contest.bound)
        finally:
            consumer.close()


BENCH = Bench(
    name="read-head",
    work="journal.read of a journal of 10 000 events, none replicated: the first read of a process, and later ones",
    measures=tuple(
        Measure(
            metric,
            unit="events/s",
            against="raw consumer over the same range that takes all of each record",
            target=at_least(0.5),
        )
        for metric in ("events_per_s", "events_per_s_followed")
    ),
    setup=setup,
)
