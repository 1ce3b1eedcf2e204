"""Consumers, each with a thread of its own, kept open between reads: opening one costs more than a small read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException

from headrace.errors import Closed
from headrace.log.kafka.client import DRIVER_LOG, ClientConfigs, Threads
from headrace.model import TopicPartition

__all__ = ["ConsumerPool", "PooledConsumer", "take"]

# The driver forgets topics that are not read for some minutes.
_TRUSTED_S = 60.0
_TOPICS_KEPT = 10_000
_ANSWER_S = 1.0  # no longer is needed: the driver would ask again automatically


def take(consumer: Any, max_records: int, wait_s: float) -> list[Any]:  # noqa: ANN401
    """Wait for the first message, then take those that are there already.

    A batch `consume` with a time-out would wait for the whole batch to fill up.
    """
    first = consumer.poll(wait_s)
    if first is None:
        return []
    return [first, *consumer.consume(max_records - 1, 0)] if max_records > 1 else [first]


class PooledConsumer:
    """A consumer that reads one partition at a time."""

    def __init__(self, configs: ClientConfigs) -> None:
        self._consumer = Consumer(configs.reader(follow=False), logger=DRIVER_LOG)
        self.threads = Threads("reader", count=1)
        self._asked_s: dict[str, float] = {}

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Start at an offset of a partition. Blocks; runs in the consumer's thread, as all methods below."""
        self._find_leaders(at.topic)
        self._consumer.assign([confluent_kafka.TopicPartition(at.topic, at.partition, offset)])

    def _find_leaders(self, topic: str) -> None:
        """Ask for the leaders of a new topic now: the driver would ask at its next tick, up to a second later."""
        if time.monotonic() - self._asked_s.get(topic, -_TRUSTED_S) < _TRUSTED_S:
            return
        if len(self._asked_s) >= _TOPICS_KEPT:
            self._asked_s.clear()
        with contextlib.suppress(KafkaException):  # no broker answers: the read will fail with the reason
            self._consumer.list_topics(topic, _ANSWER_S)
            self._asked_s[topic] = time.monotonic()

    def take(self, max_records: int, wait_s: float) -> list[Any]:
        """Return the next messages and events; none if the time is up."""
        return take(self._consumer, max_records, wait_s)

    def rest(self) -> bool:
        """Stop fetching. Returns whether the consumer can be used again."""
        try:
            self._consumer.unassign()
        except (KafkaException, RuntimeError):
            return False
        return True

    def shut(self) -> None:
        """Close the consumer."""
        self._consumer.close()
        self._consumer = None


class ConsumerPool:
    """Lends consumers to readers; keeps up to `max_idle` of them."""

    def __init__(self, configs: ClientConfigs, address: str, *, max_idle: int) -> None:
        self._configs = configs
        self._address = address
        self._max_idle = max_idle
        self._idle: list[PooledConsumer] = []
        self._lent: set[PooledConsumer] = set()
        self._leaving: set[asyncio.Future[None]] = set()
        self._is_closed = False

    @property
    def idle(self) -> int:
        """The number of consumers that wait for their next reader."""
        return len(self._idle)

    def check_open(self) -> None:
        """Raise Closed to readers of a closed log."""
        if self._is_closed:
            raise Closed(f"log {self._address}")

    def lend(self) -> PooledConsumer:
        """Return a consumer for one reader."""
        self.check_open()
        consumer = self._idle.pop() if self._idle else PooledConsumer(self._configs)
        self._lent.add(consumer)
        return consumer

    def give_back(self, consumer: PooledConsumer) -> None:
        """Take a consumer back, without waiting: its thread may still be in a poll."""
        if self._is_closed:
            return  # close() closes it
        resting = consumer.threads.start(consumer.rest)
        resting.add_done_callback(lambda rested: self._rested(consumer, usable=rested.result()))

    async def close(self) -> None:
        """Close all consumers, those of waiting readers too."""
        self._is_closed = True
        consumers = [*self._lent, *self._idle]
        self._lent.clear()
        self._idle.clear()
        await asyncio.gather(*(_end(consumer) for consumer in consumers), *self._leaving)

    def _rested(self, consumer: PooledConsumer, *, usable: bool) -> None:
        if self._is_closed or consumer not in self._lent:
            return
        self._lent.discard(consumer)
        if usable and len(self._idle) < self._max_idle:
            self._idle.append(consumer)
            return
        leaving = asyncio.ensure_future(_end(consumer))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


async def _end(consumer: PooledConsumer) -> None:
    await consumer.threads.run(consumer.shut)
    await consumer.threads.join()
