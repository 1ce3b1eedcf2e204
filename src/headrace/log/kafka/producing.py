"""Records into a producer's queue, what to do when it does not know their partition yet, and the last flush."""

from __future__ import annotations

import contextlib
import time
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from headrace.model import NewRecord

__all__ = ["REFRESHES", "Placed", "flush", "is_about_partition", "produce", "refresh"]

Placed: TypeAlias = tuple[NewRecord, int]

REFRESHES = 20
_REFRESH_S = 5.0
_APPLY_S = 0.01
# Longer than the brokers need to elect another leader, shorter than an operator's patience.
_STALLED_S = 5.0
_LOOK_EVERY_S = 0.1


def produce(producer: Any, record: NewRecord, partition: int, on_delivery: Any) -> None:  # noqa: ANN401
    """Queue one record. Raises BufferError when the queue is full."""
    if not record.headers and record.timestamp_ms is None:
        producer.produce(record.topic, record.value, record.key, partition, on_delivery)
        return
    # By position: names cost a fifth of the call. The one left out is another name of `on_delivery`.
    timestamp_ms = record.timestamp_ms or 0
    producer.produce(
        record.topic, record.value, record.key, partition, on_delivery, None, timestamp_ms, list(record.headers)
    )


def is_about_partition(error: Any) -> bool:  # noqa: ANN401
    """Say whether a producer refused a partition that, as we know, is there: it was added a moment ago."""
    return bool(error.code() == KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001


def refresh(client: Any, timeout_s: float = _REFRESH_S) -> None:  # noqa: ANN401
    """Let a client learn about new partitions and leaders. Blocking; when it fails the next request says why."""
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=timeout_s)
    time.sleep(_APPLY_S)  # the answer is ours before librdkafka has applied it to its own topics


def flush(producer: Any, timeout_s: float) -> bool:  # noqa: ANN401
    """Wait until all is delivered; returns whether it is. Blocking.

    Gives up when time is up, and before that when nothing was delivered for a while: nobody is there to take it.
    """
    deadline = time.monotonic() + timeout_s
    left, stalled_at = len(producer), time.monotonic() + _STALLED_S
    while left and time.monotonic() < min(deadline, stalled_at):
        now_left = producer.flush(_LOOK_EVERY_S)
        if now_left < left:
            left, stalled_at = now_left, time.monotonic() + _STALLED_S
    return not left
