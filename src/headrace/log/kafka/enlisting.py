"""Putting records into an open transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from headrace.log.kafka.attempts import Attempt
from headrace.log.kafka.faults import FATAL_TOLD, error_in
from headrace.log.kafka.producing import REFRESHES, Placed, is_about_partition, produce, refresh
from headrace.log.kafka.threads import Threads

__all__ = ["enlist"]

_ROOM_S = 0.05


async def enlist(producer: Any, threads: Threads, attempt: Attempt, placed: Placed, *, flush_s: float) -> None:  # noqa: ANN401
    """Produce one record for `attempt`. Raises KafkaException, and the record is not part of it then."""
    record, partition = placed
    if attempt.needs_flush(record, partition):
        await threads.run(producer.flush, flush_s)
        attempt.flushed()
    index = attempt.add(record, partition)
    report = functools.partial(attempt.delivered, index, record)
    try:
        await _queue(producer, threads, placed, report)
    except FATAL_TOLD:
        attempt.drop_last(record, partition)
        raise


async def _queue(producer: Any, threads: Threads, placed: Placed, report: Callable[..., None]) -> None:  # noqa: ANN401
    """Produce when there is room, with a few more tries when the partition is new to the producer."""
    refreshed = 0
    while True:
        try:
            return produce(producer, *placed, report)
        except BufferError:
            await threads.run(producer.poll, _ROOM_S)
        except KafkaException as failure:
            if refreshed == REFRESHES or not is_about_partition(error_in(failure)):
                raise
            refreshed += 1
            await threads.run(refresh, producer)
