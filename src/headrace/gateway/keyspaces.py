"""Keyspaces over HTTP: states by key with versions, pages of keys, and messages to their handlers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.responses import JSONResponse, Response

from headrace.errors import BadArgument, NotFound, PreconditionFailed, StateConflict
from headrace.gateway.requests import (
    ANY_VERSION,
    GatewayRequest,
    ReadyResponse,
    etag_of,
    has_version,
    refuse_page_parameters,
    versions_in,
)
from headrace.gateway.routes import (
    AT_LEAST,
    JSON,
    TOKEN_HEADER,
    GatewayRoute,
    Needs,
    RouteAnswer,
    RouteParameter,
)
from headrace.gateway.state_forms import AVRO, MessageForm, StateForm, json_of
from headrace.gateway.streams import NDJSON, StreamItem, StreamResponse, StreamTerms
from headrace.keyspace import NO_VALUE, KeyspaceClient, KeyspaceSpec, KeyWritten, Scattered
from headrace.protocol import check_text
from headrace.serde import Registry

__all__ = ["KEY_PATH", "KeyspaceRoutes", "ServedKeyspace"]

_GROUP = "Keyspaces"
_ONE = "/keyspaces/{keyspace}"
_STATE = f"{_ONE}/states/{{state}}"
KEY_PATH = f"{_STATE}/{{key}}"
_COUNT = f"{_ONE}/counts/{{state}}"
_INDEX = f"{_ONE}/indexes/{{state}}/{{index}}"
_TOKEN_NAME = TOKEN_HEADER.lower().encode()
_JSON_TYPE, _AVRO_TYPE = (b"content-type", JSON.encode()), (b"content-type", AVRO.encode())
_LIMIT = 100
_MOST_ID_CHARS = 255
_WRITE_ATTEMPTS = 10
_ANY: dict[str, dict[str, Any]] = {JSON: {}}
_ANY_OR_AVRO = {JSON: {}, AVRO: {"type": "string"}}
_STALENESS = RouteParameter("max_staleness_s", "A copy that is at most this old may answer.", {"type": "number"})
_MATCH = RouteParameter("If-Match", 'Only if the version is this one, as in "7"; * for any.', place="header")
_NONE_MATCH = RouteParameter("If-None-Match", "With *, only if there is no value.", place="header")
_HAVE = RouteParameter("If-None-Match", "The version you have.", place="header")
_TTL = RouteParameter("ttl_s", "Seconds until the value is gone.", {"type": "number"})
_PREFIX = RouteParameter("prefix", "The first parts of the keys, as a JSON list.")
_AFTER = RouteParameter("after", "The last key of the page before.")
_INDEXED = RouteParameter("value", 'What to look for, as JSON, as in 7 or "ann".', is_required=True)
_MESSAGE_ID = RouteParameter(
    "Idempotency-Key", "Any text, of its own for each message; repeats get its reply.", place="header"
)
_SET, _DELETED = RouteAnswer("Set.", 204, has_token=True), RouteAnswer("Deleted.", 204, has_token=True)
_READ, _WRITE, _COMMAND = (Needs(each, "keyspace", "{keyspace}") for each in ("read", "write", "command"))


class ServedKeyspace(NamedTuple):
    """A keyspace as the gateway serves it: what it declares, and how it is reached."""

    spec: KeyspaceSpec
    client: KeyspaceClient


class _Forms(NamedTuple):
    served: ServedKeyspace
    states: Mapping[str, StateForm]
    messages: Mapping[str, MessageForm]


class KeyspaceRoutes:
    """The routes of keyspaces."""

    def __init__(
        self, keyspaces: Sequence[ServedKeyspace], registry: Registry, terms: StreamTerms, *, page_limit: int
    ) -> None:
        self._keyspaces = {each.spec.name: _forms_of(each, registry) for each in keyspaces}
        self._terms = terms
        self._page_limit = page_limit

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        summary = "List the keyspaces that the caller may read, with their states and messages."
        answer = RouteAnswer("The keyspaces.", content=_ANY)
        listing = GatewayRoute("GET", "/keyspaces", self.listing, summary, _GROUP, answer)
        return [listing, *self._key_routes(), *self._state_routes(), self._message_route()]

    def _key_routes(self) -> list[GatewayRoute]:
        """Return the routes of single keys."""
        get = partial(_route, "GET", needs=_READ, needs_owners=_wants_owner, at_once=self.get_at_once)
        put = partial(_route, "PUT", needs=_WRITE, body=_ANY_OR_AVRO)
        delete = partial(_route, "DELETE", needs=_WRITE)
        value = RouteAnswer("The value; ETag is its version.", content=_ANY_OR_AVRO, has_token=True)
        known = (_STALENESS, _HAVE, AT_LEAST)
        summary = "Get the value of a key, as JSON or as framed Avro."
        return [
            get(KEY_PATH, self.get, summary, answer=value, parameters=known),
            put(KEY_PATH, self.put, "Set the value of a key.", answer=_SET, parameters=(_MATCH, _NONE_MATCH, _TTL)),
            delete(KEY_PATH, self.delete, "Delete a key.", answer=_DELETED, parameters=(_MATCH,)),
        ]

    def _state_routes(self) -> list[GatewayRoute]:
        """Return the routes of what a state has under many keys."""
        route, limit = partial(_route, "GET", needs=_READ), self._limit_parameter()
        pairs = RouteAnswer("The pairs.", content=_ANY)
        all_pairs = RouteAnswer("The pairs.", content={JSON: {}, NDJSON: {}})
        count = RouteAnswer("The count.", content=_ANY)
        scan = "Get a page of the keys with a prefix, or as lines of JSON all pairs with it, or of the state."
        find = "Find the pairs that an index has under a value."
        return [
            route(_STATE, self.scan, scan, answer=all_pairs, parameters=(_PREFIX, _AFTER, limit)),
            route(_COUNT, self.count, "Count the keys of a state.", answer=count),
            route(_INDEX, self.find, find, answer=pairs, parameters=(_INDEXED, limit)),
        ]

    def _message_route(self) -> GatewayRoute:
        return _route(
            "POST",
            f"{_ONE}/messages/{{message}}",
            self.send,
            "Send a message to the handler of its key, or of all partitions, and get the reply.",
            answer=RouteAnswer("The reply.", content=_ANY, has_token=True),
            needs=_COMMAND,
            parameters=(_MESSAGE_ID,),
            body=_ANY_OR_AVRO,
        )

    def _limit_parameter(self) -> RouteParameter:
        limits = {"type": "integer", "minimum": 1, "maximum": self._page_limit}
        return RouteParameter("limit", f"Most pairs; {_LIMIT} if absent.", limits)

    async def listing(self, request: GatewayRequest) -> object:
        """List keyspaces."""
        return {
            "keyspaces": [
                {
                    "name": name,
                    "states": [
                        {"name": each.name, "is_avro": each.is_avro, "indexes": each.indexes}
                        for each in forms.states.values()
                    ],
                    "messages": sorted(forms.messages),
                }
                for name, forms in sorted(self._keyspaces.items())
                if request.caller.may("read", "keyspace", name)
            ]
        }

    async def get(self, request: GatewayRequest) -> object:
        """Answer with a value and its version; 304 if the caller has that version."""
        forms, state = self._state(request)
        staleness_s = _seconds(request, "max_staleness_s")
        found = await forms.served.client.read(
            state.name, state.key(request.path["key"]), max_staleness_s=staleness_s, at_least=request.token
        )
        if found.value is None:
            return None
        headers = _headers_of(found.version, found.token)
        if has_version(request.headers, found.version):
            return _not_modified(headers)
        if request.wants(state.media_types) == AVRO:
            return ReadyResponse(await state.to_avro(found.value), (_AVRO_TYPE, *headers))
        return ReadyResponse(msgspec.json.encode(state.to_json(found.value)), (_JSON_TYPE, *headers))

    def get_at_once(self, request: GatewayRequest) -> Response | None:
        """Answer with a value that this process owns, as JSON; None for what `get` has to find out or wait for."""
        if request.query or request.token is not None:
            return None
        forms, state = self._state(request)
        client = forms.served.client
        found = client.read_at_once(state.name, state.key(request.path["key"]))
        if found is None:
            return None
        headers = _headers_of(found.version, found.token)
        if has_version(request.headers, found.version):
            return _not_modified(headers)
        if request.wants(state.media_types) == AVRO:
            return None
        body = state.json_stored(found.data, partial(client.decode_at_once, state.name))
        return ReadyResponse(body, (_JSON_TYPE, *headers))

    async def put(self, request: GatewayRequest) -> object:
        """Set a value, if its version is the one that the caller names."""
        forms, state = self._state(request)
        key = state.key(request.path["key"])
        is_avro = request.content_type == AVRO
        value = await state.from_avro(request.body) if is_avro else state.from_json(request.json(Any))
        if value is None:
            raise BadArgument("value", None, "null is no value; use DELETE to remove one")
        ttl_s, client = _seconds(request, "ttl_s"), forms.served.client

        async def write(expected: int | None) -> KeyWritten:
            return await client.put(state.name, key, value, ttl=ttl_s, expected=expected)

        return await _written(request, client, state, key, write)

    async def delete(self, request: GatewayRequest) -> object:
        """Delete a key, if its version is the one that the caller names."""
        forms, state = self._state(request)
        key, client = state.key(request.path["key"]), forms.served.client

        async def write(expected: int | None) -> KeyWritten:
            return await client.delete(state.name, key, expected=expected)

        return await _written(request, client, state, key, write)

    async def scan(self, request: GatewayRequest) -> object:
        """Answer with a page of a prefix, or with a stream of all pairs."""
        forms, state = self._state(request)
        prefix, after = request.text("prefix"), request.text("after")
        if request.wants((JSON, NDJSON)) == NDJSON:
            refuse_page_parameters(request, "after", "limit")
            source = _pairs(forms.served.client, state, () if prefix is None else state.prefix(prefix))
            stream = StreamResponse(
                source, NDJSON, self._terms, request_id=request.request_id, is_live=False, caller=request.caller
            )
            return await stream.fetch_first()
        if prefix is None:
            raise BadArgument("prefix", None, f"a page has a prefix; ask for {NDJSON} to get all pairs")
        page = await forms.served.client.prefix(
            state.name,
            state.prefix(prefix),
            after=None if after is None else state.key(after),
            limit=self._limit(request),
        )
        pairs = [_pair(state, key, value) for key, value in page.items]
        return {"pairs": pairs, "next": None if page.next_after is None else json_of(page.next_after)}

    async def count(self, request: GatewayRequest) -> object:
        """Answer with the number of keys."""
        forms, state = self._state(request)
        return {"count": await forms.served.client.count(state.name)}

    async def find(self, request: GatewayRequest) -> object:
        """Answer with what an index has."""
        forms, state = self._state(request)
        index, text = request.path["index"], request.text("value")
        if index not in state.indexes:
            raise NotFound(f"index {index!r} of state {state.name!r}")
        try:
            value = msgspec.json.decode((text or "").encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadArgument("value", (text or "")[:60], 'it is JSON, as in 7 or "ann"') from error
        limit = self._limit(request)
        found = await forms.served.client.find(
            state.name, index, tuple(value) if isinstance(value, list) else value, limit=limit
        )
        return {"pairs": [_pair(state, key, each) for key, each in found]}

    async def send(self, request: GatewayRequest) -> object:
        """Ask the handler of a message. An Idempotency-Key is the message's id: the handler's work is done once."""
        forms = self._forms(request)
        form = forms.messages.get(request.path["message"])
        if form is None:
            raise NotFound(f"message {request.path['message']!r} of keyspace {forms.served.spec.name!r}")
        is_avro = request.content_type == AVRO
        message = await form.from_avro(request.body) if is_avro else form.from_json(request.json(Any))
        client = forms.served.client
        key = request.once("idempotency-key")
        if client.check(message).key_of is None:
            if key is not None:
                rule = "a message to all partitions has no id, so a repeat is carried out again; send it without"
                raise BadArgument("Idempotency-Key", key[:60], rule)
            return _gathered(await client.scatter(message))
        message_id = None if key is None else check_text("Idempotency-Key", key, least=1, most=_MOST_ID_CHARS)
        reply, token = await client.ask_with_token(message, message_id=message_id)
        headers = {TOKEN_HEADER: token}
        if reply is None:
            return Response(status_code=204, headers=headers)
        return JSONResponse(json_of(reply), headers=headers)

    def form(self, keyspace: str, state: str) -> tuple[ServedKeyspace, StateForm]:
        """Return a keyspace and one of its states. Raises NotFound."""
        if keyspace not in self._keyspaces:
            raise NotFound(f"keyspace {keyspace!r}")
        forms = self._keyspaces[keyspace]
        if state not in forms.states:
            raise NotFound(f"state {state!r} of keyspace {keyspace!r}")
        return forms.served, forms.states[state]

    def states(self) -> Iterator[tuple[str, str, KeyspaceClient, StateForm]]:
        """Yield all states: the names of keyspace and state, how the keyspace is reached, and the state's form."""
        for name, forms in self._keyspaces.items():
            for state, form in forms.states.items():
                yield name, state, forms.served.client, form

    def served(self, keyspace: str) -> ServedKeyspace:
        """Return a keyspace. Raises NotFound."""
        if keyspace not in self._keyspaces:
            raise NotFound(f"keyspace {keyspace!r}")
        return self._keyspaces[keyspace].served

    @property
    def names(self) -> list[str]:
        """The names of all keyspaces."""
        return list(self._keyspaces)

    def messages(self, keyspace: str) -> Mapping[str, MessageForm]:
        """Return the messages of a keyspace."""
        return self._keyspaces[keyspace].messages

    def _forms(self, request: GatewayRequest) -> _Forms:
        name = request.path["keyspace"]
        if name not in self._keyspaces:
            raise NotFound(f"keyspace {name!r}")
        return self._keyspaces[name]

    def _state(self, request: GatewayRequest) -> tuple[_Forms, StateForm]:
        _, state = self.form(request.path["keyspace"], request.path["state"])
        return self._forms(request), state

    def _limit(self, request: GatewayRequest) -> int:
        return request.number("limit", default=min(_LIMIT, self._page_limit), least=1, most=self._page_limit)


