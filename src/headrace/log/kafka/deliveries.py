"""Deliveries: records on their way through a producer's queue, a new partition's refresh, and the last flush."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias, cast

from confluent_kafka import KafkaError, KafkaException

from headrace.log.kafka.faults import NO_OFFSET
from headrace.log.kafka.polling import Landed
from headrace.model import NewRecord, Position

__all__ = [
    "REFRESHES",
    "Append",
    "DeliveryFailed",
    "ManyRecords",
    "OneRecord",
    "Placed",
    "flush",
    "is_about_partition",
    "produce",
    "refresh",
]

Placed: TypeAlias = tuple[NewRecord, int]

REFRESHES = 20
_REFRESH_S = 5.0
_APPLY_S = 0.01
# Longer than an election of another leader takes, and short enough for an operator to wait.
_STALLED_S = 5.0
_LOOK_EVERY_S = 0.1


def produce(producer: Any, record: NewRecord, partition: int, on_delivery: Any) -> None:  # noqa: ANN401
    """Queue one record. Raises BufferError when the queue is full."""
    if not record.headers and record.timestamp_ms is None:
        producer.produce(record.topic, record.value, record.key, partition, on_delivery)
        return
    # By position, because keywords cost a fifth of the call. The parameter left out is an alias of `on_delivery`.
    timestamp_ms = record.timestamp_ms or 0
    producer.produce(
        record.topic, record.value, record.key, partition, on_delivery, None, timestamp_ms, list(record.headers)
    )


def is_about_partition(error: Any) -> bool:  # noqa: ANN401
    """Return True if a producer refused a partition that exists: it was added a moment ago."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001


def refresh(client: Any, timeout_s: float = _REFRESH_S) -> None:  # noqa: ANN401
    """Refresh a client's partitions and leaders. Blocks; if it fails, the next request raises the reason."""
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=timeout_s)
    time.sleep(_APPLY_S)  # librdkafka applies the answer to its own topics after it returned it


def flush(producer: Any, timeout_s: float) -> bool:  # noqa: ANN401
    """Wait until all records are delivered; returns True if they are. Blocks.

    Gives up when the time is up, or earlier if nothing was delivered for a while: no broker takes records then.
    """
    deadline = time.monotonic() + timeout_s
    left, stalled_at = len(producer), time.monotonic() + _STALLED_S
    while left and time.monotonic() < min(deadline, stalled_at):
        now_left = producer.flush(_LOOK_EVERY_S)
        if now_left < left:
            left, stalled_at = now_left, time.monotonic() + _STALLED_S
    return not left


# Does what Position._make does, without a call of a Python function.
_position: Callable[[tuple[str, int, int, int]], Position] = functools.partial(tuple.__new__, Position)


class DeliveryFailed(Exception):
    """A record of an append was not delivered; `brokers_down` is True if no broker could be reached."""

    def __init__(self, record: NewRecord, error: Any, *, brokers_down: bool) -> None:  # noqa: ANN401
        super().__init__(record.topic, error)
        self.record = record
        self.error = error
        self.brokers_down = brokers_down


