"""Errors as answers: a status of gRPC if nothing was done, a Failed reply if the engine has decided, or nobody knows.

Clients and proxies repeat calls that end with certain statuses. So no error whose outcome is unknown becomes one. A
caller sees the message of an error that is about its own request; messages that are for operators go to the log, and
the caller sees a general sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace import errors
from headrace.errors import HeadraceError, RateExceeded, Unavailable
from headrace.rpc.messages import FailedMessage

__all__ = ["GrpcStatus", "failed_message", "is_hidden", "is_reply", "status_of"]

# A status travels in a header, which has little space; what a caller sent may be part of the sentence.
_MESSAGE_AT_MOST = 1000


class GrpcStatus(NamedTuple):
    """How a call ends: the name of the status, a sentence, and whether the error's own message is kept from the caller.

    `metadata` names the kind of error, so that programs need not read the sentence.
    """

    code: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()
    is_hidden: bool = False


class _Code(NamedTuple):
    code: str
    is_told: bool = True


_HIDDEN = _Code("INTERNAL", is_told=False)

# Each error has its own line, or that of the nearest class above it.
_CODES: Mapping[type[BaseException], _Code] = {
    errors.BadArgument: _Code("INVALID_ARGUMENT"),
    errors.BadToken: _Code("INVALID_ARGUMENT"),
    # Who may not read a topic must not learn its id or its end by making up a token.
    errors.TokenOfOtherTopic: _Code("FAILED_PRECONDITION", is_told=False),
    errors.TokenAhead: _Code("FAILED_PRECONDITION", is_told=False),
    errors.NotFound: _Code("NOT_FOUND"),
    errors.UnknownCommand: _Code("NOT_FOUND"),
    errors.Unauthenticated: _Code("UNAUTHENTICATED"),
    errors.Forbidden: _Code("PERMISSION_DENIED"),
    errors.RateExceeded: _Code("RESOURCE_EXHAUSTED"),
    errors.Busy: _Code("RESOURCE_EXHAUSTED", is_told=False),
    errors.TimedOut: _Code("DEADLINE_EXCEEDED", is_told=False),
    errors.CommandExpired: _Code("DEADLINE_EXCEEDED"),
    Unavailable: _Code("UNAVAILABLE", is_told=False),
}

_GENERAL = {
    "INTERNAL": "the node failed; its log has the reason, under this request's id",
    "FAILED_PRECONDITION": "the engine does not have what the token names; take the token of a newer write",
    "RESOURCE_EXHAUSTED": "as many requests are being answered as may be; nothing was done, try again later",
    "DEADLINE_EXCEEDED": "this was not answered in time; nothing was done, try again",
    "UNAVAILABLE": "this can't be answered now; nothing was done, try again later",
}

# What an engine has decided about a command; True if the caller may see the message.
_DECIDED: Mapping[type[HeadraceError], bool] = {
    errors.WrongVersion: True,
    errors.CommandIdReused: True,
    errors.CommandTooLate: True,
    errors.CommandTooLarge: True,
    errors.CommandFailed: False,
}
_FAILED = "the command failed in its handler, and nothing was done; the node's log has the reason"
_UNKNOWN = "the command may or may not have been done; send it again with the same command id, or read the aggregate"


def is_reply(error: BaseException) -> bool:
    """Return True if the caller gets the error as a Failed reply."""
    return isinstance(error, HeadraceError) and (type(error) in _DECIDED or not _is_outcome_known(error))


def is_hidden(error: HeadraceError) -> bool:
    """Return True if a Failed reply keeps the error's own message from the caller."""
    return not _DECIDED.get(type(error), False)


def failed_message(error: HeadraceError) -> Any:  # noqa: ANN401 - a message
    """Return a Failed reply."""
    is_known = _is_outcome_known(error)
    general = _FAILED if is_known else _UNKNOWN
    message = general if is_hidden(error) else str(error)
    version = error.actual if isinstance(error, errors.WrongVersion) else None
    return FailedMessage(kind=type(error).__name__, message=message, outcome_known=is_known, version=version)


def status_of(error: BaseException) -> GrpcStatus:
    """Return the status that a call ends with."""
    found = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), _HIDDEN)
    if found.code == "INTERNAL":
        return GrpcStatus("INTERNAL", _GENERAL["INTERNAL"], is_hidden=True)
    metadata = [("headrace-error", type(error).__name__)]
    if isinstance(error, RateExceeded):
        metadata.append(("headrace-retry-in-ms", str(max(1, round(error.retry_in_s * 1000)))))
    message = str(error) if found.is_told else _GENERAL[found.code]
    return GrpcStatus(found.code, message[:_MESSAGE_AT_MOST], tuple(metadata), is_hidden=not found.is_told)


def _is_outcome_known(error: BaseException) -> bool:
    return bool(getattr(error, "outcome_known", True))
