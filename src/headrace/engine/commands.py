"""Requests to an engine and its replies, as they travel between nodes and as they are remembered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headrace import errors
from headrace.engine.models import Engine
from headrace.engine.records import AggregateRecord
from headrace.engine.results import CommandResult, Failed, Reject, Rejected, Success
from headrace.errors import BadArgument, HeadraceError, NotReadable, OperationFailed
from headrace.model import MAX_SEQ_NR
from headrace.protocol import check_finite, check_id, check_text, checked_json
from headrace.state import RESERVED_PREFIX, BatchName, ValueCodec, parse_batch
from headrace.store import MAX_ID_BYTES

__all__ = [
    "AggregateAnswer",
    "Answer",
    "CommandReply",
    "CommandRequest",
    "FailedReply",
    "ReadRequest",
    "RejectedReply",
    "SuccessReply",
    "check_aggregate_id",
    "check_request",
    "decode_answer",
    "decode_read",
    "decode_reply",
    "decode_request",
    "encode_answer",
    "encode_read",
    "encode_reply",
    "encode_request",
    "error_of",
    "failed_reply",
    "rejected_reply",
    "result_of",
    "shortened_reply",
    "since_of",
    "value_json",
]

_MAX_COMMAND_ID_BYTES = 1024
_SINCE_AT_MOST = 40
_NO_EVENTS = b"[]"
_REASON_AT_MOST = 500


class CommandRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="command", gc=False):
    """A command for one aggregate, or (`is_events`) events that others decided on.

    `since` is the newest committed batch of the partition that the caller knew before its first attempt. `is_first`
    says that the caller has not sent this command before: then only an attempt of the router's can be a repetition.
    `trace` is the caller's span, as headers carry it.
    """

    aggregate: str
    kind: str
    data: bytes
    is_events: bool = False
    command_id: str | None = None
    since: tuple[int, int] | None = None
    expected_version: int | None = None
    is_first: bool = False
    trace: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def digest(self) -> bytes:
        """What tells this command from others with the same id."""
        what = b"events" if self.is_events else self.kind.encode()
        return hashlib.blake2b(what + b"\x00" + self.data, digest_size=8).digest()


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag="read", gc=False):
    """Ask for the state of one aggregate; `at_least` is the text of a consistency token."""

    aggregate: str
    at_least: str | None = None


class SuccessReply(msgspec.Struct, frozen=True, tag="success", gc=False):
    """The command was done. `events` is a JSON list of payloads, `value` is JSON."""

    version: int
    state: bytes | None
    events: bytes
    value: bytes | None = None
    is_kept: bool = True


class RejectedReply(msgspec.Struct, frozen=True, tag="rejected", gc=False):
    """The application does not accept the command."""

    version: int
    code: str
    message: str
    details: bytes


class FailedReply(msgspec.Struct, frozen=True, tag="failed"):
    """The command was handled, and failed: the name of the error's class, and its fields."""

    error: str
    fields: dict[str, Any]


CommandReply: TypeAlias = SuccessReply | RejectedReply | FailedReply


class Answer(NamedTuple):
    """The reply to a command, the newest batch that was committed when it left, and the token of all of that."""

    reply: CommandReply
    since: BatchName
    is_repeated: bool = False
    token: str = ""


class AggregateAnswer(NamedTuple):
    """The answer to a read: the state's bytes, None if there is no state, the version, the newest committed batch.

    `token` is the consistency token of what was read.
    """

    state: bytes | None
    version: int
    since: BatchName
    token: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_reply: Callable[[bytes], CommandReply] = msgspec.msgpack.Decoder(CommandReply).decode
_decode_request: Callable[[bytes], CommandRequest | ReadRequest] = msgspec.msgpack.Decoder(
    CommandRequest | ReadRequest
).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode
_decode_read = msgspec.msgpack.Decoder(AggregateAnswer).decode


def encode_request(request: CommandRequest | ReadRequest) -> bytes:
    """Return the request's bytes."""
    return _encode(request)


def decode_request(data: bytes) -> CommandRequest | ReadRequest:
    """Return the request. Raises NotReadable."""
    try:
        return _decode_request(data)
    except msgspec.MsgspecError as error:
        raise NotReadable("a command", repr(data[:40]), str(error)) from error


def encode_reply(reply: CommandReply) -> bytes:
    """Return the reply's bytes."""
    return _encode(reply)


def decode_reply(data: bytes) -> CommandReply:
    """Return the reply. Raises NotReadable."""
    try:
        return _decode_reply(data)
    except msgspec.MsgspecError as error:
        raise NotReadable("the reply to a command", repr(data[:40]), str(error)) from error


def encode_answer(answer: Answer) -> bytes:
    """Return the answer's bytes."""
    return _encode(answer)


def decode_answer(data: bytes) -> Answer:
    """Return the answer. Raises NotReadable."""
    try:
        return _decode_answer(data)
    except msgspec.MsgspecError as error:
        raise NotReadable("the answer to a command", repr(data[:40]), str(error)) from error


