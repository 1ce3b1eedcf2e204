"""Journals over HTTP: read, append, pointer, delete, purge."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

from headrace.errors import AppendIdReused, BadArgument, UnknownTopic, VoidAppend, WrongSeqNr
from headrace.gateway.event_json import EVENT_SCHEMA, NEW_EVENT_SCHEMA, EventRenderer, NewEvent, payload_of
from headrace.gateway.ports import GatewayParts, ServedJournal
from headrace.gateway.requests import GatewayRequest, refuse_page_parameters, whole_number
from headrace.gateway.routes import (
    AT_LEAST,
    JSON,
    TOKEN_HEADER,
    GatewayRoute,
    Needs,
    RouteAnswer,
    RouteParameter,
)
from headrace.gateway.streams import NDJSON, StreamItem, StreamResponse, StreamTerms
from headrace.model import MAX_SEQ_NR, Event, Position, StoredEvent, WrittenPosition
from headrace.protocol import check_text
from headrace.serde import JsonRenderer, is_framed

__all__ = ["IDEMPOTENCY_HEADER", "AppendForm", "JournalRoutes"]

AVRO = "avro/binary"
IDEMPOTENCY_HEADER = "idempotency-key"

_GROUP = "Journals"
_PATH = "/journals/{topic}/{id}"
_POINTER = f"{_PATH}/pointer"
_LIMIT = 100
_NEXT_ATTEMPTS = 100
_MOST_KEY_BYTES = 255
_SEEN_FOR_S = 5.0  # how long a topic that was there is taken to be there
_MOST_SEEN = 1_000
_NUMBER = {"type": "integer", "minimum": 1}
_AVRO_PARAMETER = RouteParameter("avro", "With `json`, payloads that are framed Avro are decoded.", {"enum": ["json"]})
_PLACE_SCHEMA = {
    "type": "object",
    "required": ["topic", "id", "first", "last"],
    "properties": {
        "topic": {"type": "string"},
        "id": {"type": "string"},
        "first": {"type": "integer"},
        "last": {"type": "integer"},
        "partition": {"type": "integer"},
        "offset": {"type": "integer"},
        "timestamp_ms": {"type": "integer"},
    },
}
_PAGE_SCHEMA = {
    "type": "object",
    "required": ["events", "next"],
    "properties": {
        "events": {"type": "array", "items": EVENT_SCHEMA},
        "next": {"type": ["integer", "null"], "description": "What `from` of the next page is; null at the end."},
    },
}
_APPEND_SCHEMA = {
    "type": "object",
    "required": ["events"],
    "additionalProperties": False,
    "properties": {
        "events": {"type": "array", "minItems": 1, "items": NEW_EVENT_SCHEMA},
        "expected": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_SEQ_NR,
            "description": "The seq_nr that the journal must be at, 0 if there must be none.",
        },
        "metadata": {},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "expire_after": {"type": "string"},
    },
}

_FROM, _TO = RouteParameter("from", "The first seq_nr.", _NUMBER), RouteParameter("to", "The last seq_nr.", _NUMBER)
_LIVE = RouteParameter("live", "Go on with events that come later (lines of JSON).", {"type": "boolean"})
_DELETE_TO = RouteParameter("to", "The last seq_nr to delete.", _NUMBER, is_required=True)
_SEQ_NR = RouteParameter("seq_nr", f"The event's number, if the body is {AVRO}.", _NUMBER)
_APPEND_ID = RouteParameter(
    "Idempotency-Key",
    "Any text, of its own for each append. Needs `expected`, or a seq_nr for each event.",
    place="header",
)
_EVENTS = RouteAnswer("The events.", content={JSON: _PAGE_SCHEMA, NDJSON: EVENT_SCHEMA})
_ONE_EVENT = RouteAnswer("The event.", content={JSON: EVENT_SCHEMA, AVRO: {"type": "string"}})
_LAST = RouteAnswer("The pointer.", content={JSON: {"type": "object", "properties": {"pointer": {"type": "integer"}}}})
_TAG_COUNTS = RouteAnswer("Counts by tag.", content={JSON: {"type": "object"}})

_route = partial(GatewayRoute, group=_GROUP)


def _needs(operation: str) -> Needs:
    return Needs(operation, "topic", "{topic}")


class AppendForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an append."""

    events: tuple[NewEvent, ...]
    expected: int | None = None
    metadata: Any = None
    headers: dict[str, str] = {}
    expire_after: str | None = None


