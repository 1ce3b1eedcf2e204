"""The translation of the driver's errors into ours."""

from __future__ import annotations

from cassandra import (
    AuthenticationFailed,
    CoordinationFailure,
    DriverException,
    OperationTimedOut,
    RequestValidationException,
    Timeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import ErrorMessage, IsBootstrappingErrorMessage

from headrace.errors import Forbidden, HeadraceError, OperationFailed, TimedOut, Unreachable

__all__ = ["DRIVER_ERRORS", "explain", "is_forbidden", "is_late"]

DRIVER_ERRORS = (DriverException, NoHostAvailable, ConnectionException, ErrorMessage)
_NOBODY = (NoHostAvailable, ConnectionException, UnresolvableContactPoints, IsBootstrappingErrorMessage)
# The driver wraps OpenSSL's error in one that has its text only.
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


def explain(
    error: BaseException, address: str, operation: str, *, timeout_s: float, outcome_known: bool
) -> HeadraceError:
    """Return the error to raise for `error`, met in `operation`."""
    if is_forbidden(error):
        return Forbidden(operation, _reason(error))
    if isinstance(error, Timeout | OperationTimedOut):
        return TimedOut(operation, timeout_s, outcome_known)
    if isinstance(error, Unavailable):
        reason = f"{operation}: {error.required_replicas} replicas are needed, {error.alive_replicas} are alive"
        return Unreachable(address, reason)
    if isinstance(error, _NOBODY):
        reason = f"no answer within {timeout_s:g} s" if is_late(error) else _reason(error)
        return Unreachable(address, f"{operation}: {reason}", outcome_known)
    if isinstance(error, CoordinationFailure):
        return OperationFailed(operation, f"{error.failures} replicas failed", outcome_known)
    was_refused = isinstance(error, RequestValidationException)
    return OperationFailed(operation, _reason(error), outcome_known or was_refused)


def is_forbidden(error: BaseException) -> bool:
    """Return True if the cluster refuses this client, or the client does not trust the cluster."""
    if isinstance(error, NoHostAvailable):
        return any(isinstance(one, AuthenticationFailed) or _UNTRUSTED in str(one) for one in _each(error))
    return isinstance(error, AuthenticationFailed | Unauthorized)


def is_late(error: BaseException) -> bool:
    """Return True if no node refused the client, and one that was asked did not answer in time."""
    nodes = _each(error) if isinstance(error, NoHostAvailable) else [error]
    return any(isinstance(one, OperationTimedOut) for one in nodes)


def _reason(error: BaseException) -> str:
    if isinstance(error, NoHostAvailable):
        return "; ".join(dict.fromkeys(str(one) for one in _each(error))) or "no node is known to be up"
    return str(error)


def _each(error: NoHostAvailable) -> list[BaseException]:
    return list(error.errors.values()) if isinstance(error.errors, dict) else []
