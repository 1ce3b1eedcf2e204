"""The values that all rooms use: events, records, positions in the log, topics, and the partition of a key.

Promises: values only. Nothing here does I/O, keeps state, or imports a driver.
"""

from headrace.model.events import MAX_SEQ_NR, Event, Payload, StoredEvent
from headrace.model.partitioner import murmur2, partition_of
from headrace.model.records import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Batch,
    Bounds,
    Headers,
    NewRecord,
    Position,
    Record,
    RecordColumns,
    SoundRecords,
    TopicPartition,
    size_of,
)
from headrace.model.tokens import ConsistencyToken, TokenPlace, WrittenPosition, combine_tokens
from headrace.model.topics import Cleanup, Topic, TopicConfig, check_topic_name

__all__ = [
    "HEADER_OVERHEAD_BYTES",
    "MAX_SEQ_NR",
    "RECORD_OVERHEAD_BYTES",
    "Batch",
    "Bounds",
    "Cleanup",
    "ConsistencyToken",
    "Event",
    "Headers",
    "NewRecord",
    "Payload",
    "Position",
    "Record",
    "RecordColumns",
    "SoundRecords",
    "StoredEvent",
    "TokenPlace",
    "Topic",
    "TopicConfig",
    "TopicPartition",
    "WrittenPosition",
    "check_topic_name",
    "combine_tokens",
    "murmur2",
    "partition_of",
    "size_of",
]
