"""Appends outside of transactions: records are checked, get a partition, and go to the producer for their topic."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from confluent_kafka import KafkaError

from headrace.errors import (
    BadArgument,
    HeadraceError,
    OperationFailed,
    RecordTooLarge,
    TimestampTooFarAhead,
    UnknownPartition,
    Unreachable,
)
from headrace.log.kafka.client import WHOLE_BATCH_BYTES
from headrace.log.kafka.deliveries import DeliveryFailed, Placed
from headrace.log.kafka.faults import PURGED, TIMED_OUT, closed_first
from headrace.log.kafka.metadata import Cluster, TopicCache
from headrace.log.kafka.producer import Appender
from headrace.model import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    NewRecord,
    Position,
    Topic,
    partition_of,
    size_of,
)

__all__ = ["ANY_PARTITION", "Placer", "Producers", "RecordPlacement", "batch_bytes_of", "place", "refusal_of"]

ANY_PARTITION = -1
_BYTES = (bytes, type(None))
_UTF8_BYTES_AT_MOST = 4


class Placer:
    """Places the records of one topic. The common case is decided here; all others go to the function `place`."""

    __slots__ = ("_limit_bytes", "_partitions", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._limit_bytes = topic.config.max_record_bytes
        self._partitions = topic.partitions

    def latest_ms(self) -> int:
        """Return the latest timestamp that a record may have now."""
        return time.time_ns() // 1_000_000 + self.topic.config.timestamp_ahead_ms

    def place(self, record: NewRecord, *, latest_ms: int = 0) -> int:
        """Return the record's partition, as the function `place` does; many records can share one `latest_ms`."""
        key, value, timestamp_ms = record.key, record.value, record.timestamp_ms
        if type(key) is not bytes or type(value) is not bytes:
            return place(record, self.topic)
        size_bytes = RECORD_OVERHEAD_BYTES + len(key) + len(value)
        for name, content in record.headers:
            size_bytes += _UTF8_BYTES_AT_MOST * len(name) + len(content or b"") + HEADER_OVERHEAD_BYTES
        if size_bytes > self._limit_bytes or (timestamp_ms is not None and not 0 < timestamp_ms <= latest_ms):
            return place(record, self.topic)
        if record.partition is None:
            return partition_of(key, self._partitions)
        return record.partition if 0 <= record.partition < self._partitions else place(record, self.topic)


def place(record: NewRecord, topic: Topic) -> int:
    """Return the record's partition, ANY_PARTITION where the driver may choose.

    The timestamp is compared with this machine's clock. The broker checks it too, but refuses a whole batch, and
    with it the records of others.
    """
    config, key = topic.config, record.key
    if not (isinstance(key, _BYTES) and isinstance(record.value, _BYTES)):
        raise _not_bytes(record)
    if key is None and config.cleanup.compacts:
        raise BadArgument("key", None, f"topic {topic.name!r} is compacted, and only a key can be replaced")
    size_bytes = size_of(record)
    if size_bytes > config.max_record_bytes:
        raise RecordTooLarge(topic.name, size_bytes, config.max_record_bytes)
    if record.timestamp_ms is not None:
        _check_timestamp(record.timestamp_ms, topic, time.time_ns() // 1_000_000)
    if record.partition is not None:
        return _given(record.partition, topic)
    return ANY_PARTITION if key is None else partition_of(key, topic.partitions)


def _not_bytes(record: NewRecord) -> BadArgument:
    name, value = ("value", record.value) if isinstance(record.key, _BYTES) else ("key", record.key)
    return BadArgument(f"{name} of a record for topic {record.topic!r}", value, "it must be bytes or None")


def _check_timestamp(timestamp_ms: int, topic: Topic, now_ms: int) -> None:
    if timestamp_ms < 1:
        raise BadArgument("timestamp_ms", timestamp_ms, "Kafka's producers take no timestamp below 1 ms")
    if timestamp_ms > now_ms + topic.config.timestamp_ahead_ms:
        raise TimestampTooFarAhead(topic.name, timestamp_ms, topic.config.timestamp_ahead_ms)


def _given(partition: int, topic: Topic) -> int:
    if not 0 <= partition < topic.partitions:
        raise UnknownPartition(topic.name, partition, topic.partitions)
    return partition


_FAST_PATHS_KEPT = 10_000


def batch_bytes_of(topic: Topic) -> int:
    """Return the size limit of batches for the topic: a broker refuses a whole batch that is above the topic's limit.

    Small limits are rounded down to a power of two, so that there are few kinds of producers.
    """
    limit = topic.config.max_record_bytes
    return WHOLE_BATCH_BYTES if limit >= WHOLE_BATCH_BYTES else 1 << (limit.bit_length() - 1)


def refusal_of(error: object, record: NewRecord, topic: Topic | None) -> HeadraceError | None:
    """Return the error for a single record that the broker refused; None for any other error."""
    code = error.code()  # type: ignore[attr-defined]  # the driver has no types
    if code == KafkaError.INVALID_TIMESTAMP:
        bound_ms = topic.config.timestamp_ahead_ms if topic else 0
        return TimestampTooFarAhead(record.topic, record.timestamp_ms, bound_ms)
    if code in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}:
        return RecordTooLarge(record.topic, size_of(record), topic.config.max_record_bytes if topic else 0)
    if code == KafkaError.INVALID_RECORD:
        return BadArgument(f"record for topic {record.topic!r}", record.key, "the broker refuses this record")
    return None


