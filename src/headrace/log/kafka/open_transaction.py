"""One transaction of a producer: its state, the records put into it, their deliveries, and its end."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, cast

from confluent_kafka import KafkaException

from headrace.errors import Closed, Fenced, HeadraceError, TransactionFailed, TransactionMisused
from headrace.log.kafka.append import refusal_of
from headrace.log.kafka.client import LOGGER, WHOLE_BATCH_BYTES, Threads
from headrace.log.kafka.deliveries import REFRESHES, Placed, is_about_partition, produce, refresh
from headrace.log.kafka.faults import FATAL_RAISED, NO_OFFSET, error_in, whole
from headrace.log.metrics import TRANSACTIONS
from headrace.model import NewRecord, Position, Topic, size_of

__all__ = [
    "Attempt",
    "TransactionStage",
    "TransactionState",
    "abort_before_close",
    "commit_until",
    "count_outcome",
    "deliver_all",
    "deliver_and_commit",
    "flush_and_abort",
    "produce_record",
    "produce_some",
]


class TransactionStage(Enum):
    """The state of a producer between two calls."""

    READY = auto()
    OPEN = auto()
    EXPIRED = auto()  # aborted because it was open for too long; its owner has not been informed yet
    SPENT = auto()  # never to be used again
    CLOSED = auto()


def count_outcome(outcome: str) -> None:
    """Count how a transaction ended."""
    TRANSACTIONS.labels("kafka", outcome).inc()


class TransactionState:
    """The state of one producer, and the errors for calls that don't fit it."""

    def __init__(self, transactional_id: str, timeout_s: float) -> None:
        self.state = TransactionStage.READY
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._reason = ""
        self._was_fenced = False
        self._commit_is_known = True

    @property
    def is_spent(self) -> bool:
        """True if the producer must not be used again."""
        return self.state is TransactionStage.SPENT

    def expect(self, call: str, *states: TransactionStage) -> None:
        """Raise the error for `call` unless the producer is in one of the states."""
        if self.state in states:
            return
        if self.state is TransactionStage.CLOSED:
            raise Closed(f"transactional producer {self._transactional_id!r}")
        if self.state is TransactionStage.SPENT:
            raise self.spent(outcome_known=self._commit_is_known or call != "commit")
        if self.state is TransactionStage.EXPIRED and call != "begin":
            raise self.expired()
        raise TransactionMisused(self._transactional_id, f"{call} {_PROBLEMS[self.state]}")

    def spend(self, reason: str, *, fenced: bool = False, commit_is_known: bool = True) -> None:
        """Note that the producer must not be used again, and why; the first reason counts."""
        if self.state is TransactionStage.SPENT:
            return
        self.state = TransactionStage.SPENT
        self._reason, self._was_fenced, self._commit_is_known = reason, fenced, commit_is_known

    def spent(self, *, outcome_known: bool) -> HeadraceError:
        """Return the error for calls on a producer that must not be used again."""
        if self._was_fenced:
            return Fenced(self._transactional_id, outcome_known)
        return TransactionFailed(self._transactional_id, f"{self._reason}; take the id again", outcome_known)

    def expired(self) -> TransactionFailed:
        """Return the error for the owner of a transaction that was open for too long."""
        reason = f"it was open for longer than its {self._timeout_s:g} s and was aborted"
        return TransactionFailed(self._transactional_id, reason)


_PROBLEMS = {
    TransactionStage.READY: "without a transaction; begin one first",
    TransactionStage.OPEN: "while a transaction is open; commit or abort it first",
    TransactionStage.EXPIRED: "while a transaction is open; commit or abort it first",
}


