"""Checking a record against its topic, and choosing its partition, before anything is produced."""

from __future__ import annotations

import time

from headrace.errors import BadArgument, RecordTooLarge, TimestampTooFarAhead, UnknownPartition
from headrace.model import NewRecord, Topic, partition_of, size_of
from headrace.model.records import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES

__all__ = ["ANY_PARTITION", "Placer", "place"]

ANY_PARTITION = -1
_BYTES = (bytes, type(None))
_UTF8_BYTES_AT_MOST = 4


class Placer:
    """Places the records of one topic. What nearly every record is goes the short way; `place` has the last word."""

    __slots__ = ("_limit_bytes", "_partitions", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._limit_bytes = topic.config.max_record_bytes
        self._partitions = topic.partitions

    def latest_ms(self) -> int:
        """Return the latest timestamp that a record may have now."""
        return time.time_ns() // 1_000_000 + self.topic.config.timestamp_ahead_ms

    def place(self, record: NewRecord, *, latest_ms: int = 0) -> int:
        """Return what `place` returns. `latest_ms`, looked up once for many records, keeps those with a time quick."""
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

    The timestamp is held against this machine's clock: the broker has the last word, but it refuses a batch
    whole, and with it the records of others.
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
        raise BadArgument("timestamp_ms", timestamp_ms, "Kafka's producers know no time before 1 ms after 1970")
    if timestamp_ms > now_ms + topic.config.timestamp_ahead_ms:
        raise TimestampTooFarAhead(topic.name, timestamp_ms, topic.config.timestamp_ahead_ms)


def _given(partition: int, topic: Topic) -> int:
    if not 0 <= partition < topic.partitions:
        raise UnknownPartition(topic.name, partition, topic.partitions)
    return partition