class RecordPlacement:
    """Checks all records against their topics and gives each a partition, before anything is produced."""

    def __init__(self, topic_cache: TopicCache) -> None:
        self._topic_cache = topic_cache

    async def place(self, records: Sequence[NewRecord]) -> tuple[Mapping[str, Topic], list[Placed]]:
        """Return the topics of the records, and the records with their partitions."""
        topics = {name: await self._topic_cache.get(name) for name in {record.topic for record in records}}
        if len(topics) == 1:
            return topics, _place_all(records, topics[records[0].topic])
        return topics, _place_mixed(records, topics)

    def place_known(self, records: Sequence[NewRecord]) -> tuple[Mapping[str, Topic], list[Placed]] | None:
        """Return what `place` does if no broker has to be asked for it; None otherwise."""
        topics: dict[str, Topic] = {}
        for name in {record.topic for record in records}:
            topic = self._topic_cache.fresh(name)
            if topic is None:
                return None
            topics[name] = topic
        return topics, _place_mixed(records, topics)

    def forget(self, topics: Iterable[str]) -> None:
        """Forget these topics: a broker refused what their cached descriptions allow."""
        for topic in topics:
            self._topic_cache.forget(topic)


def _place_all(records: Sequence[NewRecord], topic: Topic) -> list[Placed]:
    placer = Placer(topic)
    place_one, latest_ms = placer.place, placer.latest_ms()
    return [(record, place_one(record, latest_ms=latest_ms)) for record in records]


def _place_mixed(records: Sequence[NewRecord], topics: Mapping[str, Topic]) -> list[Placed]:
    placers = {name: Placer(topic) for name, topic in topics.items()}
    latest_ms = {name: placer.latest_ms() for name, placer in placers.items()}
    return [(each, placers[each.topic].place(each, latest_ms=latest_ms[each.topic])) for each in records]


class _FastPath(NamedTuple):
    placer: Placer
    appender: Appender