class JournalRoutes:
    """The routes of journals."""

    def __init__(self, parts: GatewayParts, terms: StreamTerms, *, page_limit: int, create_topics: bool) -> None:
        self._parts = parts
        self._terms = terms
        self._page_limit = page_limit
        self._create_topics = create_topics
        self._renderer = JsonRenderer(parts.registry)
        self._seen_s: dict[str, float] = {}

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        return [*self._event_routes(), *self._detail_routes(), self._purge_route()]

    def _event_routes(self) -> list[GatewayRoute]:
        """Return the routes of a journal's events."""
        read = "Read events of a journal: a page as JSON, or all of them as lines of JSON."
        append = "Append events, all of them or none. With Idempotency-Key the request may be repeated."
        pages = (_FROM, _TO, self._limit_parameter(), _LIVE, _AVRO_PARAMETER, AT_LEAST)
        return [
            _route("GET", _PATH, self.read, read, answer=_EVENTS, needs=_needs("read"), parameters=pages),
            _route(
                "POST",
                _PATH,
                self.append,
                append,
                answer=RouteAnswer("Where the events are.", 201, {JSON: _PLACE_SCHEMA}, has_token=True),
                needs=_needs("append"),
                parameters=(_APPEND_ID, _SEQ_NR),
                body={JSON: _APPEND_SCHEMA, AVRO: {"type": "string", "contentMediaType": AVRO}},
            ),
            _route(
                "DELETE",
                _PATH,
                self.delete,
                "Delete the events up to a seq_nr.",
                answer=RouteAnswer("Deleted.", 204, has_token=True),
                needs=_needs("delete"),
                parameters=(_DELETE_TO,),
            ),
        ]

    def _detail_routes(self) -> list[GatewayRoute]:
        """Return the routes of what else can be read of a journal."""
        route = partial(_route, "GET", needs=_needs("read"))
        event = "Get one event as JSON, or its payload if that is framed Avro."
        tags = "Get the tags of a journal's replicated events, and how many events each has."
        known = (_AVRO_PARAMETER, AT_LEAST)
        return [
            route(_POINTER, self.pointer, "Get the last seq_nr of a journal.", answer=_LAST, parameters=(AT_LEAST,)),
            route(f"{_PATH}/events/{{seq_nr}}", self.read_one, event, answer=_ONE_EVENT, parameters=known),
            route(f"{_PATH}/tags", self.tags, tags, answer=_TAG_COUNTS, parameters=(AT_LEAST,)),
        ]

    def _purge_route(self) -> GatewayRoute:
        summary = "Remove a whole journal; the next append begins a new one."
        answer = RouteAnswer("Removed.", 204, has_token=True)
        return _route("POST", f"{_PATH}/purge", self.purge, summary, answer=answer, needs=_needs("purge"))

    def _limit_parameter(self) -> RouteParameter:
        limits = {**_NUMBER, "maximum": self._page_limit}
        return RouteParameter("limit", f"Most events of a page; {_LIMIT} if absent.", limits)

    async def read(self, request: GatewayRequest) -> object:
        """Answer with a page of events, or with a stream of all of them."""
        first = request.number("from", default=1, least=1, most=MAX_SEQ_NR)
        last = request.number("to", default=MAX_SEQ_NR, least=1, most=MAX_SEQ_NR)
        writer, is_live = self._writer(request), request.flag("live")
        journal = await self._existing(request.path["topic"])
        if request.wants((JSON, NDJSON)) == NDJSON:
            refuse_page_parameters(request, "limit")
            if (
                is_live and request.token is not None
            ):  # a stream has begun when it finds out that the token does not fit
                await journal.pointer(request.path["id"], at_least=request.token)
            events = journal.read(request.path["id"], first, to_seq_nr=last, live=is_live, at_least=request.token)
            stream = StreamResponse(
                _items(events, writer),
                NDJSON,
                self._terms,
                request_id=request.request_id,
                is_live=is_live,
                caller=request.caller,
                expires_s=request.caller.expires_s,
            )
            return stream if is_live else await stream.fetch_first()
        if is_live:
            raise BadArgument("live", True, f"a page ends; ask for {NDJSON}")
        limit = request.number("limit", default=min(_LIMIT, self._page_limit), least=1, most=self._page_limit)
        found = await _page(journal, request.path["id"], first, last, limit + 1, at_least=request.token)
        page = [await writer.write(event) for event in found[:limit]]
        return {"events": page, "next": found[limit].seq_nr if len(found) > limit else None}

    async def read_one(self, request: GatewayRequest) -> object:
        """Answer with one event, or with the bytes of its payload."""
        number = whole_number(request.path["seq_nr"])
        if number is None or not 1 <= number <= MAX_SEQ_NR:
            raise BadArgument("seq_nr", request.path["seq_nr"][:60], f"numbers go from 1 to {MAX_SEQ_NR}")
        journal = await self._existing(request.path["topic"])
        found = await _page(journal, request.path["id"], number, number, 1, at_least=request.token)
        if not found:
            return None
        payload = found[0].payload
        offered = (JSON, AVRO) if isinstance(payload, bytes) and is_framed(payload) else (JSON,)
        if request.wants(offered) == AVRO:
            return Response(payload, media_type=AVRO)
        return await self._writer(request).write(found[0])

    async def append(self, request: GatewayRequest) -> object:
        """Append, checked: the journal must be where the caller thinks it is."""
        topic, id_ = request.path["topic"], request.path["id"]
        form = await self._form(request)
        key = _idempotency_key(request)
        events = _numbered(form)
        if events is None and key is not None:
            rule = "an append that may be repeated names its numbers: give expected, or the seq_nr of each event"
            raise BadArgument("Idempotency-Key", key[:60], rule)
        journal = await self._writable(topic)
        if events is None:
            written, position = await _append_next(journal, id_, form)
            return JSONResponse(_place(topic, id_, written, position), 201, {TOKEN_HEADER: position.token})
        found = await _append_numbered(journal, id_, form, events, key)
        token = await journal.token_of(found) if isinstance(found, StoredEvent) else found.token
        return JSONResponse(_place(topic, id_, events, found), 201, {TOKEN_HEADER: token})

    async def delete(self, request: GatewayRequest) -> object:
        """Delete events; None if there is no journal."""
        if request.text("to") is None:
            raise BadArgument("to", None, "it is needed: the last seq_nr to delete")
        to = request.number("to", default=0, least=1, most=MAX_SEQ_NR)
        position = await (await self._existing(request.path["topic"])).delete(request.path["id"], to=to)
        return None if position is None else Response(status_code=204, headers={TOKEN_HEADER: position.token})

    async def pointer(self, request: GatewayRequest) -> object:
        """Answer with the last seq_nr; None if there is no journal."""
        journal = await self._existing(request.path["topic"])
        pointer = await journal.pointer(request.path["id"], at_least=request.token)
        return None if pointer is None else {"pointer": pointer}

    async def tags(self, request: GatewayRequest) -> object:
        """Answer with the counts by tag, of the tags that the caller may read."""
        path = request.path
        counts = await self._parts.tags.tags_of(path["topic"], path["id"], at_least=request.token)
        return {tag: count for tag, count in counts.items() if request.caller.may("read", "tag", tag)}

    async def purge(self, request: GatewayRequest) -> object:
        """Remove the journal; None if there is none."""
        journal = await self._existing(request.path["topic"])
        if await journal.pointer(request.path["id"]) is None:
            return None
        position = await journal.purge(request.path["id"])
        return Response(status_code=204, headers={TOKEN_HEADER: position.token})

    async def _form(self, request: GatewayRequest) -> AppendForm:
        """Return what the body asks for. An Avro body is the payload of one event; its schema must be known."""
        if request.content_type != AVRO:
            return request.json(AppendForm)
        if not is_framed(request.body):
            raise BadArgument("body", f"{len(request.body)} bytes", "it must be framed Avro: 0, schema id, Avro")
        shown = await self._renderer.render(request.body)
        if isinstance(shown, dict) and "error" in shown:
            raise BadArgument("body", f"{len(request.body)} bytes", "its schema is unknown, or it does not follow it")
        number = request.number("seq_nr", default=0, least=1, most=MAX_SEQ_NR)
        return AppendForm((NewEvent(request.body, seq_nr=number or None),))

    async def _writable(self, topic: str) -> ServedJournal:
        """Return a topic's journals. Raises UnknownTopic, unless an append may create topics."""
        return self._parts.journal(topic) if self._create_topics else await self._existing(topic)

    async def _existing(self, topic: str) -> ServedJournal:
        """Return the journals of a topic that exists: a journal that is opened would create it.

        Callers choose topics, so they must not make them, least of all by reading. Raises UnknownTopic, BadArgument.
        """
        journal = self._parts.journal(topic)
        if time.monotonic() - self._seen_s.get(topic, -_SEEN_FOR_S) >= _SEEN_FOR_S:
            if not await self._parts.has_topic(topic):
                raise UnknownTopic(topic)
            if len(self._seen_s) >= _MOST_SEEN:
                self._seen_s.clear()
            self._seen_s[topic] = time.monotonic()
        return journal

    def _writer(self, request: GatewayRequest) -> EventRenderer:
        form = request.text("avro")
        if form not in (None, "json"):
            raise BadArgument("avro", form, "it must be json, or absent")
        return EventRenderer(self._renderer if form else None)


