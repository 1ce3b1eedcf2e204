"""Transactions: a producer that owns a transactional id."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import (
    BadArgument,
    HeadraceError,
    NotOwner,
    TransactionFailed,
)
from headrace.log import checks
from headrace.log.kafka.append import RecordPlacement
from headrace.log.kafka.client import LOGGER, WHOLE_BATCH_BYTES, ConnectionBreaks, Threads
from headrace.log.kafka.deliveries import Placed
from headrace.log.kafka.faults import FATAL_RAISED, FENCED, NOT_OWNER, error_in
from headrace.log.kafka.groups import KafkaMember
from headrace.log.kafka.metadata import Cluster, TopicCache
from headrace.log.kafka.open_transaction import (
    Attempt,
    TransactionStage,
    TransactionState,
    abort_before_close,
    count_outcome,
    deliver_and_commit,
    flush_and_abort,
    produce_record,
    produce_some,
)
from headrace.log.kafka.read import RecentEnds
from headrace.log.metrics import APPENDED
from headrace.log.ports import Member
from headrace.log.transactions import SerialCalls
from headrace.model import NewRecord, Position, TopicPartition

__all__ = ["KafkaTransactional", "take_id"]

T = TypeVar("T")


async def take_id(
    cluster: Cluster, topic_cache: TopicCache, recent_ends: RecentEnds, transactional_id: str, *, timeout_s: float
) -> KafkaTransactional:
    """Take over an id: fence its earlier owners, abort what they left open."""
    if not transactional_id:
        raise BadArgument("transactional_id", transactional_id, "it must not be empty")
    if timeout_s <= 0:
        raise BadArgument("timeout_s", timeout_s, "it must be above 0")
    producer = KafkaTransactional(cluster, topic_cache, recent_ends, transactional_id, timeout_s)
    try:
        await producer.take()
    except BaseException:
        await producer.close()
        raise
    return producer


class KafkaTransactional:
    """Kafka's TransactionalProducer. Calls run one at a time, and to their end even if the caller is cancelled.

    Once a commit was not acknowledged, or a connection broke while a transaction ended, the producer is spent: a
    request that is still on its way could end its next transaction half-way.

    An open transaction is aborted here when its time is up, before the brokers would do it: they would fence the
    producer as well, and that would look like a take-over.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic_cache: TopicCache,
        recent_ends: RecentEnds,
        transactional_id: str,
        timeout_s: float,
    ) -> None:
        self.transactional_id = transactional_id
        self.on_close: Callable[[KafkaTransactional], None] = lambda _: None
        self._cluster = cluster
        self._placing = RecordPlacement(topic_cache)
        self._recent_ends = recent_ends
        self._timeout_s = timeout_s
        self._threads = Threads("transactions", count=1)
        config = cluster.configs.transactional(transactional_id, timeout_s=timeout_s, batch_bytes=WHOLE_BATCH_BYTES)
        self._breaks = ConnectionBreaks()
        self._producer = Producer(config, logger=self._breaks)
        self._calls = SerialCalls()
        self._state = TransactionState(transactional_id, timeout_s)
        self._attempt = Attempt()
        self._is_next_begun = False
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        """Fence the earlier owners."""
        try:
            await self._threads.run(_init_until, self._producer, time.monotonic() + self._cluster.request_timeout_s)
        except FATAL_RAISED as failure:
            error = error_in(failure)
            if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise BadArgument(
                    "timeout_s", self._timeout_s, "the brokers' transaction.max.timeout.ms is less"
                ) from failure
            raise self._named(error, "take over") from failure

    async def begin(self) -> None:
        """Open a transaction. A take-over that is not known yet shows at the first record's delivery."""
        if self._is_next_begun and self._calls.is_idle:
            self._open()
        else:
            await self._calls.run(self._begin)

    async def append(self, records: Sequence[NewRecord]) -> None:
        """Add records to the open transaction."""
        checked = checks.check_records(records)
        if not self._calls.is_idle:
            await self._calls.run(self._append, checked, 0)
        elif (at := self._append_now(checked)) < len(checked):
            await self._calls.run(self._append, checked, at)

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with the transaction."""
        await self._calls.run(self._commit_offsets, member, offsets)

    async def commit(self) -> Sequence[Position]:
        """Commit the transaction."""
        return await self._calls.run(self._commit)

    async def abort(self) -> None:
        """Abort the transaction."""
        await self._calls.run(self._abort)

    async def close(self) -> None:
        """Abort an open transaction and close the connection."""
        await self._calls.run(self._close)

    async def _begin(self) -> None:
        self._state.expect("begin", TransactionStage.READY)
        if not self._is_next_begun:
            await self._blocking("begin", self._producer.begin_transaction)
        self._open()

    def _open(self) -> None:
        self._state.expect("begin", TransactionStage.READY)
        self._is_next_begun = False
        self._state.state, self._attempt = TransactionStage.OPEN, Attempt()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, self._attempt)

    def _append_now(self, records: Sequence[NewRecord]) -> int:
        """Add records as long as nothing has to be waited for, as is usual; return how many were added."""
        self._state.expect("append", TransactionStage.OPEN)
        known = self._placing.place_known(records)
        if known is None:
            return 0
        topics, placed = known
        self._attempt.know(topics)
        return produce_some(self._producer, self._attempt, placed, 0)

    async def _append(self, records: Sequence[NewRecord], at: int) -> None:
        """Add records from `at` on."""
        self._state.expect("append", TransactionStage.OPEN)
        topics, placed = await self._placing.place(records)
        self._attempt.know(topics)
        while (at := produce_some(self._producer, self._attempt, placed, at)) < len(placed):
            await self._produce(placed[at])
            at += 1

    async def _produce(self, placed: Placed) -> None:
        timeout_s = self._cluster.request_timeout_s
        try:
            await produce_record(self._producer, self._threads, self._attempt, placed, flush_s=timeout_s)
        except FATAL_RAISED as failure:
            failed = self._named(error_in(failure), "append")
            raise failed from failed.__cause__ or failure

    async def _commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        self._state.expect("commit_offsets", TransactionStage.OPEN)
        if not isinstance(member, KafkaMember):
            raise BadArgument("member", member, "it must be a member of a group of this log")
        positions = member.positions_of(offsets)
        if not positions:
            return
        metadata = await self._threads.run(member.group_metadata)
        self._attempt.offsets_sent_s = self._attempt.offsets_sent_s or time.monotonic()
        send = functools.partial(
            self._producer.send_offsets_to_transaction, positions, metadata, self._cluster.request_timeout_s
        )
        await self._blocking(f"commit offsets of group {member.group!r}", send, group=member.group)

    async def _commit(self) -> list[Position]:
        if self._state.state is TransactionStage.EXPIRED:
            self._state.state = TransactionStage.READY
            raise self._state.expired()
        self._state.expect("commit", TransactionStage.OPEN)
        self._stop_timer()
        deadline = time.monotonic() + self._cluster.request_timeout_s
        await self._deliver_and_commit(deadline)
        self._recent_ends.ended(self._attempt.positions)
        for topic, count in self._attempt.records.items():
            APPENDED.labels("kafka", topic).inc(count)
        return self._attempt.positions

    async def _deliver_and_commit(self, deadline: float) -> None:
        """Wait for all records, send the commit, and wait for its answer.

        Raises, and aborts, if not all were delivered: the commit was not sent, and nothing can be committed. Whatever
        fails from there on, the commit may have been done: its answer can be lost, and an attempt that was sent before
        can have been done when the next one is refused. An abort does not show it either: librdkafka may answer it by
        renewing its epoch, which works after a commit too.
        """
        attempt = self._attempt
        try:
            left = await self._threads.run(deliver_and_commit, self._producer, attempt, deadline)
        except FATAL_RAISED as failure:
            error = error_in(failure)
            is_fenced = error.code() in FENCED
            reason = f"the commit was sent and not acknowledged: {error.str()}"
            self._state.spend(reason, fenced=is_fenced, commit_is_known=False)
            count_outcome("fenced" if is_fenced else "unknown")
            raise self._state.spent(outcome_known=False) from failure
        if attempt.commit_sent_s is None:
            await self._fail_undelivered(left)
        else:
            self._is_next_begun = attempt.is_next_begun
            self._ended(attempt.commit_sent_s)
            count_outcome("committed")

    async def _fail_undelivered(self, left: int) -> NoReturn:
        """Abort a transaction whose commit was not sent, and raise the reason."""
        failure, attempt = self._attempt.failure, self._attempt
        # After a refused record librdkafka has skipped sequence numbers, and fails the next transaction as well
        # before it renews its epoch; that one ends here too, with nothing done.
        await self._abort_quietly()
        count_outcome("failed")
        self._placing.forget(attempt.topics)  # another process may have re-configured it
        if attempt.refusal is not None:
            raise attempt.refusal
        late = f"{left} records were not delivered within {self._cluster.request_timeout_s:g} s"
        reason = failure.str() if failure is not None else late if left else "an earlier call of it failed"
        raise TransactionFailed(self.transactional_id, reason)

    async def _abort_quietly(self) -> None:
        """Abort for an error that is about to be raised; only a take-over is raised instead of it."""
        try:
            await self._abort_now()
        except TransactionFailed as failed:
            LOGGER.warning("%s", failed)

    async def _abort(self) -> None:
        if self._state.state is TransactionStage.EXPIRED:
            self._state.state = TransactionStage.READY
            return
        self._state.expect("abort", TransactionStage.OPEN)
        self._stop_timer()
        await self._abort_now()
        count_outcome("aborted")

    async def _abort_now(self) -> None:
        began_s = time.monotonic()
        abort = functools.partial(flush_and_abort, self._producer, self._cluster.request_timeout_s)
        try:
            await self._blocking("abort", abort)
        except HeadraceError:
            self._state.spend("its last abort was not acknowledged")
            raise
        self._ended(began_s)
        self._recent_ends.ended(self._attempt.landed)

    def _ended(self, began_s: float) -> None:
        """Note the end of a transaction, acknowledged to a request that was sent after `began_s`.

        When a connection broke meanwhile, that request may have been sent twice. The second one could arrive during the
        next transaction and end it half-way, because both have one epoch: so there is no next one.
        """
        self._state.state = TransactionStage.READY
        if self._breaks.since(self._attempt.offsets_sent_s or began_s):
            self._state.spend("a connection broke while its last transaction ended")

    def _expire(self, attempt: Attempt) -> None:
        self._calls.start(self._abort_expired, attempt)

    async def _abort_expired(self, attempt: Attempt) -> None:
        if self._state.state is not TransactionStage.OPEN or attempt is not self._attempt:
            return
        await self._abort_now()
        if not self._state.is_spent:
            self._state.state = TransactionStage.EXPIRED
        count_outcome("failed")

    async def _close(self) -> None:
        if self._state.state is TransactionStage.CLOSED:
            return
        self._stop_timer()
        is_open = self._state.state is TransactionStage.OPEN
        self._state.state = TransactionStage.CLOSED
        await self._threads.run(self._shut, is_open=is_open)
        await self._threads.join()
        self.on_close(self)

    def _shut(self, *, is_open: bool) -> None:
        """Abort and destroy, in the producer's thread."""
        if is_open:
            abort_before_close(self._producer, self.transactional_id)
        self._producer.purge()
        self._producer = None

    async def _blocking(self, operation: str, call: Callable[[], T], *, group: str | None = None) -> T:
        try:
            return await self._threads.run(call)
        except FATAL_RAISED as failure:
            self._attempt.is_broken = True
            error = error_in(failure)
            if group is not None and error.code() in NOT_OWNER:
                raise NotOwner(group, error.str()) from failure
            raise self._named(error, operation) from failure

    def _named(self, error: Any, operation: str) -> HeadraceError:  # noqa: ANN401
        """Return the error for a failed call other than the commit; in all of these nothing was committed."""
        if error.code() in FENCED:
            self._die("fenced", "", fenced=True)
            return self._state.spent(outcome_known=True)
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001
            self._die("failed", f"{operation}: {error.str()}")
            return self._state.spent(outcome_known=True)
        if self._state.state is TransactionStage.READY:
            what = f"{operation} transactional id {self.transactional_id!r}"
            return self._cluster.faults.of(error, what, timeout_s=self._cluster.request_timeout_s)
        failed = TransactionFailed(self.transactional_id, f"{operation}: {error.str()}")
        # Not raised itself: it is about a record that came before, not about those of this call.
        failed.__cause__ = self._attempt.refusal
        self._placing.forget(self._attempt.topics)
        return failed

    def _die(self, outcome: str, reason: str, *, fenced: bool = False) -> None:
        self._stop_timer()
        if self._state.state is not TransactionStage.SPENT:
            count_outcome(outcome)
        self._state.spend(reason, fenced=fenced)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_FIRST_SLICE_S = 0.05
