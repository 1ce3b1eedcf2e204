"""Records into a producer's queue, what to do when it does not know their partition yet, and the last flush."""

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
# Longer than the brokers need to elect another leader, shorter than an operator's patience.
_STALLED_S = 5.0
_LOOK_EVERY_S = 0.1


def produce(producer: Any, record: NewRecord, partition: int, on_delivery: Any) -> None:  # noqa: ANN401
    """Queue one record. Raises BufferError when the queue is full."""
    if not record.headers and record.timestamp_ms is None:
        producer.produce(record.topic, record.value, record.key, partition, on_delivery)
        return
    # By position: names cost a fifth of the call. The one left out is another name of `on_delivery`.
    timestamp_ms = record.timestamp_ms or 0
    producer.produce(
        record.topic, record.value, record.key, partition, on_delivery, None, timestamp_ms, list(record.headers)
    )


def is_about_partition(error: Any) -> bool:  # noqa: ANN401
    """Say whether a producer refused a partition that, as we know, is there: it was added a moment ago."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001


def refresh(client: Any, timeout_s: float = _REFRESH_S) -> None:  # noqa: ANN401
    """Let a client learn about new partitions and leaders. Blocking; when it fails the next request says why."""
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=timeout_s)
    time.sleep(_APPLY_S)  # the answer is ours before librdkafka has applied it to its own topics


def flush(producer: Any, timeout_s: float) -> bool:  # noqa: ANN401
    """Wait until all is delivered; returns whether it is. Blocking.

    Gives up when time is up, and before that when nothing was delivered for a while: nobody is there to take it.
    """
    deadline = time.monotonic() + timeout_s
    left, stalled_at = len(producer), time.monotonic() + _STALLED_S
    while left and time.monotonic() < min(deadline, stalled_at):
        now_left = producer.flush(_LOOK_EVERY_S)
        if now_left < left:
            left, stalled_at = now_left, time.monotonic() + _STALLED_S
    return not left


# What Position._make does, without its call of Python.
_position: Callable[[tuple[str, int, int, int]], Position] = functools.partial(tuple.__new__, Position)


class DeliveryFailed(Exception):
    """A record of an append was not delivered; `brokers_down` says that no broker was in sight."""

    def __init__(self, record: NewRecord, error: Any, *, brokers_down: bool) -> None:  # noqa: ANN401
        super().__init__(record.topic, error)
        self.record = record
        self.error = error
        self.brokers_down = brokers_down


class OneRecord:
    """An append of one record. It is its own delivery callback, and when called puts itself into `landed`."""

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
        """Whether a part of it is on its way while it waits."""
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
        """Queue the record; it is on its way then. Raises BufferError, KafkaException."""
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
        """Give up; nothing is on its way."""
        self.error = error
        return False

    def settle(self, brokers_down: bool) -> None:
        """Wake the caller, unless it went away."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result([self.position])
        else:
            self.future.set_exception(DeliveryFailed(self.record, self.error, brokers_down=brokers_down))


class ManyRecords:
    """An append of several records: lands with the last of them.

    Each delivery takes a number, and so does the loop when it has produced the last record. Whoever gets the number
    `_last`, which is set before the loop takes its own, was the last of all: there is one, whatever the threads do.
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
        """Whether a part of it is on its way while it waits."""
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
        """Queue what is not queued yet; returns whether it is still on its way.

        Raises BufferError, KafkaException; the next call goes on from there.
        """
        deliver = self._deliver
        for record, partition in itertools.islice(self._placed, self._at, None):
            produce(producer, record, partition, functools.partial(deliver, self._at))
            self._at += 1
        return not self._is_last(after=self._at)

    def refuse(self, error: Any) -> bool:  # noqa: ANN401
        """Give up at the record that could not be queued; returns whether others are still on their way."""
        self._errors[self._at] = error
        return not self._is_last(after=self._at)

    def settle(self, brokers_down: bool) -> None:
        """Wake the caller, unless it went away."""
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
        """Take the loop's number, having produced so many records."""
        self._last = after
        return self._number() == self._last


Append: TypeAlias = OneRecord | ManyRecords
