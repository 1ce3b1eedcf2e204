"""Transactions: one producer that owns a transactional id."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NoReturn, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import (
    BadArgument,
    Closed,
    Fenced,
    HeadraceError,
    NotOwner,
    TransactionFailed,
    TransactionMisused,
)
from headrace.log.kafka.attempts import Attempt
from headrace.log.kafka.catalogue import Catalogue
from headrace.log.kafka.clients import LOGGER, WHOLE_BATCH_BYTES
from headrace.log.kafka.cluster import Cluster
from headrace.log.kafka.faults import FENCED, NOT_OWNER, error_in
from headrace.log.kafka.members import KafkaMember
from headrace.log.kafka.offsets import Settling
from headrace.log.kafka.producers import Placing
from headrace.log.kafka.producing import REFRESHES, Placed, is_about_partition, produce, refresh
from headrace.log.kafka.threads import Threads
from headrace.log.metrics import APPENDED, TRANSACTIONS
from headrace.log.ports import Member
from headrace.model import NewRecord, Position, TopicPartition

__all__ = ["KafkaTransactional", "take_id"]

T = TypeVar("T")

_ROOM_S = 0.05
_RETRY_S = 0.05
_CLOSING_S = 5.0
_LANDING_S = 1.0


class State(Enum):
    """Where a producer stands between two calls."""

    READY = auto()
    OPEN = auto()
    EXPIRED = auto()  # aborted because it was open for too long; its owner does not know yet
    UNSETTLED = auto()  # a commit ran out of time; only another commit can tell
    ABORTING = auto()  # an abort ran out of time; it comes before anything else
    DEAD = auto()
    CLOSED = auto()


async def take_id(
    cluster: Cluster, catalogue: Catalogue, settling: Settling, transactional_id: str, *, timeout_s: float
) -> KafkaTransactional:
    """Take over an id: fence its earlier owners, abort what they left open."""
    if not transactional_id:
        raise BadArgument("transactional_id", transactional_id, "it must not be empty")
    if timeout_s <= 0:
        raise BadArgument("timeout_s", timeout_s, "it must be above 0")
    producer = KafkaTransactional(cluster, catalogue, settling, transactional_id, timeout_s)
    try:
        await producer.take()
    except BaseException:
        await producer.close()
        raise
    return producer


class KafkaTransactional:
    """Kafka's TransactionalProducer. Calls take turns; one that began goes to its end even if its caller leaves.

    An open transaction is aborted here when its time is up, before the brokers would do it: they would fence the
    producer as well, and it could not be told from a take-over.
    """

    def __init__(
        self, cluster: Cluster, catalogue: Catalogue, settling: Settling, transactional_id: str, timeout_s: float
    ) -> None:
        self.transactional_id = transactional_id
        self.on_close: Callable[[KafkaTransactional], None] = lambda _: None
        self._cluster = cluster
        self._placing = Placing(catalogue)
        self._settling = settling
        self._timeout_s = timeout_s
        self._threads = Threads("transactions", count=1)
        config = cluster.configs.transactional(transactional_id, timeout_s=timeout_s, batch_bytes=WHOLE_BATCH_BYTES)
        self._producer = Producer(config, logger=LOGGER)
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._state = State.READY
        self._attempt = Attempt()
        self._timer: asyncio.TimerHandle | None = None
        self._was_fenced = False

    async def take(self) -> None:
        """Fence the earlier owners."""
        try:
            await self._threads.run(self._producer.init_transactions, self._cluster.request_timeout_s)
        except KafkaException as failure:
            error = error_in(failure)
            if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise BadArgument(
                    "timeout_s", self._timeout_s, "the brokers' transaction.max.timeout.ms is less"
                ) from failure
            raise self._named(error, "take over") from failure

    async def begin(self) -> None:
        """Open a transaction. A take-over that nobody told us about shows at the first record's delivery."""
        await self._whole(self._begin())

    async def append(self, records: Sequence[NewRecord]) -> None:
        """Add records to the open transaction."""
        await self._whole(self._append(records))

    async def commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with the transaction."""
        await self._whole(self._commit_offsets(member, offsets))

    async def commit(self) -> Sequence[Position]:
        """Make it visible. After an unknown outcome it may be called again, to learn the outcome."""
        return await self._whole(self._commit())

    async def abort(self) -> None:
        """Drop it."""
        await self._whole(self._abort())

    async def close(self) -> None:
        """Abort what is open and let go of the connection."""
        await self._whole(self._close())

    async def _whole(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end whatever happens to the caller, so that the state stays true."""
        task = asyncio.ensure_future(call)
        self._running.add(task)
        task.add_done_callback(self._ran)
        return await asyncio.shield(task)

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it when the caller is gone

    async def _begin(self) -> None:
        async with self._turn:
            if self._state is State.ABORTING:
                await self._abort_now()
            self._expect("begin", State.READY)
            await self._blocking("begin", self._producer.begin_transaction)
            self._state, self._attempt = State.OPEN, Attempt()
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, self._attempt)

    async def _append(self, records: Sequence[NewRecord]) -> None:
        async with self._turn:
            self._expect("append", State.OPEN)
            topics, placed = await self._placing.place(records)
            self._attempt.know(topics)
            for each in placed:
                await self._produce(each)

    async def _produce(self, placed: Placed) -> None:
        record, partition = placed
        if self._attempt.needs_flush(record, partition):
            await self._threads.run(self._producer.flush, self._cluster.request_timeout_s)
            self._attempt.flushed()
        index = self._attempt.add(record, partition)
        report = functools.partial(self._attempt.delivered, index, record)
        try:
            await self._queue(placed, report)
        except KafkaException as failure:
            self._attempt.drop_last(record, partition)
            raise self._named(error_in(failure), "append") from failure

    async def _queue(self, placed: Placed, report: Callable[..., None]) -> None:
        """Produce when there is room, with a few more tries when the partition is new to the producer."""
        refreshed = 0
        while True:
            try:
                return produce(self._producer, *placed, report)
            except BufferError:
                await self._threads.run(self._producer.poll, _ROOM_S)
            except KafkaException as failure:
                if refreshed == REFRESHES or not is_about_partition(error_in(failure)):
                    raise
                refreshed += 1
                await self._threads.run(refresh, self._producer)

    async def _commit_offsets(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        async with self._turn:
            self._expect("commit_offsets", State.OPEN)
            if not isinstance(member, KafkaMember):
                raise BadArgument("member", member, "it must be a member of a group of this log")
            positions = member.positions_of(offsets)
            if not positions:
                return
            metadata = await self._threads.run(member.group_metadata)
            send = functools.partial(
                self._producer.send_offsets_to_transaction, positions, metadata, self._cluster.request_timeout_s
            )
            await self._blocking(f"commit offsets of group {member.group!r}", send, group=member.group)

    async def _commit(self) -> list[Position]:
        async with self._turn:
            if self._state is State.EXPIRED:
                self._state = State.READY
                raise self._expired()
            self._expect("commit", State.OPEN, State.UNSETTLED)
            self._stop_timer()
            self._state = State.UNSETTLED
            try:
                await self._threads.run(self._commit_until, time.monotonic() + self._cluster.request_timeout_s)
            except KafkaException as failure:
                await self._not_committed(failure)
            self._ended("committed")
            self._settling.ended(self._attempt.positions)
            for topic, count in self._attempt.records.items():
                APPENDED.labels("kafka", topic).inc(count)
            return self._attempt.positions

    def _commit_until(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(0.001, deadline - time.monotonic()))
                return
            except KafkaException as failure:
                if not error_in(failure).retriable() or time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)

    async def _not_committed(self, failure: KafkaException) -> NoReturn:
        """Raise what a failed commit means, having aborted what can be aborted."""
        error = error_in(failure)
        if error.txn_requires_abort():
            # Whether the abort gets through or not: a transaction in this state was not committed and never will be.
            # After a refused record librdkafka has skipped sequence numbers, and fails the next transaction as well
            # before it renews its epoch; that one ends here too, with nothing done.
            refusal = self._attempt.refusal
            await self._abort_after(failure)
            raise refusal or TransactionFailed(self.transactional_id, error.str()) from failure
        if error.code() in FENCED or error.fatal():
            raise self._named(error, "commit") from failure
        TRANSACTIONS.labels("kafka", "unknown").inc()
        raise TransactionFailed(self.transactional_id, error.str(), outcome_known=False) from failure

    async def _abort_after(self, failure: KafkaException) -> None:
        try:
            await self._abort_now()
        except TransactionFailed as late:
            LOGGER.warning("%s; it will be aborted before the next one begins (after: %s)", late, failure)
        self._count("failed")

    async def _abort(self) -> None:
        async with self._turn:
            if self._state is State.EXPIRED:
                self._state = State.READY
                return
            self._expect("abort", State.OPEN, State.ABORTING)
            self._stop_timer()
            await self._abort_now()
            self._count("aborted")

    async def _abort_now(self) -> None:
        self._state = State.ABORTING
        await self._blocking("abort", self._flush_and_abort)
        self._state = State.READY
        self._settling.ended(self._attempt.landed)

    def _flush_and_abort(self) -> None:
        """Abort; what is on its way lands first, so that its offsets are settled when the abort returns."""
        self._producer.flush(_LANDING_S)
        self._producer.abort_transaction(self._cluster.request_timeout_s)

    def _expire(self, attempt: Attempt) -> None:
        task = asyncio.ensure_future(self._abort_expired(attempt))
        self._running.add(task)
        task.add_done_callback(self._ran)

    async def _abort_expired(self, attempt: Attempt) -> None:
        async with self._turn:
            if self._state is not State.OPEN or attempt is not self._attempt:
                return
            await self._abort_now()
            self._state = State.EXPIRED
            self._count("failed")

    async def _close(self) -> None:
        async with self._turn:
            if self._state is State.CLOSED:
                return
            self._stop_timer()
            is_open = self._state in {State.OPEN, State.ABORTING}
            self._state = State.CLOSED
            await self._threads.run(self._shut, is_open=is_open)
            await self._threads.join()
            self.on_close(self)

    def _shut(self, *, is_open: bool) -> None:
        """Abort and destroy, in the producer's thread; what can't be aborted now the brokers abort in time."""
        if is_open:
            try:
                self._producer.abort_transaction(_CLOSING_S)
                self._count("aborted")
            except KafkaException as failure:
                LOGGER.warning("%s was closed before its transaction was aborted: %s", self.transactional_id, failure)
                self._count("failed")
        self._producer.purge()
        self._producer = None

    async def _blocking(self, operation: str, call: Callable[[], T], *, group: str | None = None) -> T:
        try:
            return await self._threads.run(call)
        except KafkaException as failure:
            error = error_in(failure)
            if group is not None and error.code() in NOT_OWNER:
                raise NotOwner(group, error.str()) from failure
            raise self._named(error, operation) from failure

    def _named(self, error: Any, operation: str) -> HeadraceError:  # noqa: ANN401
        """Return the error for what is not a refused commit; in all of these nothing was committed."""
        if error.code() in FENCED:
            self._die("fenced")
            return Fenced(self.transactional_id)
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001
            self._die("failed")
            return TransactionFailed(self.transactional_id, f"{error.str()}; take the id again")
        if self._state is State.READY:
            what = f"{operation} transactional id {self.transactional_id!r}"
            return self._cluster.faults.of(error, what, timeout_s=self._cluster.request_timeout_s)
        if self._attempt.refusal is not None:
            return self._attempt.refusal
        return TransactionFailed(self.transactional_id, f"{operation}: {error.str()}")

    def _die(self, outcome: str) -> None:
        self._stop_timer()
        if self._state is not State.DEAD:
            self._count(outcome)
        self._state = State.DEAD
        self._was_fenced = outcome == "fenced"

    def _expect(self, call: str, *states: State) -> None:
        """Raise what is wrong with `call` now."""
        if self._state in states:
            return
        if self._state is State.CLOSED:
            raise Closed(f"transactional producer {self.transactional_id!r}")
        if self._state is State.DEAD:
            raise self._dead()
        if self._state is State.EXPIRED and call != "begin":
            raise self._expired()
        raise TransactionMisused(self.transactional_id, f"{call} {_PROBLEMS[self._state]}")

    def _dead(self) -> HeadraceError:
        if self._was_fenced:
            return Fenced(self.transactional_id)
        return TransactionMisused(self.transactional_id, "this producer has failed for good; take the id again")

    def _expired(self) -> TransactionFailed:
        reason = f"it was open for longer than its {self._timeout_s:g} s and was aborted"
        return TransactionFailed(self.transactional_id, reason)

    def _ended(self, outcome: str) -> None:
        self._state = State.READY
        self._count(outcome)

    def _count(self, outcome: str) -> None:
        TRANSACTIONS.labels("kafka", outcome).inc()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_PROBLEMS = {
    State.READY: "without a transaction; begin one first",
    State.OPEN: "while a transaction is open; commit or abort it first",
    State.EXPIRED: "while a transaction is open; commit or abort it first",
    State.UNSETTLED: "while the outcome of a commit is not known; commit again to learn it, or take the id again",
    State.ABORTING: "after a failed transaction that is not aborted yet; abort it, or begin the next one",
}