def encode_read(record: AggregateRecord | None, since: BatchName, token: str = "") -> bytes:
    """Return the answer to a read."""
    state, version = (record.state, record.version) if record is not None else (None, 0)
    return _encode(AggregateAnswer(state, version, since, token))


def decode_read(data: bytes) -> AggregateAnswer:
    """Return the answer to a read. Raises NotReadable."""
    try:
        return _decode_read(data)
    except msgspec.MsgspecError as error:
        raise NotReadable("the state of an aggregate", repr(data[:40]), str(error)) from error


def failed_reply(error: HeadraceError) -> FailedReply:
    """Return an error as a reply that can be remembered."""
    return FailedReply(type(error).__name__, dict(vars(error)))


def value_json(value: Any) -> bytes:  # noqa: ANN401
    """Return a value of a handler as JSON. Raises ValueError for numbers that JSON does not have, and deep nesting."""
    data = checked_json(msgspec.json.encode(value))
    if b"null" in data:
        check_finite(value)
    return data


def rejected_reply(version: int, reject: Reject) -> RejectedReply:
    """Return the reply to a command that the application does not accept. Raises BadArgument."""
    code, message = check_text("code", reject.code), check_text("message", reject.message)
    try:
        details = value_json(dict(reject.details))
    except (TypeError, ValueError) as error:
        raise BadArgument("details", repr(reject.details), f"JSON must be able to carry them: {error}") from error
    return RejectedReply(version, code, message, details)


def shortened_reply(reply: CommandReply, limit_bytes: int) -> CommandReply:
    """Return what is remembered of a reply: all of it, or what happened and no more."""
    if len(encode_reply(reply)) <= limit_bytes:
        return reply
    match reply:
        case SuccessReply():
            return SuccessReply(reply.version, None, _NO_EVENTS, is_kept=False)
        case RejectedReply():
            return RejectedReply(reply.version, reply.code, reply.message[:_REASON_AT_MOST], b"{}")
        case FailedReply():
            return reply


def check_aggregate_id(aggregate: object) -> str:
    """Return the id if an aggregate can have it. Raises BadArgument."""
    if type(aggregate) is str and aggregate.isascii() and 0 < len(aggregate) <= MAX_ID_BYTES and aggregate[0] != "\0":
        return aggregate  # the usual case
    text = check_id(aggregate)
    if text.encode().startswith(RESERVED_PREFIX):
        raise BadArgument("aggregate", text, "ids that begin with NUL and 'hr' are Headrace's own")
    return text


def check_request(request: CommandRequest) -> None:
    """Refuse what no aggregate can be asked. Raises BadArgument."""
    check_aggregate_id(request.aggregate)
    if request.command_id is not None:
        check_text("command_id", request.command_id, least=1, most=_MAX_COMMAND_ID_BYTES)
    if request.expected_version is not None:
        check_version(request.expected_version)


def check_version(version: object) -> None:
    """Raise BadArgument for what no aggregate can be at."""
    if type(version) is not int or not 0 <= version <= MAX_SEQ_NR:
        raise BadArgument("expected_version", version, f"versions go from 0, which is no aggregate, to {MAX_SEQ_NR}")


def since_of(text: str | None) -> BatchName | None:
    """Return the batch that a reply's `since` names. Raises BadArgument."""
    if text is None:
        return None
    is_short = isinstance(text, str) and text.isascii() and len(text) <= _SINCE_AT_MOST
    name = parse_batch(text.encode()) if is_short else None
    if name is None or max(name) > MAX_SEQ_NR:
        raise BadArgument("since", text, "it must be what a reply or a read gave, such as '3:17'")
    return name


def result_of(
    engine: Engine[Any],
    codec: ValueCodec[Any],
    reply: CommandReply,
    *,
    since: BatchName,
    is_repeated: bool,
    token: str = "",
) -> CommandResult[Any]:
    """Return what the caller gets."""
    match reply:
        case SuccessReply():
            return Success(
                state=codec.decode(reply.state) if reply.state is not None else None,
                events=engine.events.events_in(reply.events, "an event of a reply"),
                version=reply.version,
                value=msgspec.json.decode(reply.value) if reply.value is not None else None,
                since=str(since),
                is_repeated=is_repeated,
                is_kept=reply.is_kept,
                token=token,
            )
        case RejectedReply():
            return Rejected(
                code=reply.code,
                message=reply.message,
                details=msgspec.json.decode(reply.details),
                version=reply.version,
                since=str(since),
                is_repeated=is_repeated,
                token=token,
            )
        case FailedReply():
            return Failed(error_of(reply))


def error_of(reply: FailedReply) -> HeadraceError:
    """Return the error again; one that this version does not know becomes OperationFailed."""
    kind = getattr(errors, reply.error, None)
    if not isinstance(kind, type) or not issubclass(kind, HeadraceError):
        return OperationFailed("a command", f"{reply.error}: {reply.fields}")
    error = kind.__new__(kind)
    error.__dict__.update({name: tuple(v) if isinstance(v, list) else v for name, v in reply.fields.items()})
    return error
