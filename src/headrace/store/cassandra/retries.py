"""Retries: which errors of the driver are worth another attempt, how long to wait before it, and until when."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cassandra import OperationTimedOut, Timeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import FallthroughRetryPolicy
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, TruncateError

from headrace.config import CassandraStoreSettings
from headrace.runtime import Backoff
from headrace.store.cassandra.faults import DRIVER_ERRORS, is_forbidden
from headrace.store.metrics import RETRIES

__all__ = ["NEVER_AGAIN", "is_transient", "with_retries"]

T = TypeVar("T")

# The policy of a statement that the driver itself must not repeat either.
NEVER_AGAIN = FallthroughRetryPolicy()

_WAITS = Backoff(first_s=0.02, limit_s=1.0)
_TRANSIENT = (
    Timeout,
    OperationTimedOut,
    Unavailable,
    NoHostAvailable,
    ConnectionException,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    TruncateError,
)


def is_transient(error: BaseException) -> bool:
    """Return True if the same request may succeed a moment later."""
    return isinstance(error, _TRANSIENT) and not is_forbidden(error)


async def with_retries(
    attempt: Callable[[float], Awaitable[T]],
    settings: CassandraStoreSettings,
    *,
    operation: str,
    is_repeatable: bool,
) -> T:
    """Return what an attempt returns; each is given its time-out in seconds.

    After a transient error a repeatable request is attempted again until `request_timeout_s` is over. Then, and after
    any other error, the driver's error is raised.
    """
    deadline_s = time.monotonic() + settings.request_timeout_s
    for number in itertools.count(1):
        left_s = deadline_s - time.monotonic()
        try:
            return await attempt(min(left_s, settings.attempt_timeout_s))
        except DRIVER_ERRORS as failure:
            wait_s = _WAITS.delay_s(number)
            if not (is_repeatable and is_transient(failure)) or time.monotonic() + wait_s > deadline_s:
                raise
        RETRIES.labels("cassandra", operation).inc()
        await asyncio.sleep(wait_s)
    raise AssertionError("attempts end with an answer or an error")
