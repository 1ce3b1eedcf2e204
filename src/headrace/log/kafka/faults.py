"""The translation of librdkafka's error codes into our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import Closed, Forbidden, HeadraceError, OperationFailed, TimedOut, UnknownTopic, Unreachable

__all__ = [
    "FATAL_RAISED",
    "FENCED",
    "NOT_OWNER",
    "PURGED",
    "STALE_LEADER",
    "TIMED_OUT",
    "UNKNOWN_TOPIC",
    "Faults",
    "closed_first",
    "error_in",
    "whole",
]

P = ParamSpec("P")
T = TypeVar("T")

UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's local codes are spelt like this
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
# What `poll` and `flush` raise, once, when the client has failed for good. The driver may lose the exception and raise
# SystemError instead. Every later call on the client raises the fatal error itself.
FATAL_RAISED = (KafkaException, SystemError)
_LOST_FATAL = KafkaError(KafkaError._FATAL, "the client has failed for good")  # noqa: SLF001
FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
NOT_OWNER = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
    }
)
# Nothing was done, and a refresh of the metadata fixes it: the client's view of the leaders is old, or the broker
# has become a leader a moment ago.
STALE_LEADER = frozenset(
    {
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - never sent
        KafkaError._NOENT,  # noqa: SLF001 - no leader at all: the broker is back, but not in office yet
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - the address it began with gave way to the broker's own
    }
)
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
    }
)
_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_TIMED_OUT = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
    }
)
# A duplicate of a record that is so old that the broker does not know its offset any more.
NO_OFFSET = KafkaError(KafkaError._NO_OFFSET, "it was delivered, and the broker does not say where")  # noqa: SLF001
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001
# No answer: a requested change may have been made.
UNANSWERED = (_UNREACHABLE | _TIMED_OUT) - STALE_LEADER - {KafkaError._RESOLVE}  # noqa: SLF001
# Dropped by a close. Records that wait for a retry are in the queue too, so a dropped record may be in the log.
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


def error_in(exception: BaseException) -> Any:  # noqa: ANN401 - the driver has no types
    """Return the KafkaError that a KafkaException carries, or the fatal one that the driver lost."""
    return exception.args[0] if isinstance(exception, KafkaException) else _LOST_FATAL


class _Bare:
    """Catches a KafkaError that is raised itself."""

    error: KafkaError | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if isinstance(error, KafkaError):
            self.error = error
        return self.error is not None


def whole(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the driver; what it raises is an exception. Raises KafkaException, SystemError.

    When a client fails for good while it serves callbacks, the driver may raise the KafkaError itself, which is no
    exception: it passes `except BaseException` and ends its thread, and whoever waits for the call waits forever.
    """
    bare = _Bare()
    with bare:
        return call(*args, **kwargs)
    raise KafkaException(bare.error)


def closed_first(topic: str) -> OperationFailed:
    """Return the error of an append that was interrupted by a close."""
    return OperationFailed(
        f"append to topic {topic!r}", "the log was closed before the brokers acknowledged it", outcome_known=False
    )


class Faults:
    """Names errors for one cluster."""

    def __init__(self, address: str) -> None:
        self.address = address

    def of(
        self,
        error: Any,  # noqa: ANN401
        operation: str,
        *,
        timeout_s: float,
        topic: str | None = None,
        outcome_known: bool = True,
    ) -> HeadraceError:
        """Return the error to raise for `error`, met in `operation`."""
        code = error.code()
        if code in UNKNOWN_TOPIC and topic is not None:
            return UnknownTopic(topic)
        if code in _FORBIDDEN:
            return Forbidden(operation, error.str())
        if code in _UNREACHABLE:
            return Unreachable(self.address, error.str(), outcome_known=outcome_known)
        if code in _TIMED_OUT:
            return TimedOut(operation, timeout_s, outcome_known=outcome_known)
        if code == KafkaError._DESTROY:  # noqa: SLF001
            return Closed(f"log {self.address}")
        return OperationFailed(operation, f"{error.str()} ({error.name()})", outcome_known=outcome_known)
