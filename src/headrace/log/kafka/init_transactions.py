"""Taking a transactional id without librdkafka's pauses. It blocks, and is run in the producer's thread.

librdkafka waits 500 ms before it asks again, whatever stood in the way: the coordinator was not known yet, or the
last owner's transaction had to be aborted first, which takes a few milliseconds. A call of `init_transactions` that
timed out goes on in the background, and calling it again makes the client ask at once, unless a request is on its way.
So short calls of one and the same producer take the id about as fast as the brokers can give it. A second producer
would not do: what the first one still has on its way could fence it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaException

from headrace.log.kafka.faults import error_in

__all__ = ["init_until", "slices_s"]

_FIRST_S = 0.05
_FACTOR = 1.5
_LONGEST_S = 1.0


def slices_s() -> Iterator[float]:
    """Yield how long each call may take: short at first, longer for brokers that are slow."""
    slice_s = _FIRST_S
    while True:
        yield slice_s
        slice_s = min(slice_s * _FACTOR, _LONGEST_S)


def init_until(producer: Any, deadline: float) -> None:  # noqa: ANN401
    """Take the producer's id. Raises KafkaException when that is refused, or the deadline passes."""
    for slice_s in slices_s():
        left_s = deadline - time.monotonic()
        try:
            producer.init_transactions(max(0.001, min(slice_s, left_s)))
            return
        except KafkaException as failure:
            if not error_in(failure).retriable() or time.monotonic() >= deadline:
                raise
