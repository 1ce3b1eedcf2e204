"""How transactions end. All of this blocks, and is run in the producer's thread."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from confluent_kafka import KafkaException

from headrace.log.kafka.driver_log import LOGGER
from headrace.log.kafka.faults import FATAL_TOLD, error_in
from headrace.log.kafka.standing import count_outcome

__all__ = ["abort_at_last", "commit_until", "deliver_all", "flush_and_abort"]

_RETRY_S = 0.05
_CLOSING_S = 5.0
_LANDING_S = 1.0
_FATALS = 3


def deliver_all(producer: Any, deadline: float) -> int:  # noqa: ANN401
    """Wait for the records of a transaction; returns how many are still on their way when the time is up."""
    for _ in range(_FATALS):
        with contextlib.suppress(*FATAL_TOLD):
            return int(producer.flush(max(0.001, deadline - time.monotonic())))
    return len(producer)


def commit_until(producer: Any, deadline: float) -> None:  # noqa: ANN401
    """Commit, again and again while it makes sense. Raises KafkaException."""
    while True:
        try:
            producer.commit_transaction(max(0.001, deadline - time.monotonic()))
            _hear(producer)
            return
        except KafkaException as failure:
            if not error_in(failure).retriable() or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)


def flush_and_abort(producer: Any, timeout_s: float) -> None:  # noqa: ANN401
    """Abort; what is on its way lands first, so that its offsets are settled when the abort returns."""
    deliver_all(producer, time.monotonic() + _LANDING_S)
    producer.abort_transaction(timeout_s)
    _hear(producer)


def _hear(producer: Any) -> None:  # noqa: ANN401
    """Let out what librdkafka has to tell about connections."""
    with contextlib.suppress(*FATAL_TOLD):
        producer.poll(0)


def abort_at_last(producer: Any, transactional_id: str) -> None:  # noqa: ANN401
    """Abort before the producer is closed; what can't be aborted now the brokers abort in time."""
    try:
        producer.abort_transaction(_CLOSING_S)
        count_outcome("aborted")
    except FATAL_TOLD as failure:
        LOGGER.warning("%s was closed before its transaction was aborted: %s", transactional_id, failure)
        count_outcome("failed")