async def _append(
    journal: ServedJournal,
    id_: str,
    form: AppendForm,
    events: Sequence[Event],
    *,
    expected: int,
    key: str | None = None,
) -> WrittenPosition:
    headers = form.headers if key is None else {**form.headers, IDEMPOTENCY_HEADER: key}
    return await journal.append(
        id_,
        events,
        expected=expected,
        append_id=key,
        metadata=form.metadata,
        headers=headers,
        expire_after=form.expire_after,
    )


async def _append_numbered(
    journal: ServedJournal, id_: str, form: AppendForm, events: Sequence[Event], key: str | None
) -> WrittenPosition | StoredEvent:
    """Append events that have numbers. A first try that is not remembered here is found in the journal itself."""
    expected = events[0].seq_nr - 1 if form.expected is None else form.expected
    try:
        return await _append(journal, id_, form, events, expected=expected, key=key)
    except (WrongSeqNr, VoidAppend):
        earlier = await _earlier_try(journal, id_, events, form.metadata, key) if key is not None else None
        if earlier is None:
            raise
        return earlier


async def _append_next(journal: ServedJournal, id_: str, form: AppendForm) -> tuple[Sequence[Event], WrittenPosition]:
    """Append events behind the last one, and again if another writer was faster."""
    for attempt in range(1, _NEXT_ATTEMPTS + 1):
        pointer = await journal.pointer(id_) or 0
        events = _events(form, range(pointer + 1, pointer + 1 + len(form.events)))
        try:
            return events, await _append(journal, id_, form, events, expected=pointer)
        except (WrongSeqNr, VoidAppend):
            if attempt == _NEXT_ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _earlier_try(
    journal: ServedJournal, id_: str, events: Sequence[Event], metadata: object, key: str
) -> StoredEvent | None:
    """Return the first event of an append that was written with the key; None if other appends have the numbers.

    Raises AppendIdReused if the key was used for other events with these numbers.
    """
    found = await _page(journal, id_, events[0].seq_nr, events[-1].seq_nr, len(events) + 1)
    if not found or any(event.headers.get(IDEMPOTENCY_HEADER) != key for event in found):
        return None
    written = [(event.seq_nr, _comparable(event.payload), event.tags) for event in found]
    if written != [(event.seq_nr, _comparable(event.payload), event.tags) for event in events]:
        raise AppendIdReused(id_, key)
    if _comparable(found[0].metadata) != _comparable(metadata):
        raise AppendIdReused(id_, key)
    return found[0]


