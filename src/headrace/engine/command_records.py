"""Commands and replies as records of topics: what others write to reach an engine, and what it answers there.

A command's key is the aggregate's id, its value the command as JSON. Headers: `headrace.command` is the command's
class, `headrace.command-id` its id, `headrace.reply-to` the topic of the reply, `headrace.correlation-id` anything that
the reply repeats. Messages of an outbox have their id in `headrace.event-id`, which is the command id of such a record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from headrace.engine.commands import (
    CommandReply,
    FailedReply,
    RejectedReply,
    SuccessReply,
    check_aggregate_id,
    error_of,
)
from headrace.engine.models import Engine
from headrace.errors import BadArgument, NotReadable
from headrace.model import Headers, NewRecord, Record, partition_of
from headrace.outbox import EVENT_ID
from headrace.runtime import own_text

__all__ = [
    "COMMAND_HEADER",
    "COMMAND_ID_HEADER",
    "CORRELATION_HEADER",
    "REPLY_TO_HEADER",
    "MessageHeaders",
    "TopicCommandMessage",
    "command_record",
    "dead_letter",
    "dead_letters_of",
    "forwarded",
    "parse_command",
    "parse_headers",
    "place_of",
    "reply_record",
]

COMMAND_HEADER = "headrace.command"
COMMAND_ID_HEADER = "headrace.command-id"
REPLY_TO_HEADER = "headrace.reply-to"
CORRELATION_HEADER = "headrace.correlation-id"
_IN_REPLY_TO_HEADER = "headrace.in-reply-to"
_ERROR_HEADER = "headrace.error"
_PLACE_HEADER = "headrace.place"
_TRACE_HEADERS = ("traceparent", "tracestate")

_REASON_AT_MOST = 2000
_MESSAGE_AT_MOST = 500
_encode = msgspec.json.Encoder(order="sorted").encode


class TopicCommandMessage(NamedTuple):
    """A command as a record of a topic carries it."""

    aggregate: str
    kind: str
    data: bytes
    command_id: str | None = None
    reply_to: str | None = None
    correlation_id: bytes | None = None
    trace: Headers = ()


def command_record(
    engine: Engine[Any],
    aggregate: str,
    kind: str,
    data: bytes,
    *,
    command_id: str | None = None,
    headers: Headers = (),
) -> NewRecord:
    """Return the record by which a command reaches an engine through its command topic. Raises BadArgument."""
    if engine.command_topic is None:
        rule = f"it takes no commands from a topic; declare Engine({engine.name!r}, …, command_topic=…)"
        raise BadArgument("engine", engine.name, rule)
    key = aggregate.encode()
    ids = () if command_id is None else ((COMMAND_ID_HEADER, command_id.encode()),)
    named = ((COMMAND_HEADER, kind.encode()), *ids, *headers)
    return NewRecord(engine.command_topic, key, data, named, partition_of(key, engine.partitions))


def parse_command(record: Record) -> TopicCommandMessage:
    """Return the command of a record. Raises NotReadable, BadArgument."""
    if record.key is None or record.value is None:
        raise NotReadable("a command", place_of(record), "its key is the aggregate's id, its value the command as JSON")
    kind = _text(COMMAND_HEADER, dict(record.headers).get(COMMAND_HEADER))
    if not kind:
        raise NotReadable("a command", place_of(record), f"the header {COMMAND_HEADER} has the name of its class")
    aggregate = check_aggregate_id(_text("key", record.key))
    return TopicCommandMessage(aggregate, kind, record.value, *parse_headers(record))


class MessageHeaders(NamedTuple):
    """What the headers of a record say about its command, whatever its key and value are."""

    command_id: str | None
    reply_to: str | None
    correlation_id: bytes | None
    trace: Headers


def parse_headers(record: Record) -> MessageHeaders:
    """Return what a record's headers say. Raises NotReadable."""
    headers = dict(record.headers)
    command_id = headers.get(COMMAND_ID_HEADER) or headers.get(EVENT_ID)
    reply_to = headers.get(REPLY_TO_HEADER)
    return MessageHeaders(
        _text(COMMAND_ID_HEADER, command_id) or None,
        _text(REPLY_TO_HEADER, reply_to) or None,
        headers.get(CORRELATION_HEADER),
        tuple(each for each in record.headers if each[0] in _TRACE_HEADERS),
    )


def _text(what: str, value: bytes | None) -> str:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError as error:
        raise NotReadable(f"the {what} of a command", repr(value), "it is not UTF-8") from error


def forwarded(engine: Engine[Any], message: TopicCommandMessage) -> NewRecord:
    """Return the record that takes a command of any topic to the partition of its aggregate."""
    headers: list[tuple[str, bytes | None]] = []
    if message.reply_to is not None:
        headers.append((REPLY_TO_HEADER, message.reply_to.encode()))
    if message.correlation_id is not None:
        headers.append((CORRELATION_HEADER, message.correlation_id))
    aggregate, kind, data, command_id, *_ = message
    headers += message.trace
    return command_record(engine, aggregate, kind, data, command_id=command_id, headers=tuple(headers))


def place_of(record: Record) -> str:
    """Return where a record lies, as text."""
    return f"{record.topic}/{record.partition}/{record.offset}"


def reply_record(message: TopicCommandMessage, record: Record, reply: CommandReply, limit_bytes: int) -> NewRecord:
    """Return the reply to a command, for the topic that it named.

    If it would be too large it tells what happened and no more: no events and no value, or no details.
    """
    headers: list[tuple[str, bytes | None]] = [(_IN_REPLY_TO_HEADER, place_of(record).encode())]
    if message.command_id is not None:
        headers.append((COMMAND_ID_HEADER, message.command_id.encode()))
    if message.correlation_id is not None:
        headers.append((CORRELATION_HEADER, message.correlation_id))
    value = _reply_value(reply)
    if len(value) > limit_bytes - 2 * _REASON_AT_MOST:
        value = _reply_value(_shortened(reply))
    return NewRecord(message.reply_to or "", message.aggregate.encode(), value, tuple(headers))


def _shortened(reply: CommandReply) -> CommandReply:
    match reply:
        case SuccessReply():
            return SuccessReply(reply.version, None, b"[]", is_kept=False)
        case RejectedReply():
            return RejectedReply(reply.version, reply.code, reply.message[:_MESSAGE_AT_MOST], b"{}")
        case FailedReply():
            return reply


def _reply_value(reply: CommandReply) -> bytes:
    match reply:
        case SuccessReply():
            value = msgspec.Raw(reply.value if reply.value is not None else b"null")
            told = {"events": msgspec.Raw(reply.events), "value": value, "is_kept": reply.is_kept}
            return _encode({"outcome": "success", "version": reply.version, **told})
        case RejectedReply():
            told = {"code": reply.code, "message": reply.message, "details": msgspec.Raw(reply.details)}
            return _encode({"outcome": "rejected", "version": reply.version, **told})
        case FailedReply():
            return _encode({"outcome": "failed", "error": reply.error, "message": str(error_of(reply))})


def dead_letters_of(topic: str) -> str:
    """Return the topic of the records of a topic that could not be handled."""
    return f"{topic}.dead-letters"


def dead_letter(record: Record, error: BaseException | str, *, topic: str) -> NewRecord:
    """Return a record that could not be handled, with the reason and its place, for the topic of such records."""
    reason = (error if isinstance(error, str) else own_text(error) or type(error).__name__)[:_REASON_AT_MOST]
    headers = (*record.headers, (_ERROR_HEADER, reason.encode()), (_PLACE_HEADER, place_of(record).encode()))
    return NewRecord(topic, record.key, record.value, headers)
