"""append-kafka: single records into the log on Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawProducer, create_topic
from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from benchmarks.workloads import events
from benchmarks.workloads.appends import append_all, appends_of
from benchmarks.workloads.servers import server
from headrace.config import LogSettings
from headrace.log import Log, open_log

TOPIC = "events"
PARTITIONS = 4
EVENTS = 100_000


class KafkaContest:
    """Both sides write the same events to topics of their own."""

    def __init__(self, log: Log, producer: RawProducer, *, count: int) -> None:
        self._log = log
        self._producer = producer
        self._events = events(count)
        self._appends = appends_of(TOPIC, self._events, size=1)

    async def work(self) -> Readings:
        """Append to the log."""
        with stopwatch() as watch:
            await append_all(self._log, self._appends)
        return {"events_per_s": watch.rate(len(self._events))}

    async def bound(self) -> Readings:
        """Produce."""
        with stopwatch() as watch:
            self._producer.produce(f"raw-{TOPIC}", self._events)
        return {"events_per_s": watch.rate(len(self._events))}


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        for topic in (TOPIC, f"raw-{TOPIC}"):
            create_topic(kafka.address, topic, partitions=PARTITIONS)
        settings = LogSettings()
        log = await open_log(kafka.url, settings=settings)
        producer = RawProducer(kafka.address, linger_ms=settings.kafka.linger_ms)
        try:
            contest = KafkaContest(log, producer, count=stage.count(EVENTS))
            yield Contest(contest.work, contest.bound)
        finally:
            producer.close()
            await log.close()


BENCH = Bench(
    name="append-kafka",
    work="log.append of single records, 1000 in flight, Kafka",
    measures=(
        Measure(
            "events_per_s",
            unit="events/s",
            against="confluent-kafka producing the same bytes, delivery callbacks, acks all, idempotent, same linger",
            target=at_least(0.25),
        ),
    ),
    setup=setup,
)
