"""Checking a record against its topic, and choosing its partition, before anything is produced."""

from __future__ import annotations

from headrace.errors import BadArgument, RecordTooLarge, TimestampTooFarAhead, UnknownPartition
from headrace.model import NewRecord, Topic, partition_of, size_of

__all__ = ["ANY_PARTITION", "place"]

ANY_PARTITION = -1


def place(record: NewRecord, topic: Topic, *, now_ms: int) -> int:
    """Return the record's partition, ANY_PARTITION where the driver may choose.

    The timestamp is held against this machine's clock: the broker has the last word, but it refuses a batch
    whole, and with it the records of others.
    """
    _check_bytes(record)
    size_bytes = size_of(record)
    if size_bytes > topic.config.max_record_bytes:
        raise RecordTooLarge(topic.name, size_bytes, topic.config.max_record_bytes)
    if record.timestamp_ms is not None:
        _check_timestamp(record.timestamp_ms, topic, now_ms)
    if record.partition is not None:
        return _given(record.partition, topic)
    return ANY_PARTITION if record.key is None else partition_of(record.key, topic.partitions)


def _check_bytes(record: NewRecord) -> None:
    for name, part in (("key", record.key), ("value", record.value)):
        if part is not None and not isinstance(part, bytes):
            raise BadArgument(f"{name} of a record for topic {record.topic!r}", part, "it must be bytes or None")


def _check_timestamp(timestamp_ms: int, topic: Topic, now_ms: int) -> None:
    if timestamp_ms < 1:
        raise BadArgument("timestamp_ms", timestamp_ms, "Kafka's producers know no time before 1 ms after 1970")
    if timestamp_ms > now_ms + topic.config.timestamp_ahead_ms:
        raise TimestampTooFarAhead(topic.name, timestamp_ms, topic.config.timestamp_ahead_ms)


def _given(partition: int, topic: Topic) -> int:
    if not 0 <= partition < topic.partitions:
        raise UnknownPartition(topic.name, partition, topic.partitions)
    return partition
