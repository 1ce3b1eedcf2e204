"""Checking a record against its topic, and choosing its partition, before anything is produced."""

from __future__ import annotations

import time

from headrace.errors import BadArgument, RecordTooLarge, TimestampTooFarAhead, UnknownPartition
from headrace.model import NewRecord, Topic, partition_of, size_of

__all__ = ["ANY_PARTITION", "place"]

ANY_PARTITION = -1
_BYTES = (bytes, type(None))


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
