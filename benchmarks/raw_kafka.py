"""raw-kafka: the rates of confluent-kafka itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.bounds.kafka import RawConsumer, RawProducer, RawTransactions, create_topic
from benchmarks.harness import Bench, BenchFailed, Contest, Measure, Readings, Stage, p50, stopwatch
from benchmarks.workloads import Event, events
from benchmarks.workloads.servers import server

TOPIC = "raw"
PARTITIONS = 4
RECORDS = 200_000
TRANSACTIONS = 200


class RawKafka:
    """One client of each kind, kept over the rounds."""

    def __init__(self, servers: str, stage: Stage) -> None:
        create_topic(servers, TOPIC, partitions=PARTITIONS)
        self._events = events(stage.count(RECORDS))
        self._transactions = stage.count(TRANSACTIONS)
        self._producer = RawProducer(servers)
        self._consumer = RawConsumer(servers)
        self._owner = RawTransactions(servers)

    async def work(self) -> Readings:
        """Produce, consume what was produced, commit transactions."""
        starts = self._consumer.ends(TOPIC, range(PARTITIONS))
        with stopwatch() as producing:
            self._producer.produce(TOPIC, self._events)
        ends = self._consumer.ends(TOPIC, range(PARTITIONS))
        with stopwatch() as consuming:
            count = self._consumer.consume(TOPIC, {nr: (starts[nr], ends[nr]) for nr in starts})
        if count != len(self._events):
            raise BenchFailed(f"{len(self._events)} records were produced but {count} consumed")
        return {
            "records_produced_per_s": producing.rate(count),
            "records_consumed_per_s": consuming.rate(count),
            "transaction_p50_ms": p50([self._transaction(self._events[:2]) for _ in range(self._transactions)]),
        }

    def close(self) -> None:
        """Close the connections to the broker."""
        for client in (self._producer, self._consumer, self._owner):
            client.close()

    def _transaction(self, pair: list[Event]) -> float:
        with stopwatch() as watch:
            self._owner.commit(TOPIC, pair)
        return watch.seconds


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    with server("kafka", stage) as kafka:
        raw = RawKafka(kafka.address, stage)
        try:
            yield Contest(raw.work)
        finally:
            raw.close()


BENCH = Bench(
    name="raw-kafka",
    work="confluent-kafka: an idempotent producer with acks all, a consumer of the same range, transactions of two",
    measures=(
        Measure("records_produced_per_s", unit="records/s"),
        Measure("records_consumed_per_s", unit="records/s"),
        Measure("transaction_p50_ms", unit="ms"),
    ),
    setup=setup,
)
