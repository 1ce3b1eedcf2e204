"""A producer and its queue of appends.

Appends made in one turn of the event loop are produced together at its end, or when they are as large as a few batches.
So a burst makes a few large batches instead of many small ones, each of which would cost the brokers a request, and the
driver sends the first batch while others are still being made.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import Closed
from headrace.log.kafka.client import DRIVER_LOG, LOGGER, Threads
from headrace.log.kafka.deliveries import (
    REFRESHES,
    Append,
    ManyRecords,
    OneRecord,
    Placed,
    flush,
    is_about_partition,
    refresh,
)
from headrace.log.kafka.faults import TIMED_OUT, closed_first, error_in
from headrace.log.kafka.polling import Landed, Poller
from headrace.log.metrics import APPEND_SECONDS, APPENDED
from headrace.model import NewRecord, Position

__all__ = ["Appender"]

_SECONDS = APPEND_SECONDS.labels("kafka")
_ROOM_S = 0.05
_BURST_BYTES = 256 * 1024
_ANSWER_S = 5.0


class Appender:
    """An idempotent producer that many appends share; they are produced in the order in which they came."""

    def __init__(self, config: dict[str, Any], address: str, threads: Threads) -> None:
        self._address = address
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._producer = Producer({**config, "error_cb": self._on_error}, logger=DRIVER_LOG)
        self._waiting: deque[Append] = deque()
        self._landed = Landed()
        self._waiting_bytes = 0
        self._is_scheduled = False
        self._is_blocked = False
        self._room: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._brokers_down = False
        self._timed_out_at_s: float | None = None
        self._is_checking = False
        self.is_dead = False
        self._poller = Poller(
            self._producer,
            self._landed,
            self._settle,
            waits_for_room=lambda: self._room is not None,
            on_fatal=self._die,
        )

    def append_one(self, record: NewRecord, partition: int) -> asyncio.Future[list[Position]]:
        """Start appending a record; the returned future may raise DeliveryFailed."""
        future: asyncio.Future[list[Position]] = self._loop.create_future()
        self._enqueue(OneRecord(record, partition, future, self._landed), len(record.value or b""))
        return future

    def append(self, placed: Sequence[Placed]) -> asyncio.Future[list[Position]]:
        """Start appending records, in their order; the returned future may raise DeliveryFailed."""
        future: asyncio.Future[list[Position]] = self._loop.create_future()
        self._enqueue(ManyRecords(placed, future, self._landed), 0)
        return future

    async def close(self, timeout_s: float) -> None:
        """Flush while the brokers accept records, drop the rest, and end the thread."""
        self._produce_waiting()
        self._is_stopped = True
        self._poller.stop()
        for append in self._waiting:
            if not append.future.done():
                append.future.set_exception(closed_first(append.topic) if append.is_begun else self._closed())
        self._waiting.clear()
        await self._threads.run(self._shut, timeout_s)

    def _enqueue(self, append: Append, size_bytes: int) -> None:
        if self._is_stopped:
            raise self._closed()
        self._waiting.append(append)
        self._waiting_bytes += size_bytes
        if self._is_blocked:
            return
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_turn)
        elif self._waiting_bytes >= _BURST_BYTES:
            self._produce_waiting()

    def _end_turn(self) -> None:
        self._is_scheduled = False
        if not self._is_blocked:
            self._produce_waiting()

    def _produce_waiting(self) -> None:
        """Produce from the front of the queue. If one append must wait, all after it wait too, to keep their order."""
        self._stop_waiting_for_room()
        waiting, produced = self._waiting, 0
        self._is_blocked, self._waiting_bytes = True, 0
        while waiting:
            append = waiting[0]
            try:
                if append.future.done():
                    pass  # cancelled before its turn
                elif append.produce(self._producer):
                    produced += 1
                else:
                    self._settle([append])
            except Exception as failure:
                if self._must_wait(append, failure):
                    break
                produced += self._end(append, failure)
            waiting.popleft()
        else:
            self._is_blocked = False
        self._poller.expect(produced)

    def _must_wait(self, append: Append, failure: Exception) -> bool:
        """Arrange another try of an append that was not produced; returns False if it failed."""
        if isinstance(failure, BufferError):
            self._room = self._loop.call_later(_ROOM_S, self._produce_waiting)
            return True
        if not isinstance(failure, KafkaException) or not is_about_partition(error_in(failure)):
            return False
        append.refreshes += 1
        if append.refreshes <= REFRESHES:
            self._threads.start(refresh, self._producer).add_done_callback(lambda _: self._produce_waiting())
        return append.refreshes <= REFRESHES

    def _end(self, append: Append, failure: Exception) -> bool:
        """Fail an append at one record; returns True if others of its records are on their way."""
        if not isinstance(failure, KafkaException):
            append.future.set_exception(failure)
            return False
        is_on_its_way = append.refuse(error_in(failure))
        if not is_on_its_way:
            append.settle(self._brokers_down)
        return is_on_its_way

    def _stop_waiting_for_room(self) -> None:
        if self._room is not None:
            self._room.cancel()
            self._room = None

    def _die(self) -> None:
        self.is_dead = True

    def _on_error(self, error: Any) -> None:  # noqa: ANN401
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._brokers_down = True
        self.is_dead = self.is_dead or error.fatal()

    def _settle(self, landed: list[Append]) -> None:
        failed = [append.error for append in landed if append.error is not None]
        self.is_dead = self.is_dead or any(error.fatal() for error in failed)
        if len(failed) < len(landed):
            self._brokers_down, self._timed_out_at_s = False, None
        elif failed:
            self._look_for_time_outs(landed)
        brokers_down = self._brokers_down
        for append in landed:
            append.settle(brokers_down)
        _count(landed if not failed else [append for append in landed if append.error is None])
        if self._room is not None:
            self._produce_waiting()

    def _look_for_time_outs(self, failed: list[Append]) -> None:
        """Find out if the producer is stuck: an append timed out that was made after the last time-out."""
        started = [append.started for append in failed if append.error.code() == TIMED_OUT.code()]
        if not started or self.is_dead or self._is_stopped:
            return
        if self._timed_out_at_s is None:
            self._timed_out_at_s = time.perf_counter()
        elif max(started) > self._timed_out_at_s and not self._is_checking:
            self._is_checking = True
            self._threads.start(_answers, self._producer).add_done_callback(self._retire_if_stuck)

    def _retire_if_stuck(self, answers: asyncio.Future[bool]) -> None:
        """Let another producer replace this one if brokers answer it and yet nothing is delivered.

        The driver's idempotent producers can stay in such a state, for instance when their epochs are used up. What is
        still queued fails now: if it were delivered later, it would come after appends of the next producer.
        """
        self._is_checking = False
        is_answered = not answers.cancelled() and answers.exception() is None and answers.result()
        if not is_answered or self._timed_out_at_s is None or self._is_stopped:
            return
        LOGGER.warning("appends to %s time out though it answers; their producer is replaced", self._address)
        self.is_dead = True
        self._stop_waiting_for_room()
        while self._waiting:
            append = self._waiting.popleft()
            if not append.future.done() and not append.refuse(TIMED_OUT):
                append.settle(self._brokers_down)
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _shut(self, timeout_s: float) -> None:
        self._poller.join()
        if not flush(self._producer, timeout_s):
            self._producer.purge()
            self._producer.flush(1)
        self._poller.hand_over()
        self._producer = None

    def _closed(self) -> Closed:
        return Closed(f"log {self._address}")


def _answers(producer: Any) -> bool:  # noqa: ANN401
    """Return True if a broker answers this producer. Blocks."""
    try:
        producer.list_topics(timeout=_ANSWER_S)
    except KafkaException:
        return False
    return True


def _count(done: list[Append]) -> None:
    """Count once for each poll, not for each append: a metric costs as much as producing a record."""
    if not done:
        return
    _SECONDS.observe(time.perf_counter() - done[0].started)
    counts: dict[str, int] = {}
    for append in done:
        if type(append) is OneRecord:  # without a call
            topic = append.record.topic
            counts[topic] = counts.get(topic, 0) + 1
        else:
            append.count(counts)
    for topic, count in counts.items():
        APPENDED.labels("kafka", topic).inc(count)