class _Turns:
    """The appends that wait for a description of their topics, in the order in which they began.

    Without it an append that begins when the description has just come would overtake those that still wait for it.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[_Turn]] = {}

    def is_free(self, topics: Set[str]) -> bool:
        """Return True if no append to one of these topics waits."""
        return self._queues.keys().isdisjoint(topics)

    def begin(self, topics: Set[str]) -> _Turn:
        """Queue an append behind those to its topics that wait already."""
        turn = _Turn(topics, asyncio.get_running_loop().create_future())
        for topic in topics:
            self._queues.setdefault(topic, deque()).append(turn)
        self._come(turn)
        return turn

    def end(self, turn: _Turn) -> None:
        """Let the next ones go on: the append was produced, or failed, or was cancelled."""
        for topic in turn.topics:
            queue = self._queues[topic]
            queue.remove(turn)
            if queue:
                self._come(queue[0])
            else:
                del self._queues[topic]

    def _come(self, turn: _Turn) -> None:
        if not turn.has_come.done() and all(self._queues[topic][0] is turn for topic in turn.topics):
            turn.has_come.set_result(None)


class _Turn(NamedTuple):
    topics: Set[str]
    has_come: asyncio.Future[None]


class Producers:
    """The log's appenders, one for each size of batch."""

    def __init__(
        self,
        cluster: Cluster,
        topic_cache: TopicCache,
        *,
        delivery_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._topic_cache = topic_cache
        self._faults = cluster.faults
        self._delivery_timeout_s = delivery_timeout_s
        self._placing = RecordPlacement(topic_cache)
        self._turns = _Turns()
        self._fast_paths: dict[str, _FastPath] = {}
        self._appenders: dict[int, Appender] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def append(self, records: Sequence[NewRecord]) -> Awaitable[list[Position]]:
        """Start writing records. The returned awaitable gives their positions or raises DeliveryFailed.

        This is not a coroutine: one record for a known topic must be fast, and needs only a future.
        """
        if len(records) != 1:
            return self._append(records)
        record = records[0]
        topic = self._topic_cache.fresh(record.topic)
        if topic is None or not self._turns.is_free({record.topic}):
            return self._append(records)
        fast_path = self._fast_paths.get(record.topic)
        if fast_path is None or fast_path.placer.topic is not topic or fast_path.appender.is_dead:
            fast_path = self._fast_path(topic)
        return fast_path.appender.append_one(record, fast_path.placer.place(record))

    async def close(self, timeout_s: float) -> None:
        """Flush and close all producers."""
        self._is_closed = True
        await asyncio.gather(*(appender.close(timeout_s) for appender in self._appenders.values()), *self._retired)

    def _fast_path(self, topic: Topic) -> _FastPath:
        """Remember what appends of single records to a topic need, until its description changes."""
        if len(self._fast_paths) >= _FAST_PATHS_KEPT:
            self._fast_paths.clear()
        fast_path = self._fast_paths[topic.name] = _FastPath(Placer(topic), self._appender(batch_bytes_of(topic)))
        return fast_path

    async def _append(self, records: Sequence[NewRecord]) -> list[Position]:
        names = {record.topic for record in records}
        if self._turns.is_free(names) and all(self._topic_cache.fresh(name) is not None for name in names):
            return await self._spread(*await self._placing.place(records))
        turn = self._turns.begin(names)
        try:
            topics, placed = await self._placing.place(records)
            await turn.has_come
            delivered = self._spread(topics, placed)
        finally:
            self._turns.end(turn)
        return await delivered

    def _spread(self, topics: Mapping[str, Topic], placed: list[Placed]) -> Awaitable[list[Position]]:
        """Give each producer its records, at once; nearly always there is one producer."""
        sizes = {name: batch_bytes_of(topic) for name, topic in topics.items()}
        if len(set(sizes.values())) == 1:
            return self._appender(next(iter(sizes.values()))).append(placed)
        parts: dict[int, list[int]] = {}
        for index, (record, _) in enumerate(placed):
            parts.setdefault(sizes[record.topic], []).append(index)
        deliveries = [self._appender(size).append([placed[index] for index in part]) for size, part in parts.items()]
        return _delivered(list(parts.values()), deliveries)

    def _appender(self, batch_bytes: int) -> Appender:
        """Return the producer for batches of a size; one that failed for good is replaced, and closed meanwhile."""
        appender = self._appenders.get(batch_bytes)
        if appender is not None and appender.is_dead:
            closing = asyncio.ensure_future(self._appenders.pop(batch_bytes).close(self._delivery_timeout_s))
            self._retired.add(closing)
            closing.add_done_callback(self._retired.discard)
            appender = None
        if appender is None:
            config = self._cluster.configs.producer(batch_bytes=batch_bytes)
            appender = Appender(config, self._faults.address, self._cluster.threads)
            self._appenders[batch_bytes] = appender
        return appender

    async def named(self, failure: DeliveryFailed) -> HeadraceError:
        """Return the error to raise for a record that was not delivered."""
        topic = failure.record.topic
        refusal = refusal_of(failure.error, failure.record, self._topic_cache.fresh(topic))
        self._topic_cache.forget(topic)  # another process may have deleted, grown or re-configured it
        if refusal is not None:
            return refusal
        if failure.error.code() == KafkaError._DESTROY:  # noqa: SLF001 - its partition was taken away
            return await self._gone(topic)
        if failure.error.code() in PURGED and self._is_closed:
            return closed_first(topic)
        if failure.brokers_down and failure.error.code() not in PURGED:
            return Unreachable(self._faults.address, failure.error.str(), outcome_known=False)
        return self._faults.of(
            TIMED_OUT if failure.error.code() in PURGED else failure.error,  # purged with a producer that was replaced
            f"append to topic {topic!r}",
            timeout_s=self._delivery_timeout_s,
            topic=topic,
            outcome_known=False,
        )

    async def _gone(self, topic: str) -> HeadraceError:
        """Return the error for a topic whose partition disappeared during an append."""
        try:
            await self._topic_cache.get(topic)
        except HeadraceError as error:
            return error
        return OperationFailed(f"append to topic {topic!r}", "its partition was replaced", outcome_known=False)


async def _delivered(parts: list[list[int]], deliveries: list[asyncio.Future[list[Position]]]) -> list[Position]:
    """Put the positions back into the order of the records; the first failure is raised once all have settled."""
    landed: dict[int, Position] = {}
    for part, result in zip(parts, await asyncio.gather(*deliveries, return_exceptions=True), strict=True):
        if isinstance(result, BaseException):
            raise result
        landed.update(zip(part, result, strict=True))
    return [landed[index] for index in sorted(landed)]
