"""Putting one record into a producer's queue, and what to do when it does not know the record's partition yet."""

from __future__ import annotations

import contextlib
import time
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from headrace.model import NewRecord

__all__ = ["REFRESHES", "Placed", "is_about_partition", "produce", "refresh"]

Placed: TypeAlias = tuple[NewRecord, int]

REFRESHES = 20
_REFRESH_S = 5.0
_APPLY_S = 0.01


def produce(producer: Any, record: NewRecord, partition: int, on_delivery: Any) -> None:  # noqa: ANN401
    """Queue one record. Raises BufferError when the queue is full."""
    if not record.headers and record.timestamp_ms is None:
        producer.produce(record.topic, record.value, record.key, partition, on_delivery)
        return
    producer.produce(
        record.topic,
        record.value,
        record.key,
        partition,
        on_delivery,
        timestamp=record.timestamp_ms or 0,
        headers=list(record.headers),
    )


def is_about_partition(error: Any) -> bool:  # noqa: ANN401
    """Say whether a producer refused a partition that, as we know, is there: it was added a moment ago."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001


def refresh(client: Any) -> None:  # noqa: ANN401
    """Let a client learn about new partitions and leaders. Blocking; when it fails the next request says why."""
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=_REFRESH_S)
    time.sleep(_APPLY_S)  # the answer is ours before librdkafka has applied it to its own topics
