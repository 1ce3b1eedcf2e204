"""One producer, its poller thread, and the count-down of each append.

`produce` is called on the event loop: it only queues. Deliveries come back in the poller thread, which counts
them and hands all appends that one poll completed to the loop in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import Closed
from headrace.log.kafka.clients import LOGGER
from headrace.log.kafka.faults import error_in
from headrace.log.kafka.threads import Threads
from headrace.log.metrics import APPEND_SECONDS, APPENDED
from headrace.model import NewRecord, Position

__all__ = ["REFRESHES", "Appender", "DeliveryFailed", "Placed", "is_about_partition", "produce", "refresh"]

Placed: TypeAlias = tuple[NewRecord, int]

_SECONDS = APPEND_SECONDS.labels("kafka")
_POLL_S = 0.1
_ROOM_S = 0.05
_REFRESH_S = 5.0
_APPLY_S = 0.01
REFRESHES = 20


class DeliveryFailed(Exception):
    """A record of an append was not delivered; `brokers_down` says that no broker was in sight."""

    def __init__(self, record: NewRecord, error: Any, *, brokers_down: bool) -> None:  # noqa: ANN401
        super().__init__(record.topic, error)
        self.record = record
        self.error = error
        self.brokers_down = brokers_down


class Tracker:
    """Counts the deliveries of one append.

    `delivered` is changed by the poller alone and `expected` by the loop alone; whoever sees them meet completes
    the append, and completing twice does nothing.
    """

    __slots__ = ("delivered", "errors", "expected", "future", "positions", "refreshed", "started")

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.expected = count
        self.delivered = 0
        self.positions: list[Position | None] = [None] * count
        self.errors: dict[int, Any] | None = None
        self.future = future
        self.refreshed = 0
        self.started = time.perf_counter()

    def settle(self) -> None:
        """Wake the append, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, index: int, error: Any) -> None:  # noqa: ANN401
        """Remember what happened to a record. The dict is made late: nearly no append needs it."""
        if self.errors is None:
            self.errors = {}
        self.errors[index] = error

    def stop_at(self, index: int, error: Any) -> None:  # noqa: ANN401
        """Expect no more than what was produced before `index`, which was refused."""
        self.fail(index, error)
        self.expected = index
        if self.delivered == index:
            self.settle()


def produce(producer: Any, record: NewRecord, partition: int, on_delivery: Any) -> None:  # noqa: ANN401
    """Queue one record. Raises BufferError when the queue is full."""
    if not record.headers and record.timestamp_ms is None:
        producer.produce(record.topic, record.value, record.key, partition, on_delivery)
        return
    producer.produce(
        record.topic,
        record.value,
        record.key,
        partition,
        on_delivery,
        timestamp=record.timestamp_ms or 0,
        headers=list(record.headers),
    )