class OneRecord:
    """An append of one record. It is its own delivery callback, which puts it into `landed`."""

    __slots__ = ("error", "future", "landed", "partition", "position", "record", "refreshes", "started")

    def __init__(
        self, record: NewRecord, partition: int, future: asyncio.Future[list[Position]], landed: Landed
    ) -> None:
        self.record = record
        self.partition = partition
        self.future = future
        self.landed = landed
        self.error: Any = None
        self.refreshes = 0
        self.started = perf_counter()

    @property
    def is_begun(self) -> bool:
        """True if some of its records are queued already while it waits."""
        return False

    @property
    def topic(self) -> str:
        """Where it goes."""
        return self.record.topic

    def count(self, counts: dict[str, int]) -> None:
        """Add the record to the count of its topic."""
        topic = self.record.topic
        counts[topic] = counts.get(topic, 0) + 1

    def produce(self, producer: Any) -> bool:  # noqa: ANN401
        """Queue the record. Raises BufferError, KafkaException."""
        produce(producer, self.record, self.partition, self)
        return True

    def __call__(self, error: Any, message: Any) -> None:  # noqa: ANN401
        """Take the driver's report."""
        if error is None:
            offset = message.offset()
            where = (self.record.topic, message.partition(), offset, message.timestamp()[1])
            self.position = _position(where)
            if offset < 0:
                self.error = NO_OFFSET
        else:
            self.error = error
        self.landed.append(self)

    def refuse(self, error: Any) -> bool:  # noqa: ANN401
        """Fail the append; nothing of it is on its way."""
        self.error = error
        return False

    def settle(self, brokers_down: bool) -> None:
        """Wake the caller, unless it was cancelled."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result([self.position])
        else:
            self.future.set_exception(DeliveryFailed(self.record, self.error, brokers_down=brokers_down))


class ManyRecords:
    """An append of several records, complete when the last of them is delivered.

    Each delivery takes a number, and so does the loop after it produced the last record. The one that gets the number
    `_last`, which is set before the loop takes its own, is the last: there is exactly one, whatever the threads do.
    """

    __slots__ = (
        "_at",
        "_errors",
        "_last",
        "_number",
        "_placed",
        "_positions",
        "future",
        "landed",
        "refreshes",
        "started",
    )

    def __init__(self, placed: Sequence[Placed], future: asyncio.Future[list[Position]], landed: Landed) -> None:
        self.future = future
        self.landed = landed
        self.refreshes = 0
        self.started = perf_counter()
        self._placed = placed
        self._at = 0
        self._last = -1
        self._number = itertools.count().__next__
        self._positions: list[Position | None] = [None] * len(placed)
        self._errors: dict[int, Any] = {}

    @property
    def error(self) -> Any:  # noqa: ANN401
        """The error of the first record that failed."""
        return self._errors[min(self._errors)] if self._errors else None

    @property
    def is_begun(self) -> bool:
        """True if some of its records are queued already while it waits."""
        return self._at > 0

    @property
    def topic(self) -> str:
        """Where its first record goes."""
        return self._placed[0][0].topic

    def count(self, counts: dict[str, int]) -> None:
        """Add the records to the counts of their topics."""
        for record, _ in self._placed:
            counts[record.topic] = counts.get(record.topic, 0) + 1

    def produce(self, producer: Any) -> bool:  # noqa: ANN401
        """Queue what is not queued yet; returns True if deliveries are still to come.

        Raises BufferError, KafkaException; the next call continues from there.
        """
        deliver = self._deliver
        for record, partition in itertools.islice(self._placed, self._at, None):
            produce(producer, record, partition, functools.partial(deliver, self._at))
            self._at += 1
        return not self._is_last(after=self._at)

    def refuse(self, error: Any) -> bool:  # noqa: ANN401
        """Give up at the record that could not be queued; returns True if others are still on their way."""
        self._errors[self._at] = error
        return not self._is_last(after=self._at)

    def settle(self, brokers_down: bool) -> None:
        """Wake the caller, unless it was cancelled."""
        if self.future.done():
            return
        if not self._errors:
            self.future.set_result(cast("list[Position]", self._positions))
            return
        record = self._placed[min(self._errors)][0]
        self.future.set_exception(DeliveryFailed(record, self.error, brokers_down=brokers_down))

    def _deliver(self, index: int, error: Any, message: Any) -> None:  # noqa: ANN401
        if error is None:
            offset = message.offset()
            where = (self._placed[index][0].topic, message.partition(), offset, message.timestamp()[1])
            self._positions[index] = _position(where)
            if offset < 0:
                self._errors[index] = NO_OFFSET
        else:
            self._errors[index] = error
        if self._number() == self._last:
            self.landed.append(self)

    def _is_last(self, *, after: int) -> bool:
        """Take the loop's number after that many produced records; returns True if it is the last number."""
        self._last = after
        return self._number() == self._last


Append: TypeAlias = OneRecord | ManyRecords