_SLICE_FACTOR = 1.5
_LONGEST_SLICE_S = 1.0


def _slices_s() -> Iterator[float]:
    """Yield how long each call may take: short at first, longer for brokers that are slow."""
    slice_s = _FIRST_SLICE_S
    while True:
        yield slice_s
        slice_s = min(slice_s * _SLICE_FACTOR, _LONGEST_SLICE_S)


def _init_until(producer: Any, deadline: float) -> None:  # noqa: ANN401
    """Take the producer's id. Raises KafkaException when that is refused, or the deadline passes.

    It blocks, and is run in the producer's thread. librdkafka waits 500 ms before it asks again, whatever stood in the
    way: the coordinator was not known yet, or the last owner's transaction had to be aborted first, which takes a few
    milliseconds. A call of `init_transactions` that timed out goes on in the background, and calling it again makes the
    client ask at once, unless a request is on its way. So short calls of one and the same producer take the id about as
    fast as the brokers can give it. A second producer would not do: what the first one still has on its way could fence
    it.
    """
    for slice_s in _slices_s():
        left_s = deadline - time.monotonic()
        try:
            producer.init_transactions(max(0.001, min(slice_s, left_s)))
            return
        except KafkaException as failure:
            if not error_in(failure).retriable() or time.monotonic() >= deadline:
                raise