def _headers_of(version: int, token: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return what goes with a value in any form.

    The JSON and the Avro of a version have the same ETag, so a cache must know that Accept chooses.
    """
    return (
        (b"etag", etag_of(version).encode()),
        (b"cache-control", b"no-cache"),
        (b"vary", b"accept"),
        (_TOKEN_NAME, token.encode()),
    )


def _not_modified(headers: Iterable[tuple[bytes, bytes]]) -> Response:
    response = Response(status_code=304)
    response.raw_headers = list(headers)
    return response


def _always(request: GatewayRequest) -> bool:
    return True


_route = partial(GatewayRoute, group=_GROUP, needs_owners=_always)


def _wants_owner(request: GatewayRequest) -> bool:
    """Return True unless a copy may answer, which needs no owner."""
    return "max_staleness_s" not in request.query


def _forms_of(served: ServedKeyspace, registry: Registry) -> _Forms:
    specs = served.spec.state_specs(partitions=1)
    states = {name: StateForm(spec, registry) for name, spec in specs.items()}
    messages = {name: MessageForm(each.message, registry) for name, each in served.spec.handlers.items()}
    return _Forms(served, states, messages)


async def _written(
    request: GatewayRequest,
    client: KeyspaceClient,
    state: StateForm,
    key: Any,  # noqa: ANN401
    write: Callable[[int | None], Awaitable[KeyWritten]],
) -> Response:
    """Write a value if its version is one that the caller names. Raises PreconditionFailed, BadArgument."""
    named = _named_versions(request)
    for attempt in range(1, _WRITE_ATTEMPTS + 1):
        expected = await _expected(client, state, key, named)
        try:
            written = await write(expected)
        except StateConflict as error:
            if expected is None:
                raise
            # Another writer was faster. Its version may be one that was named, too, unless there was only one.
            if isinstance(named, int) or attempt == _WRITE_ATTEMPTS:
                raise PreconditionFailed(repr(key)) from error
        else:
            return Response(status_code=204, headers={TOKEN_HEADER: written.token})
    raise AssertionError("the last attempt returns or raises")


def _named_versions(request: GatewayRequest) -> int | frozenset[int] | str | None:
    """Return what a write expects: one version, some, any, or None if the caller does not care. Raises BadArgument."""
    named, none_match = versions_in(request.headers), request.once("if-none-match")
    if none_match is not None:
        if none_match.strip() != ANY_VERSION or named is not None:
            raise BadArgument("If-None-Match", none_match[:60], "for a write it is *, and without If-Match")
        return NO_VALUE
    if isinstance(named, frozenset) and len(named) == 1:
        return next(iter(named))
    return named


async def _expected(
    client: KeyspaceClient,
    state: StateForm,
    key: Any,  # noqa: ANN401
    named: int | frozenset[int] | str | None,
) -> int | None:
    """Return the version to expect; of several, the present one if it is among them. Raises PreconditionFailed."""
    if named is None or isinstance(named, int):
        return named
    version = (await client.read(state.name, key)).version
    if version == NO_VALUE or (isinstance(named, frozenset) and version not in named):
        raise PreconditionFailed(repr(key))
    return version


def _seconds(request: GatewayRequest, name: str) -> float | None:
    text = request.text(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e12:
        raise BadArgument(name, text[:60], "it must be a number of seconds")
    return seconds


def _pair(state: StateForm, key: Any, value: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"key": json_of(key), "value": state.to_json(value)}


async def _pairs(client: KeyspaceClient, state: StateForm, prefix: tuple[Any, ...]) -> AsyncGenerator[StreamItem, None]:
    """Yield the pairs whose keys have these first parts; all of them without any."""
    if not prefix:
        async for key, value in client.items(state.name):
            yield StreamItem(_pair(state, key, value))
        return
    after = None
    while True:
        page = await client.prefix(state.name, prefix, after=after)
        for key, value in page.items:
            yield StreamItem(_pair(state, key, value))
        if (after := page.next_after) is None:
            return


def _gathered(found: Scattered) -> dict[str, Any]:
    """Return the replies by partition, and which partitions did not reply; why is for the log."""
    return {
        "replies": {str(partition): json_of(reply) for partition, reply in found.replies.items()},
        "failed": sorted(found.failures),
    }
