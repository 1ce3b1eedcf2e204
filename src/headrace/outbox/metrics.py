"""What the outbox counts."""

from __future__ import annotations

from headrace.observe import counter, gauge

__all__ = [
    "ASYNC_FAILURES",
    "DEAD",
    "INSERTED",
    "LEASES_LOST",
    "PENDING_COUNT",
    "PENDING_MAX_WAIT",
    "PROCESSED",
    "SEND_ERRORS",
    "SUPERSEDED",
]

INSERTED = counter("outbox", "inserted_messages", "Messages written to kafka_messages, rolled back or not.", ["topic"])
PROCESSED = counter("outbox", "processed_messages", "Messages sent, or superseded by one that was.", ["topic"])
SUPERSEDED = counter("outbox", "superseded_messages", "Messages of compacted topics that were not sent.", ["topic"])
DEAD = counter("outbox", "dead_messages", "Messages moved to kafka_dead_messages.", ["topic"])
SEND_ERRORS = counter("outbox", "send_errors", "Turns that ended with an error of the log.", ["topic"])
LEASES_LOST = counter("outbox", "leases_lost", "Leases that were taken over while in use.", ["topic"])
ASYNC_FAILURES = counter("outbox", "async_failures", "Messages of kafka_async that were not acknowledged.", ["topic"])
PENDING_COUNT = gauge("outbox", "pending_db_messages", "count", "Messages that wait to be sent.", ["topic"])
PENDING_MAX_WAIT = gauge(
    "outbox", "pending_db_messages_max_wait", "seconds", "Age of the oldest message that waits.", ["topic"]
)