def _idempotency_key(request: GatewayRequest) -> str | None:
    key = request.once(IDEMPOTENCY_HEADER)
    return None if key is None else check_text("Idempotency-Key", key, least=1, most=_MOST_KEY_BYTES)


def _comparable(payload: Any) -> bytes:  # noqa: ANN401
    """Return a payload so that 1 and true, and text and bytes, are different. JSON has numbers of any size."""
    if isinstance(payload, bytes):
        return b"bytes " + payload
    return msgspec.json.Encoder(order="deterministic").encode(payload)


def _numbered(form: AppendForm) -> Sequence[Event] | None:
    """Return the events with the caller's numbers; None if there are none. Raises BadArgument."""
    if not form.events:
        raise BadArgument("events", [], "an append holds at least one event")
    if form.expected is not None and not 0 <= form.expected < MAX_SEQ_NR:
        raise BadArgument("expected", form.expected, f"it is a seq_nr below {MAX_SEQ_NR}, or 0 if there is no journal")
    given = [event.seq_nr for event in form.events if event.seq_nr is not None]
    if not given:
        first = None if form.expected is None else form.expected + 1
        return None if first is None else _events(form, range(first, first + len(form.events)))
    if len(given) < len(form.events):
        raise BadArgument("events", f"{len(given)} numbers", "give a seq_nr to each event, or to none")
    return _events(form, given)


def _events(form: AppendForm, numbers: Iterable[int]) -> Sequence[Event]:
    pairs = zip(numbers, form.events, strict=True)
    return [Event(number, payload_of(event), event.tags) for number, event in pairs]


def _place(topic: str, id_: str, events: Sequence[Event], at: Position | StoredEvent) -> dict[str, Any]:
    return {
        "topic": topic,
        "id": id_,
        "first": events[0].seq_nr,
        "last": events[-1].seq_nr,
        "partition": at.partition,
        "offset": at.offset,
        "timestamp_ms": at.timestamp_ms,
    }


async def _page(
    journal: ServedJournal, id_: str, first: int, last: int, limit: int, *, at_least: str | None = None
) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    async with contextlib.aclosing(journal.read(id_, first, to_seq_nr=last, at_least=at_least)) as events:
        async for event in events:
            found.append(event)
            if len(found) == limit:
                break
    return found


async def _items(events: AsyncGenerator[StoredEvent, None], writer: EventRenderer) -> AsyncGenerator[StreamItem, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            yield StreamItem(await writer.write(event))
