"""Reads of one partition: its bounds, the offset of a time, and batches from an offset up to an end."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any

import confluent_kafka
import msgspec
from confluent_kafka import IsolationLevel, KafkaError
from confluent_kafka.admin import OffsetSpec

from headrace.errors import OffsetOutOfRange, TimedOut, UnreadableRecord
from headrace.log import checks
from headrace.log.kafka.consumers import ConsumerPool, PooledConsumer
from headrace.log.kafka.metadata import Cluster, TopicCache
from headrace.log.metrics import FETCHED, FETCHES
from headrace.model import Batch, Bounds, Position, Record, TopicPartition

__all__ = [
    "PartitionRead",
    "RecentEnds",
    "count_batch",
    "find_bounds",
    "find_offset_at",
    "is_retried_by_driver",
    "out_of_range",
    "record_of",
]

_ASK_AGAIN_S = 0.002
_SETTLE_S = 0.2
_NONE_YET = -1  # the brokers' answer when no record is that young


async def find_bounds(cluster: Cluster, at: TopicPartition) -> Bounds:
    """Ask for the start, the last stable offset and the high watermark, together."""
    start, end, high = await asyncio.gather(
        _offset(cluster, at, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
        _offset(cluster, at, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
        _offset(cluster, at, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    )
    # The three answers are from three moments: keep them in order.
    return Bounds(start, max(start, end), max(start, end, high))


class RecentEnds:
    """The ends of this process' own transactions, kept until readers can see them.

    A commit returns before the brokers have written its markers to the partitions. Bounds that are asked for right
    after it would not include what was just committed, so `bounds` waits for the markers and a commit does not.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: dict[TopicPartition, int] = {}

    def ended(self, positions: Iterable[Position]) -> None:
        """Remember a transaction that was just committed or aborted."""
        for topic, partition, offset, _ in positions:
            at = TopicPartition(topic, partition)
            self._ends[at] = max(offset, self._ends.get(at, -1))

    async def bounds(self, at: TopicPartition) -> Bounds:
        """Return the bounds; ask again for a while if they don't include a transaction that ended in this process.

        If another open transaction keeps them back for longer, they are returned as they are.
        """
        bounds = await find_bounds(self._cluster, at)
        last = self._ends.pop(at, -1)
        deadline = time.monotonic() + _SETTLE_S
        while bounds.end <= last < bounds.high_watermark and time.monotonic() < deadline:
            await asyncio.sleep(_ASK_AGAIN_S)
            bounds = await find_bounds(self._cluster, at)
        return bounds


async def find_offset_at(cluster: Cluster, at: TopicPartition, timestamp_ms: int) -> int | None:
    """Ask for the lowest offset whose timestamp is not below."""
    spec = OffsetSpec.for_timestamp(timestamp_ms)
    offset = await _offset(cluster, at, spec, IsolationLevel.READ_COMMITTED, none_yet=_NONE_YET)
    return offset if offset >= 0 else None


async def _offset(
    cluster: Cluster,
    at: TopicPartition,
    spec: Any,  # noqa: ANN401
    isolation: Any,  # noqa: ANN401
    *,
    none_yet: int = 0,
) -> int:
    """Ask for an offset. Raises Unavailable if no broker gives one.

    While a partition's leader is away, librdkafka answers without an error and without an offset. If that were taken
    for an offset, the partition would look empty, and readers would miss its records. `none_yet` is the lowest
    answer that is an offset.
    """
    where = confluent_kafka.TopicPartition(at.topic, at.partition)
    answer = await cluster.ask(
        f"list offsets of {at}",
        cluster.client.list_offsets,
        {where: spec},
        topic=at.topic,
        is_answer=lambda found: found.offset >= none_yet,
        isolation_level=isolation,
    )
    return int(answer.offset)


# How long one poll blocks its thread, and so the longest that cancelling and closing wait.
_POLL_S = 0.1

# The driver returns headers that it failed to decode together with an error, and a plain call of its method does not
# look for one: the error would be raised by some later, unrelated call. Calling it this way does look.
_headers_of = operator.methodcaller("headers")


def record_of(message: Any, *, headers_only: bool = False) -> Record:  # noqa: ANN401
    """Return a message of the driver as a record. Raises UnreadableRecord if the name of a header is no UTF-8.

    The driver reports it once; asked again it returns a list with a NULL item, which no code may touch.
    """
    try:
        headers = _headers_of(message)
    except (SystemError, UnicodeDecodeError) as error:
        at = (message.topic(), message.partition(), message.offset())
        raise UnreadableRecord(*at, "the name of a header is no UTF-8") from error
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        None if headers_only else message.value(),
        tuple(headers) if headers else (),
    )


class Read(msgspec.Struct, frozen=True):
    """The arguments of one read."""

    at: TopicPartition
    start: int
    end: int | None
    headers_only: bool
    max_records: int
    timeout_s: float


