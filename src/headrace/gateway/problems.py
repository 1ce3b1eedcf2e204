"""Errors as answers: one table from the error tree to HTTP status codes, and the JSON problem of RFC 9457.

A caller sees the message of an error that is about its own request. Messages that are for operators may name hosts,
files and nodes: they go to the log, with the request's id, and the caller sees a general sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from headrace import errors
from headrace.errors import HeadraceError, Misconfigured, NoSuchRoute, RateExceeded, Refused, Unavailable
from headrace.observe import get_logger

__all__ = ["PROBLEM_JSON", "HttpProblem", "problem_of", "problem_response"]

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_S = 1
# Where clients of Confluent's schema registry ask: they show `message` and `error_code`, and nothing else.
_REGISTRY_PATHS = frozenset(
    {b"subjects", b"schemas", b"compatibility", b"config", b"mode", b"contexts", b"associations"}
)

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """How one kind of error is answered; `shown` are the fields that the caller gets beside the message."""

    status: int
    shown: tuple[str, ...] = ()
    is_told: bool = True


_HIDDEN = _Answer(500, is_told=False)

# Each error has its own line, or that of the nearest class above it.
_ANSWERS: Mapping[type[BaseException], _Answer] = {
    errors.BadArgument: _Answer(400, ("name",)),
    errors.NoSuchRoute: _Answer(404),
    errors.NotFound: _Answer(404),
    errors.Unauthenticated: _Answer(401),
    errors.Forbidden: _Answer(403),
    errors.OriginRefused: _Answer(403),
    errors.BodyTooLarge: _Answer(413, ("limit_bytes",)),
    errors.WrongMediaType: _Answer(415, ("offered",)),
    errors.UnknownTopic: _Answer(404, ("topic",)),
    errors.UnknownPartition: _Answer(404, ("topic", "partition")),
    errors.TopicExists: _Answer(409, ("topic",)),
    errors.OffsetOutOfRange: _Answer(410, ("topic", "partition", "offset", "start", "end")),
    errors.BadToken: _Answer(400),
    # Who may not read a topic must not learn its id or its end by making up a token.
    errors.TokenOfOtherTopic: _Answer(409, is_told=False),
    errors.TokenAhead: _Answer(409, is_told=False),
    errors.TagTrimmed: _Answer(410, ("tag", "last")),
    errors.RecordTooLarge: _Answer(413, ("size_bytes", "limit_bytes")),
    errors.TimestampTooFarAhead: _Answer(409),
    errors.WrongSeqNr: _Answer(409, ("key", "expected", "actual")),
    errors.VoidAppend: _Answer(409, ("key",)),
    errors.JournalPurged: _Answer(410, ("key",)),
    errors.TopicShared: _Answer(409, ("topic",)),
    errors.AppendIdReused: _Answer(422, ("key",)),
    errors.TopicClaimed: _Answer(409, ("topic",)),
    errors.KeyPresent: _Answer(409, ("key",)),
    errors.NotUnique: _Answer(409, ("index",)),
    errors.NoStateYet: _Answer(409, ("key", "seq_nr", "pointer")),
    errors.NoSchemaFor: _Answer(400),
    errors.BadSchema: _Answer(422, ("where",)),
    errors.IncompatibleSchema: _Answer(409, ("subject", "level", "field", "version", "rule")),
    errors.UnknownSchema: _Answer(404, ("schema_id",), is_told=False),
    errors.UnknownSubject: _Answer(404, ("subject", "version"), is_told=False),
    errors.NotRegistered: _Answer(409, ("subject",)),
    errors.NotEncodable: _Answer(400, ("schema", "field")),
    errors.NotFramed: _Answer(400),
    errors.NotDecodable: _Answer(400, ("schema", "field")),
    errors.NotStorable: _Answer(400),
    errors.StateReadOnly: _Answer(409),
    errors.TargetDiffers: _Answer(409),
    errors.PreconditionFailed: _Answer(412, ("key",)),
    errors.UnknownMessage: _Answer(404, ("keyspace", "message")),
    errors.MessageIdReused: _Answer(422, ("keyspace",)),
    errors.ReplyNotKept: _Answer(409, ("keyspace",)),
    errors.UnknownCommand: _Answer(404, ("engine", "kind")),
    errors.RejectedCommand: _Answer(409, ("code", "details")),
    errors.CommandTooLarge: _Answer(413, ("size_bytes", "limit_bytes")),
    errors.CommandIdReused: _Answer(422, ("aggregate",)),
    errors.CommandTooLate: _Answer(409, ("aggregate",)),
    errors.WrongVersion: _Answer(409, ("aggregate", "expected", "actual")),
    errors.RateExceeded: _Answer(429),
    errors.Busy: _Answer(503, is_told=False),
    errors.GatewaySuspended: _Answer(503, is_told=False),
    errors.TimedOut: _Answer(503),
    errors.ReadAgain: _Answer(503, ("key",)),
    errors.TagBuilding: _Answer(503, ("tag",), is_told=False),
    errors.StateConflict: _Answer(409),
    errors.StateStale: _Answer(503),
    errors.JournalHeld: _Answer(500, is_told=False),
    errors.TagsDisabled: _Answer(501, is_told=False),
    errors.NoStore: _Answer(501),
    # What other parts of the tree say is about servers, nodes, transactions and files.
    Unavailable: _Answer(503, is_told=False),
    Refused: _HIDDEN,
    Misconfigured: _HIDDEN,
    NotImplementedError: _Answer(501),
    TimeoutError: _Answer(503, is_told=False),
}

# What a handler of the application raises has only a name here, if it was raised at another node.
_FAILURES: Mapping[str, int] = {
    "ValueError": 400,
    "TypeError": 400,
    "PermissionError": 403,
    "KeyError": 404,
    "LookupError": 404,
    "NotImplementedError": 501,
    "TimeoutError": 503,
}

_GENERAL = {
    404: "there is nothing with this name, number or id",
    409: "the consistency token does not fit what is there now; take the token of a newer write, or read without one",
    500: "the gateway failed; its log has the reason, under this request's id",
    501: "this gateway does not do that",
    503: "this can't be answered now; try again later",
}


@dataclass(frozen=True, slots=True)
class HttpProblem:
    """An answer about a failure. `type` names the kind of error, so that programs need not read the sentence."""

    status: int
    kind: str
    detail: str
    members: Mapping[str, Any]

    def to_json(self, request_id: str) -> dict[str, Any]:
        """Return the members of the problem."""
        return {
            **self.members,
            "type": f"urn:headrace:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "request_id": request_id,
        }


def problem_of(error: BaseException) -> HttpProblem:
    """Return the answer to an error."""
    if isinstance(error, errors.RequestFailed) and error.kind in _FAILURES:
        return HttpProblem(_FAILURES[error.kind], _kind_of(error), error.reason or error.kind, {"kind": error.kind})
    answer = _answer_to(error)
    status = _status_of(error, answer)
    if not isinstance(error, HeadraceError) and status == 500:
        return HttpProblem(500, "internal", _GENERAL[500], {})
    members = {name: getattr(error, name) for name in answer.shown if getattr(error, name) is not None}
    if isinstance(error, Unavailable):
        members["outcome_known"] = error.outcome_known
    is_told = answer.is_told and bool(str(error))
    kind = "internal" if status == 500 else _kind_of(error)
    return HttpProblem(status, kind, str(error) if is_told else _GENERAL[status], members)


def problem_response(error: BaseException, request_id: str, path: bytes = b"") -> Response:
    """Return the response to an error of a request to a path; what the response leaves out is logged."""
    problem = problem_of(error)
    content = problem.to_json(request_id)
    if path.lstrip(b"/").partition(b"/")[0] in _REGISTRY_PATHS:
        content |= {"error_code": problem.status, "message": problem.detail}
    if problem.detail in _GENERAL.values() and problem.status >= 500:
        is_bug = problem.status == 500
        log = _logger.error if is_bug else _logger.warning
        log(
            "request failed", request_id=request_id, status=problem.status, error=repr(error), exc_info=is_bug and error
        )
    return Response(
        msgspec.json.encode(content),
        problem.status,
        _headers_of(error, problem.status),
        PROBLEM_JSON,
    )


def _answer_to(error: BaseException) -> _Answer:
    return next((_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS), _HIDDEN)


def _status_of(error: BaseException, answer: _Answer) -> int:
    if isinstance(error, NoSuchRoute) and error.allowed:
        return 405
    if isinstance(error, errors.WrongMediaType) and error.header.lower() == "accept":
        return 406
    return answer.status


def _headers_of(error: BaseException, status: int) -> dict[str, str]:
    headers = {"cache-control": "no-store"}
    if isinstance(error, RateExceeded):
        headers["retry-after"] = str(max(1, round(error.retry_in_s)))
    elif status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    elif status == 401:
        headers["www-authenticate"] = "Bearer, Signature"
    if isinstance(error, NoSuchRoute) and error.allowed:
        headers["allow"] = ", ".join(error.allowed)
    return headers


def _kind_of(error: BaseException) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()
