"""The calls of `engines.proto`: what a message asks for, from the engines of a node, and the reply as a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.access import Caller
from headrace.engine import EngineClient, Failed, Rejected, Success
from headrace.errors import BadArgument, HeadraceError, NotFound, NotReadable, NotStorable, ReplyNotReadable, TimedOut
from headrace.model import combine_tokens
from headrace.observe import get_logger
from headrace.rpc.messages import (
    EventMessage,
    ReadReplyMessage,
    RejectedMessage,
    SendReplyMessage,
    SuccessMessage,
)
from headrace.rpc.statuses import failed_message, is_hidden, is_reply

__all__ = ["EngineCalls"]

_logger = get_logger(__name__)

_TOKENS_AT_MOST = 100


class EngineCalls:
    """Answers calls to some engines."""

    def __init__(self, engines: Sequence[EngineClient[Any]]) -> None:
        self._engines = {each.engine.name: each for each in engines}

    async def send(self, caller: Caller, message: Any, timeout_s: float) -> Any:  # noqa: ANN401 - messages
        """Send a command.

        Raises what says that nothing was done: Forbidden, NotFound, BadArgument, Busy, Unavailable. What the engine has
        decided, and what may have been done, is a reply.
        """
        client = self._client(caller, "command", message.engine)
        command = _command_of(client, message.command, message.data)
        aggregate = client.aggregate(message.aggregate)
        if message.HasField("timeout_ms"):
            timeout_s = min(timeout_s, message.timeout_ms / 1000)
        result = await aggregate.try_send(
            command,
            command_id=_optional(message, "command_id"),
            expected_version=_optional(message, "expected_version"),
            since=_optional(message, "since"),
            timeout_s=_positive(timeout_s),
        )
        match result:
            case Success():
                return _success_reply(client, result)
            case Rejected():
                return SendReplyMessage(rejected=_rejected_message(result), token=result.token)
            case Failed():
                return SendReplyMessage(failed=_failure(result.error))

    async def read(self, caller: Caller, message: Any, timeout_s: float) -> Any:  # noqa: ANN401 - messages
        """Read an aggregate.

        Raises Forbidden, NotFound, BadArgument, BadToken, TokenOfOtherTopic, TokenAhead, Unavailable.
        """
        client = self._client(caller, "read", message.engine)
        aggregate, at_least = client.aggregate(message.aggregate), _token_of(message)
        found = await aggregate.read(at_least=at_least, timeout_s=_positive(timeout_s))
        state = None if found.state is None else msgspec.json.encode(found.state)
        return ReadReplyMessage(state=state, version=found.version, since=found.since, token=found.token)

    def _client(self, caller: Caller, operation: str, engine: str) -> EngineClient[Any]:
        """Return the engine. Permission is checked first: a caller without it does not learn which engines exist."""
        caller.check(operation, "engine", engine)
        if engine not in self._engines:
            raise NotFound(f"engine {engine!r}")
        return self._engines[engine]


def _failure(error: HeadraceError) -> Any:  # noqa: ANN401 - a message
    """Return the reply about a failure. Raises the error if it is one that a status tells."""
    if not is_reply(error):
        raise error
    if is_hidden(error):
        _logger.warning("a command failed", error=repr(error))
    return failed_message(error)


def _command_of(client: EngineClient[Any], name: str, data: bytes) -> Any:  # noqa: ANN401 - of the application's class
    if name not in client.engine.commands:
        raise NotFound(f"command {name!r} of engine {client.engine.name!r}")
    try:
        return client.engine.commands.decode(name, data or b"{}")
    except NotReadable as error:
        raise BadArgument("data", "…", f"it must have the fields of {name}: {error.reason}") from error
    except RecursionError as error:
        raise BadArgument("data", "…", "it is nested too deeply") from error


def _optional(message: Any, field: str) -> Any:  # noqa: ANN401 - the field's value
    return getattr(message, field) if message.HasField(field) else None


def _token_of(message: Any) -> str | None:  # noqa: ANN401 - a message
    """Return the tokens of a read as one. Raises BadToken."""
    if not message.HasField("token"):
        return None
    return combine_tokens(*(text.strip() for text in message.token.split(",", _TOKENS_AT_MOST)))


def _positive(timeout_s: float) -> float:
    if timeout_s <= 0:
        raise TimedOut("the call", 0.0)
    return timeout_s


def _success_reply(client: EngineClient[Any], result: Success[Any]) -> Any:  # noqa: ANN401 - a message
    try:
        return SendReplyMessage(success=_success_message(client, result), token=result.token)
    except ReplyNotReadable as error:
        return SendReplyMessage(failed=_failure(error), token=result.token)


def _success_message(client: EngineClient[Any], result: Success[Any]) -> Any:  # noqa: ANN401 - a message
    """Return a success. Raises ReplyNotReadable for events that an upcaster made wrongly: the command was done."""
    try:
        payloads = [client.engine.events.payload(event) for event in result.events]
    except NotStorable as error:
        raise ReplyNotReadable(f"a command of engine {client.engine.name!r}", str(error)) from error
    return SuccessMessage(
        version=result.version,
        state=_json(result.state),
        events=[EventMessage(type=each["type"], data=msgspec.json.encode(each["data"])) for each in payloads],
        value=_json(result.value),
        since=result.since,
        is_repeated=result.is_repeated,
        is_kept=result.is_kept,
    )


def _rejected_message(result: Rejected) -> Any:  # noqa: ANN401 - a message
    return RejectedMessage(
        code=result.code,
        message=result.message,
        details=msgspec.json.encode(result.details),
        version=result.version,
        since=result.since,
        is_repeated=result.is_repeated,
    )


def _json(value: object) -> bytes | None:
    """Return the value as JSON; None for none, and for one that JSON can't carry: the command was done all the same."""
    if value is None:
        return None
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _logger.warning("a reply leaves out what JSON can't carry", kind=type(value).__name__, error=str(error))
        return None