def is_about_partition(error: Any) -> bool:  # noqa: ANN401
    """Say whether a producer refused a partition that, as we know, is there: it was added a moment ago."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001


def refresh(producer: Any) -> None:  # noqa: ANN401
    """Let a producer learn about new partitions. Blocking; when it fails the next produce says why."""
    with contextlib.suppress(KafkaException):
        producer.list_topics(timeout=_REFRESH_S)
    time.sleep(_APPLY_S)  # the answer is ours before librdkafka has applied it to its own topics


class Appender:
    """An idempotent producer that many appends share."""

    def __init__(self, config: dict[str, Any], address: str, threads: Threads) -> None:
        self._address = address
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._producer = Producer({**config, "error_cb": self._on_error}, logger=LOGGER)
        self._completed: list[Tracker] = []
        self._gate = asyncio.Lock()
        self._in_turn = 0
        self._room: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._is_stale = False
        self._brokers_down = False
        self.is_dead = False
        self._poller = threading.Thread(target=self._poll_on, name="headrace-kafka-poller", daemon=True)
        self._poller.start()

    async def append(self, placed: Sequence[Placed]) -> list[Position]:
        """Produce records in order and wait for all of them. Raises DeliveryFailed."""
        tracker = Tracker(len(placed), self._loop.create_future())
        at = 0 if self._in_turn else self._produce_from(0, placed, tracker)
        if at < tracker.expected:
            await self._append_in_turn(at, placed, tracker)
        await tracker.future
        if tracker.errors:
            index = min(tracker.errors)
            raise DeliveryFailed(placed[index][0], tracker.errors[index], brokers_down=self._brokers_down)
        return cast("list[Position]", tracker.positions)

    async def close(self, timeout_s: float) -> None:
        """Flush, drop what could not be flushed in time, and end the thread."""
        self._is_stopped = True
        await self._threads.run(self._shut, timeout_s)

    async def _append_in_turn(self, at: int, placed: Sequence[Placed], tracker: Tracker) -> None:
        """Go on when the queue has room again, in the order in which the appends came."""
        # Counted, because the lock says that it is free between one holder and the next.
        self._in_turn += 1
        try:
            async with self._gate:
                while (at := self._produce_from(at, placed, tracker)) < tracker.expected:
                    await self._make_room()
        finally:
            self._in_turn -= 1

    async def _make_room(self) -> None:
        """Wait for what stands in the way: a full queue, or partitions the producer has not heard of."""
        if self._is_stale:
            await self._threads.run(refresh, self._producer)
            self._is_stale = False
        else:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait for deliveries. The time-out covers those served before the future was there to be woken."""
        self._room = self._loop.create_future()
        await asyncio.wait([self._room], timeout=_ROOM_S)

    def _produce_from(self, at: int, placed: Sequence[Placed], tracker: Tracker) -> int:
        """Produce to the end, or until the queue is full or refuses; returns how far that was."""
        if self._is_stopped:
            raise Closed(f"log {self._address}")
        for index in range(at, len(placed)):
            record, partition = placed[index]
            try:
                produce(self._producer, record, partition, functools.partial(self._delivered, tracker, index))
            except BufferError:
                return index
            except KafkaException as failure:
                self._refuse(index, error_in(failure), tracker)
                return index
        return len(placed)

    def _refuse(self, index: int, error: Any, tracker: Tracker) -> None:  # noqa: ANN401
        """Give up at a record; or, the first times it is about a partition, ask the brokers and try again."""
        if is_about_partition(error) and tracker.refreshed < REFRESHES:
            self._is_stale = True
            tracker.refreshed += 1
        else:
            tracker.stop_at(index, error)

    def _delivered(self, tracker: Tracker, index: int, error: Any, message: Any) -> None:  # noqa: ANN401
        if error is None:
            tracker.positions[index] = Position(
                message.topic(), message.partition(), message.offset(), message.timestamp()[1]
            )
        else:
            tracker.fail(index, error)
            self.is_dead = self.is_dead or error.fatal()
        tracker.delivered += 1
        if tracker.delivered == tracker.expected:
            self._completed.append(tracker)

    def _on_error(self, error: Any) -> None:  # noqa: ANN401
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._brokers_down = True
        self.is_dead = self.is_dead or error.fatal()

    def _poll_on(self) -> None:
        while not self._is_stopped:
            if self._producer.poll(_POLL_S):
                self._hand_over()

    def _hand_over(self) -> None:
        completed, self._completed = self._completed, []
        if any(not tracker.errors for tracker in completed):
            self._brokers_down = False
        if completed or self._room is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._settle, completed)

    def _settle(self, completed: list[Tracker]) -> None:
        for tracker in completed:
            tracker.settle()
        _count(completed)
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    def _shut(self, timeout_s: float) -> None:
        self._poller.join()
        self._producer.flush(timeout_s)
        if len(self._producer):
            self._producer.purge()
            self._producer.flush(1)
        self._hand_over()
        self._producer = None


def _count(completed: list[Tracker]) -> None:
    """Count once for each poll, not for each append: metrics cost as much as a produce."""
    done = [tracker for tracker in completed if not tracker.errors]
    if not done:
        return
    _SECONDS.observe(time.perf_counter() - done[0].started)
    topics = Counter(position.topic for tracker in done for position in tracker.positions if position is not None)
    for topic, count in topics.items():
        APPENDED.labels("kafka", topic).inc(count)