class PartitionRead:
    """Reads of a log."""

    def __init__(self, cluster: Cluster, topic_cache: TopicCache, pool: ConsumerPool) -> None:
        self._cluster = cluster
        self._topic_cache = topic_cache
        self._pool = pool

    async def check(self, wanted: Read) -> None:
        """Refuse what can't be read. Raises Closed, BadArgument, UnknownTopic, UnknownPartition."""
        self._pool.check_open()
        _check(wanted)
        await self._topic_cache.check(wanted.at)

    async def read(self, wanted: Read) -> AsyncGenerator[Batch, None]:
        """Yield batches up to an end, at least one for each move of the position."""
        await self.check(wanted)
        if wanted.start == wanted.end:
            await self._check_start(wanted)
            return
        consumer = self._pool.lend()
        try:
            await consumer.threads.run(consumer.seek, wanted.at, wanted.start)
            async for batch in self._batches(consumer, wanted):
                yield batch
        finally:
            self._pool.give_back(consumer)

    async def _check_start(self, wanted: Read) -> None:
        """Refuse a start that is out of range if there is nothing to fetch; otherwise the broker refuses it."""
        bounds = await find_bounds(self._cluster, wanted.at)
        if not bounds.start <= wanted.start <= bounds.high_watermark:
            raise out_of_range(wanted.at, wanted.start, bounds)

    async def _batches(self, consumer: PooledConsumer, wanted: Read) -> AsyncIterator[Batch]:
        loop = asyncio.get_running_loop()
        position, moved_at, is_sure = wanted.start, loop.time(), False
        while wanted.end is None or position < wanted.end:
            self._pool.check_open()
            fetched = await consumer.threads.run(_fetch, consumer, wanted, position)
            self._pool.check_open()
            if not is_sure and fetched.batch.next_offset > position:
                is_sure = True
                if _begins_with_gap(fetched.batch, position):
                    await consumer.threads.run(consumer.seek, wanted.at, wanted.start)
                    continue
            if fetched.batch.next_offset > position:
                position = fetched.batch.next_offset
                count_batch(wanted.at.topic, fetched.batch)
                yield fetched.batch
                moved_at = loop.time()
            if fetched.error is not None and (wanted.end is None or position < wanted.end):
                await self._raise(fetched.error, wanted, position)
            if wanted.end is not None and loop.time() - moved_at >= wanted.timeout_s:
                raise TimedOut(f"reading {wanted.at} from {position} to {wanted.end}", wanted.timeout_s)

    async def _raise(self, error: Any, wanted: Read, position: int) -> None:  # noqa: ANN401
        """Raise an error that ends the read; librdkafka retries after all others."""
        at = wanted.at
        if isinstance(error, UnreadableRecord):
            raise error
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise out_of_range(at, position, await find_bounds(self._cluster, at))
        if is_retried_by_driver(error):
            return
        self._topic_cache.forget(at.topic)
        raise self._cluster.faults.of(error, f"read {at}", timeout_s=wanted.timeout_s, topic=at.topic)


_RETRIED = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
    }
)


def is_retried_by_driver(error: Any) -> bool:  # noqa: ANN401
    """Return True if librdkafka retries after this error automatically."""
    return bool(error.retriable()) or error.code() in _RETRIED


class Fetched(msgspec.Struct, frozen=True):
    """What one poll brought: the batch before the first error, and that error."""

    batch: Batch
    error: Any


def _fetch(consumer: PooledConsumer, wanted: Read, position: int) -> Fetched:
    """Take messages and make a batch of them; runs in the consumer's thread."""
    return gather(consumer.take(wanted.max_records, _POLL_S), wanted, position)


def gather(messages: Sequence[Any], wanted: Read, position: int) -> Fetched:
    """Make a batch of messages. The end-of-partition event carries the position past what readers never see."""
    records: list[Record] = []
    for message in messages:
        error = message.error()
        if _is_of_another(message, error, wanted.at):
            continue
        if error is None:
            if wanted.end is not None and message.offset() >= wanted.end:
                return Fetched(Batch(records, max(position, wanted.end)), None)
            try:
                records.append(record_of(message, headers_only=wanted.headers_only))
            except UnreadableRecord as unreadable:
                return Fetched(Batch(records, position), unreadable)
            position = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            position = max(position, message.offset())
        else:
            return Fetched(Batch(records, position), error)
    return Fetched(Batch(records, position), None)


def _is_of_another(message: Any, error: Any, at: TopicPartition) -> bool:  # noqa: ANN401
    """Return True if a message belongs to the partition that the consumer read before."""
    is_here = message.partition() == at.partition and message.topic() == at.topic
    return not is_here and (error is None or error.code() == KafkaError._PARTITION_EOF)  # noqa: SLF001


def _begins_with_gap(batch: Batch, start: int) -> bool:
    """Return True if a read begins with offsets that readers never see: aborted, control or compacted records.

    The read then seeks again, because messages that a re-used consumer still had queued, of its last partition or of
    another offset in this one, look the same and would hide records.
    """
    first = batch.records[0].offset if batch.records else batch.next_offset
    return first > start


def count_batch(topic: str, batch: Batch) -> None:
    """Count the records of a batch."""
    FETCHES.labels("kafka", topic).inc()
    FETCHED.labels("kafka", topic).inc(len(batch.records))


def out_of_range(at: TopicPartition, offset: int, bounds: Bounds) -> OffsetOutOfRange:
    """Return the error of an offset that a partition does not hold."""
    return OffsetOutOfRange(at.topic, at.partition, offset, bounds.start, bounds.high_watermark)


def _check(wanted: Read) -> None:
    checks.check_place(wanted.at)
    checks.check_read(
        wanted.start,
        wanted.end,
        headers_only=wanted.headers_only,
        max_records=wanted.max_records,
        timeout_s=wanted.timeout_s,
    )