class Attempt:
    """The records of one transaction, with their positions and errors.

    Deliveries arrive in the producer's thread, records on the event loop."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.records: Counter[str] = Counter()
        self.is_broken = False  # a call of this transaction failed: the driver will not commit it
        self.offsets_sent_s: float | None = None
        self.commit_sent_s: float | None = None
        self.is_next_begun = False
        self._positions: list[Position | None] = []
        self._failure: Any = None
        self._refusal: HeadraceError | None = None
        self._queued_bytes: Counter[tuple[str, int]] = Counter()
        self._small: set[str] = set()

    @property
    def positions(self) -> list[Position]:
        """Where the records landed, once all are delivered."""
        return cast("list[Position]", self._positions)

    @property
    def landed(self) -> list[Position]:
        """Where those records landed that are delivered."""
        return [position for position in self._positions if position is not None]

    @property
    def refusal(self) -> HeadraceError | None:
        """The error for the first record that a broker refused, if there was one."""
        return self._refusal

    @property
    def failure(self) -> Any:  # noqa: ANN401 - the driver has no types
        """The driver's error for the first record that was not delivered, if there was one."""
        return self._failure

    def know(self, topics: Mapping[str, Topic]) -> None:
        """Keep the descriptions of the topics that records will go to."""
        self.topics.update(topics)
        self._small = {name for name, topic in self.topics.items() if topic.config.max_record_bytes < WHOLE_BATCH_BYTES}

    def add(self, record: NewRecord, partition: int) -> int:
        """Count a record that is about to be produced; returns its index in the transaction."""
        self.records[record.topic] += 1
        if self._is_small(record):
            self._queued_bytes[record.topic, partition] += size_of(record)
        self._positions.append(None)
        return len(self._positions) - 1

    def drop_last(self, record: NewRecord, partition: int) -> None:
        """Take back the last `add`: the record could not be queued."""
        self.records[record.topic] -= 1
        if self._is_small(record):
            self._queued_bytes[record.topic, partition] -= size_of(record)
        self._positions.pop()

    def needs_flush(self, record: NewRecord, partition: int) -> bool:
        """Return True if this record could make a batch larger than its topic takes.

        A transactional id has one producer, so the batches of topics with small limits are kept small by sending
        what is queued, instead of by another producer.
        """
        if not self._is_small(record):
            return False
        queued = self._queued_bytes[record.topic, partition]
        return queued > 0 and queued + size_of(record) > self.topics[record.topic].config.max_record_bytes

    def flushed(self) -> None:
        """Note that nothing is queued any more."""
        self._queued_bytes.clear()

    def delivered(self, index: int, record: NewRecord, error: Any, message: Any) -> None:  # noqa: ANN401
        """Take the driver's report on one record."""
        if error is None:
            offset = message.offset()
            if offset >= 0:
                self._positions[index] = Position(record.topic, message.partition(), offset, message.timestamp()[1])
                return
            error = NO_OFFSET
        self._failure = self._failure or error
        if self._refusal is None:
            self._refusal = refusal_of(error, record, self.topics.get(record.topic))

    def _is_small(self, record: NewRecord) -> bool:
        return record.topic in self._small


_QUEUE_FULL_S = 0.05


def produce_some(producer: Any, attempt: Attempt, placed: Sequence[Placed], start: int) -> int:  # noqa: ANN401
    """Add records from `start` on, as long as nothing has to be waited for; return the index of the one that is next.

    Most transactions are added here in one go. What a record has to wait for, `produce_record` finds out.
    """
    for at in range(start, len(placed)):
        record, partition = placed[at]
        if attempt.needs_flush(record, partition):
            return at
        report = functools.partial(attempt.delivered, attempt.add(record, partition), record)
        try:
            produce(producer, record, partition, report)
        except (BufferError, *FATAL_RAISED):
            attempt.drop_last(record, partition)
            return at
    return len(placed)


async def produce_record(producer: Any, threads: Threads, attempt: Attempt, placed: Placed, *, flush_s: float) -> None:  # noqa: ANN401
    """Add one record to the transaction. If this raises KafkaException, the record is not part of it."""
    record, partition = placed
    if attempt.needs_flush(record, partition):
        await threads.run(producer.flush, flush_s)
        attempt.flushed()
    index = attempt.add(record, partition)
    report = functools.partial(attempt.delivered, index, record)
    try:
        await _queue(producer, threads, placed, report)
    except FATAL_RAISED:
        attempt.drop_last(record, partition)
        raise


