"""Plain confluent-kafka: the time to open a consumer, to seek to an offset, and to get the first record."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import BenchFailed

__all__ = ["ConsumerCosts", "RawReader"]

TIMEOUT_S = 60.0


class ConsumerCosts(NamedTuple):
    """The seconds of each part."""

    open_s: float
    seek_s: float
    first_poll_s: float

    @property
    def total_s(self) -> float:
        """The sum of all three."""
        return self.open_s + self.seek_s + self.first_poll_s


class RawReader:
    """Reads one partition from a given offset, committed records only; at its end a fetch waits for `wait_ms`."""

    def __init__(self, servers: str, *, wait_ms: int) -> None:
        self._config = {
            "bootstrap.servers": servers,
            "log_level": 3,
            "group.id": "bench-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": wait_ms,
        }
        self._kept = Consumer(self._config)

    def from_new(self, topic: str, partition: int, offset: int) -> ConsumerCosts:
        """Read the first record with a consumer made for it."""
        started = perf_counter()
        consumer = Consumer(self._config)
        opened = perf_counter()
        try:
            costs = _read_one(consumer, topic, partition, offset)
        finally:
            consumer.close()
        return costs._replace(open_s=opened - started)

    def from_kept(self, topic: str, partition: int, offset: int) -> ConsumerCosts:
        """Read the first record with the consumer that is open."""
        costs = _read_one(self._kept, topic, partition, offset)
        self._kept.unassign()
        return costs

    def close(self) -> None:
        """Close the connection."""
        self._kept.close()


def _read_one(consumer: Consumer, topic: str, partition: int, offset: int) -> ConsumerCosts:
    started = perf_counter()
    consumer.assign([TopicPartition(topic, partition, offset)])
    sought = perf_counter()
    message = consumer.poll(TIMEOUT_S)
    polled = perf_counter()
    if message is None or message.error() is not None or message.offset() != offset:
        raise BenchFailed(f"offset {offset} of {topic}-{partition} was not read: {message and message.error()}")
    return ConsumerCosts(0.0, sought - started, polled - sought)
