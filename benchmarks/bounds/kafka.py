"""Plain confluent-kafka: an idempotent producer with delivery callbacks, a consumer over a range, a transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import BenchFailed
from benchmarks.workloads import Event
from headrace.model import NewRecord

__all__ = ["Deliveries", "RawConsumer", "RawProducer", "RawTransactions", "create_topic"]

# What `produce` is called with.
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

TIMEOUT_S = 60.0
POLL_EVERY = 1000


def create_topic(servers: str, topic: str, *, partitions: int) -> None:
    """Create a topic with one replica."""
    # The client must outlive the answer: a collected one fails its own futures.
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)


class Deliveries:
    """Counts acknowledgements of the broker and keeps the first error."""

    def __init__(self) -> None:
        self.count = 0
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        self.count += 1
        self.error = self.error or error

    def check(self, expected: int) -> None:
        """Raise unless all `expected` records were acknowledged."""
        if self.error is not None:
            raise BenchFailed(f"the broker refused a record: {self.error}")
        if self.count != expected:
            raise BenchFailed(f"{self.count} of {expected} records were acknowledged within {TIMEOUT_S:g} s")


class RawProducer:
    """Acks from all in-sync replicas, idempotent, a callback for each record."""

    def __init__(self, servers: str, *, linger_ms: float = 5.0) -> None:
        own = {"acks": "all", "enable.idempotence": True, "linger.ms": linger_ms}
        self._producer = Producer({**_client(servers), **own})

    def produce(self, topic: str, events: Sequence[Event]) -> None:
        """Write all events and wait until each is acknowledged."""
        self._put_all(((topic, event.value, event.key), {}) for event in events)

    def send(self, records: Sequence[NewRecord]) -> None:
        """Write all records, with their headers and to their partitions, and wait until each is acknowledged."""
        self._put_all(map(_arguments, records))

    def start(self, record: NewRecord) -> Deliveries:
        """Queue one record; `wait` for what is returned."""
        deliveries = Deliveries()
        self._put(*_arguments(record), deliveries)
        return deliveries

    def wait(self, deliveries: Deliveries) -> None:
        """Return when the record of a `start` is acknowledged, after its linger: a flush would cut that short."""
        deadline = time.monotonic() + TIMEOUT_S
        while not deliveries.count and time.monotonic() < deadline:
            self._producer.poll(1.0)
        deliveries.check(1)

    def close(self) -> None:
        """Close the connection."""
        self._producer.close()

    def _put_all(self, calls: Iterable[Call]) -> None:
        deliveries, nr = Deliveries(), 0
        for nr, (positional, named) in enumerate(calls, 1):
            self._put(positional, named, deliveries)
            if nr % POLL_EVERY == 0:
                self._producer.poll(0)
        self._producer.flush(TIMEOUT_S)
        deliveries.check(nr)

    def _put(self, positional: tuple[Any, ...], named: dict[str, Any], deliveries: Deliveries) -> None:
        while True:
            try:
                self._producer.produce(*positional, on_delivery=deliveries, **named)
                return
            except BufferError:
                self._producer.poll(0.01)


class RawConsumer:
    """Reads ranges of partitions, committed records only, without a group."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer(
            {
                **_client(servers),
                "group.id": f"bench-{uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset after the last record of each partition."""
        return {
            partition: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)[1]
            for partition in partitions
        }

    def consume(self, topic: str, ranges: dict[int, tuple[int, int]]) -> int:
        """Read each partition from its start up to, not including, its end; returns how many records there were.

        Key, value, headers and timestamp of each record are taken: the driver decodes them only when asked.
        """
        left = {partition: end for partition, (start, end) in ranges.items() if start < end}
        self._consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in left])
        deadline = time.monotonic() + TIMEOUT_S
        count = 0
        while left:
            if time.monotonic() > deadline:
                raise BenchFailed(f"partitions {sorted(left)} of {topic} were not read within {TIMEOUT_S:g} s")
            count += self._take(left)
        self._consumer.unassign()
        return count

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _take(self, left: dict[int, int]) -> int:
        count = 0
        for message in self._messages():
            is_record = _is_record(message)
            end = left.get(message.partition())
            if end is None:
                continue
            if is_record and message.offset() < end:
                message.key(), message.value(), message.headers(), message.timestamp()
                count += 1
            # What ends a partition is a record, or its end itself where a transaction's marker is the last.
            if message.offset() >= end - is_record:
                del left[message.partition()]
        return count

    def _messages(self) -> list[Message]:
        # `consume` with a time-out waits for a whole batch: the last one of a range would cost all of the time-out.
        first = self._consumer.poll(1.0)
        return [] if first is None else [first, *self._consumer.consume(999, 0)]


class RawTransactions:
    """One transactional producer; each `commit` is one transaction."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({**_client(servers), "transactional.id": f"bench-{uuid4()}"})
        self._producer.init_transactions(TIMEOUT_S)

    def commit(self, topic: str, events: Sequence[Event]) -> None:
        """Write the events in one transaction."""
        deliveries = Deliveries()
        self._producer.begin_transaction()
        for event in events:
            self._producer.produce(topic, event.value, event.key, on_delivery=deliveries)
            self._producer.poll(0)
        self._producer.commit_transaction(TIMEOUT_S)
        deliveries.check(len(events))

    def commit_records(self, records: Sequence[NewRecord]) -> None:
        """Write the records in one transaction, with their headers and to their partitions."""
        deliveries = Deliveries()
        self._producer.begin_transaction()
        for nr, (positional, named) in enumerate(map(_arguments, records), 1):
            self._producer.produce(*positional, on_delivery=deliveries, **named)
            if nr % POLL_EVERY == 0:
                self._producer.poll(0)
        self._producer.commit_transaction(TIMEOUT_S)
        deliveries.check(len(records))

    def close(self) -> None:
        """Close the connection."""
        self._producer.close()


def _arguments(record: NewRecord) -> Call:
    named = {"headers": list(record.headers), "partition": -1 if record.partition is None else record.partition}
    return (record.topic, record.value, record.key), named


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - named so by the driver
        raise BenchFailed(f"the broker refused to be read: {error}")
    return error is None


def _client(servers: str) -> dict[str, str | int]:
    # A new broker's coordinators load for a moment, and every client would warn of it; errors are still printed.
    return {"bootstrap.servers": servers, "log_level": 3}