async def _queue(producer: Any, threads: Threads, placed: Placed, report: Callable[..., None]) -> None:  # noqa: ANN401
    """Produce when the queue has room; refresh and retry a few times if the partition is new to the producer."""
    refreshed = 0
    while True:
        try:
            return produce(producer, *placed, report)
        except BufferError:
            await threads.run(producer.poll, _QUEUE_FULL_S)
        except KafkaException as failure:
            if refreshed == REFRESHES or not is_about_partition(error_in(failure)):
                raise
            refreshed += 1
            await threads.run(refresh, producer)


_RETRY_S = 0.05
# A commit is resumed only if at least this much time is left. A driver without the time to begin forgets that it is
# committing, takes the late answer for that of an abort, and ends the process.
_LEAST_TO_RESUME_S = 0.5
_CLOSING_S = 5.0
_LANDING_S = 1.0
_FATALS = 3


def deliver_all(producer: Any, deadline: float) -> int:  # noqa: ANN401
    """Wait for the records of a transaction; returns how many are still on their way when the time is up."""
    for _ in range(_FATALS):
        with contextlib.suppress(*FATAL_RAISED):
            return int(whole(producer.flush, max(0.001, deadline - time.monotonic())))
    return len(producer)


def commit_until(producer: Any, deadline: float) -> None:  # noqa: ANN401
    """Commit; resume while the error is retriable and there is time for it. Raises KafkaException."""
    while True:
        try:
            whole(producer.commit_transaction, max(0.001, deadline - time.monotonic()))
            _serve_log_lines(producer)
            return
        except KafkaException as failure:
            if not error_in(failure).retriable() or deadline - time.monotonic() < _LEAST_TO_RESUME_S + _RETRY_S:
                raise
            time.sleep(_RETRY_S)


def deliver_and_commit(producer: Any, attempt: Attempt, deadline: float) -> int:  # noqa: ANN401
    """Wait for the records, and commit if all were delivered; returns how many are still on their way.

    Nothing was committed if some are, or if the attempt failed. Raises what the commit raises.
    """
    left = deliver_all(producer, deadline)
    if left or attempt.failure is not None or attempt.is_broken:
        return left
    attempt.commit_sent_s = time.monotonic()
    commit_until(producer, deadline)
    attempt.is_next_begun = _begin_next(producer)
    return 0


def _begin_next(producer: Any) -> bool:  # noqa: ANN401
    """Begin the next transaction, so that nobody has to wait for this thread then.

    The brokers hear of a transaction with its first record, so one that is not used costs nothing. If this fails, the
    next `begin` tries again, and says why.
    """
    with contextlib.suppress(*FATAL_RAISED):
        whole(producer.begin_transaction)
        return True
    return False


def flush_and_abort(producer: Any, timeout_s: float) -> None:  # noqa: ANN401
    """Deliver what is queued, then abort, so that the offsets of the aborted records are known."""
    deliver_all(producer, time.monotonic() + _LANDING_S)
    whole(producer.abort_transaction, timeout_s)
    _serve_log_lines(producer)


def _serve_log_lines(producer: Any) -> None:  # noqa: ANN401
    """Let librdkafka report broken connections, which it does from `poll`."""
    with contextlib.suppress(*FATAL_RAISED):
        whole(producer.poll, 0)


def abort_before_close(producer: Any, transactional_id: str) -> None:  # noqa: ANN401
    """Abort before the producer is closed; if that fails, the brokers abort after the transaction's time-out."""
    try:
        whole(producer.abort_transaction, _CLOSING_S)
        count_outcome("aborted")
    except FATAL_RAISED as failure:
        LOGGER.warning("%s was closed before its transaction was aborted: %s", transactional_id, failure)
        count_outcome("failed")
