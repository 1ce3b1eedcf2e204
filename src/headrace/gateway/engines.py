"""Engines over HTTP: the state of an aggregate with its version, and commands to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from headrace.engine import Aggregate, EngineClient, Rejected, Success
from headrace.errors import (
    BadArgument,
    NotFound,
    NotReadable,
    NotStorable,
    PreconditionFailed,
    RejectedCommand,
    ReplyNotReadable,
    WrongVersion,
)
from headrace.gateway.requests import JSON_HEADERS, GatewayRequest, ReadyResponse, etag_of, has_version
from headrace.gateway.routes import (
    AT_LEAST,
    JSON,
    TOKEN_HEADER,
    GatewayRoute,
    Needs,
    RouteAnswer,
    RouteParameter,
)
from headrace.observe import get_logger
from headrace.protocol import check_text

__all__ = ["COMMAND_PATH", "EngineRoutes"]

_logger = get_logger(__name__)

_GROUP = "Engines"
_ONE = "/engines/{engine}/{id}"
COMMAND_PATH = f"{_ONE}/commands/{{command}}"
_TOKEN_NAME = TOKEN_HEADER.lower().encode()
_MOST_ID_BYTES = 255
_RESULT = {"type": "object", "required": ["version", "events", "since", "is_repeated"]}


class EngineRoutes:
    """The routes of engines."""

    def __init__(self, engines: Sequence[EngineClient[Any]]) -> None:
        self._engines = {each.engine.name: each for each in engines}

    def clients(self) -> Iterable[EngineClient[Any]]:
        """Return the engines that are served."""
        return self._engines.values()

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        route = partial(GatewayRoute, group=_GROUP, needs_owners=lambda _: True)
        return [
            route(
                "GET",
                "/engines",
                self.listing,
                "List the engines that the caller may read, with their commands.",
                answer=RouteAnswer("The engines.", content={JSON: {"type": "object", "required": ["engines"]}}),
                needs_owners=None,
            ),
            route(
                "GET",
                _ONE,
                self.read,
                "Get the committed state of an aggregate; ETag is its version.",
                answer=RouteAnswer(
                    "The state.", content={JSON: {"type": "object", "required": ["state", "version"]}}, has_token=True
                ),
                needs=Needs("read", "engine", "{engine}"),
                parameters=(AT_LEAST, RouteParameter("If-None-Match", "The version you have.", place="header")),
            ),
            route(
                "POST",
                COMMAND_PATH,
                self.send,
                "Send a command to an aggregate; the answer comes when its events are in the log.",
                answer=RouteAnswer("What the command led to.", content={JSON: _RESULT}, has_token=True),
                needs=Needs("command", "engine", "{engine}"),
                parameters=(
                    RouteParameter("Idempotency-Key", "The command's id: sent again, it is done once.", place="header"),
                    RouteParameter("If-Match", 'Only if the version is this one, as in "7".', place="header"),
                    RouteParameter("since", "What an earlier answer gave, if another gateway was tried first."),
                ),
                body={JSON: {"type": "object"}},
            ),
        ]

    async def listing(self, request: GatewayRequest) -> object:
        """List engines."""
        readable = [name for name in sorted(self._engines) if request.caller.may("read", "engine", name)]
        return {"engines": [{"name": each, "commands": self._engines[each].engine.commands.names} for each in readable]}

    async def read(self, request: GatewayRequest) -> object:
        """Answer with the state of an aggregate; None if there is none."""
        found = await self._client(request).aggregate(request.path["id"]).read(at_least=request.token)
        if found.state is None:
            return None
        content = {"state": msgspec.to_builtins(found.state), "version": found.version, "since": found.since}
        headers = {"etag": etag_of(found.version), "cache-control": "no-cache", TOKEN_HEADER: found.token}
        if has_version(request.headers, found.version):
            return Response(status_code=304, headers=headers)
        return Response(msgspec.json.encode(content), headers=headers, media_type=JSON)

    async def send(self, request: GatewayRequest) -> object:
        """Send a command. Raises RejectedCommand if the application does not accept it, and what the engine raises."""
        client = self._client(request)
        command = _command_of(client, request)
        expected, command_id, since = _expected_of(request), _command_id_of(request), request.text("since")
        aggregate = client.aggregate(request.path["id"])
        return await self.result(client, aggregate, command, command_id=command_id, expected=expected, since=since)

    async def result(
        self,
        client: EngineClient[Any],
        aggregate: Aggregate[Any],
        command: Any,  # noqa: ANN401 - of the application's class
        *,
        command_id: str | None = None,
        expected: int | None = None,
        since: str | None = None,
    ) -> ReadyResponse:
        """Send a command and return the answer to it. Raises as `send`."""
        try:
            result = await aggregate.send(command, command_id=command_id, expected_version=expected, since=since)
        except WrongVersion as error:
            raise PreconditionFailed(repr(aggregate.id)) from error
        if isinstance(result, Rejected):
            raise RejectedCommand(result.code, result.message, msgspec.to_builtins(dict(result.details)))
        body = msgspec.json.encode(_as_json(client, result))
        return ReadyResponse(body, (*JSON_HEADERS, (_TOKEN_NAME, result.token.encode())))

    def _client(self, request: GatewayRequest) -> EngineClient[Any]:
        name = request.path["engine"]
        if name not in self._engines:
            raise NotFound(f"engine {name!r}")
        return self._engines[name]


def _command_of(client: EngineClient[Any], request: GatewayRequest) -> Any:  # noqa: ANN401 - of the application's class
    name = request.path["command"]
    if name not in client.engine.commands.names:
        raise NotFound(f"command {name!r} of engine {client.engine.name!r}")
    request.json(dict[str, Any])
    try:
        return client.engine.commands.decode(name, request.body)
    except NotReadable as error:
        raise BadArgument("body", "…", f"it must have the fields of {name}: {error.reason}") from error


def _command_id_of(request: GatewayRequest) -> str | None:
    key = request.once("idempotency-key")
    return None if key is None else check_text("Idempotency-Key", key, least=1, most=_MOST_ID_BYTES)


def _expected_of(request: GatewayRequest) -> int | None:
    sent = request.once("if-match")
    if sent is None:
        return None
    text = sent.strip().strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 20 and sent.strip() == f'"{text}"'):
        raise BadArgument("If-Match", sent[:60], 'it is the ETag of the aggregate, as in "7"')
    return int(text)


def _as_json(client: EngineClient[Any], result: Success[Any]) -> dict[str, Any]:
    """Return a success. Raises ReplyNotReadable for events that an upcaster made wrongly: the command was done."""
    try:
        events = [client.engine.events.payload(event) for event in result.events]
    except NotStorable as error:
        raise ReplyNotReadable(f"a command of engine {client.engine.name!r}", str(error)) from error
    return {
        "version": result.version,
        "state": _shown_state(result.state),
        "events": events,
        "value": msgspec.to_builtins(result.value),
        "since": result.since,
        "is_repeated": result.is_repeated,
    }


def _shown_state(state: object) -> Any:  # noqa: ANN401 - what JSON can carry
    """Return the state; None for one that JSON can't carry: the command was done all the same."""
    try:
        return msgspec.to_builtins(state)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _logger.warning("a reply leaves out what JSON can't carry", kind=type(state).__name__, error=str(error))
        return None
