"""Events by tag over HTTP: pages of JSON, lines of JSON, and server-sent events that go on and can be resumed.

A caller gets the events of the topics that it may read; others under the same tag are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from headrace.access import Caller
from headrace.errors import BadArgument
from headrace.gateway.event_json import EVENT_SCHEMA, EventRenderer
from headrace.gateway.ports import GatewayParts
from headrace.gateway.requests import GatewayRequest, refuse_page_parameters
from headrace.gateway.routes import AT_LEAST, JSON, GatewayRoute, RouteAnswer, RouteParameter
from headrace.gateway.streams import EVENT_STREAM, NDJSON, StreamItem, StreamResponse, StreamTerms
from headrace.serde import JsonRenderer
from headrace.tags import After, TaggedEvent

__all__ = ["TagRoutes"]

_GROUP = "Events by tag"
_LIMIT = 100
_TAGS_AT_MOST = 100
_LEFT_OUT_AT_MOST = 1_000  # events of a page that the caller may not read
_PAGE_SCHEMA = {
    "type": "object",
    "required": ["events", "next", "is_end"],
    "properties": {
        "events": {"type": "array", "items": EVENT_SCHEMA},
        "next": {"type": ["string", "null"], "description": "What `after` of the next page is."},
        "is_end": {"type": "boolean", "description": "True if there were no further events."},
    },
}


class TagRoutes:
    """The routes of tags."""

    def __init__(self, parts: GatewayParts, terms: StreamTerms, *, page_limit: int) -> None:
        self._parts = parts
        self._terms = terms
        self._page_limit = page_limit
        self._renderer = JsonRenderer(parts.registry)

    def routes(self) -> list[GatewayRoute]:
        """Return the routes. Permissions depend on the tags in the query, so the handlers check them."""
        limits = {"type": "integer", "minimum": 1, "maximum": self._page_limit}
        flag = {"type": "boolean"}
        route = partial(GatewayRoute, group=_GROUP)
        return [
            route(
                "GET",
                "/tags",
                self.tags,
                "List the tags of replicated events, of those that the caller may read.",
                answer=RouteAnswer("The tags.", content={JSON: {"type": "object", "required": ["tags"]}}),
                parameters=(AT_LEAST,),
            ),
            route(
                "GET",
                "/events",
                self.events,
                "Get the events of tags, each once, in one order: a page, or a stream that goes on.",
                answer=RouteAnswer(
                    "The events.",
                    content={JSON: _PAGE_SCHEMA, NDJSON: EVENT_SCHEMA, EVENT_STREAM: {"type": "string"}},
                ),
                parameters=(
                    RouteParameter("tag", "The tag; of several, each event once.", is_required=True),
                    RouteParameter("after", "An offset (tag_offset of an event), or a time as 2026-01-31T12:00Z."),
                    RouteParameter("limit", f"Most events of a page; {_LIMIT} if absent.", limits),
                    RouteParameter("live", "Go on with events that come later (lines of JSON).", flag),
                    RouteParameter("skip_trimmed", "Begin behind events that were removed because of age.", flag),
                    RouteParameter(
                        "avro", "With `json`, payloads that are framed Avro are decoded.", {"enum": ["json"]}
                    ),
                    RouteParameter("Last-Event-ID", "The same as `after`, which it wins over.", place="header"),
                    AT_LEAST,
                ),
            ),
        ]

    async def tags(self, request: GatewayRequest) -> object:
        """Answer with the tags that the caller may read."""
        found = await self._parts.tags.tags(at_least=request.token)
        return {"tags": [tag for tag in found if request.caller.may("read", "tag", tag)]}

    async def events(self, request: GatewayRequest) -> object:
        """Answer with a page of events, or with a stream."""
        tags = _tags_of(request)
        after = _after_of(request.headers.get("last-event-id") or request.text("after"))
        media_type = request.wants((JSON, NDJSON, EVENT_STREAM))
        is_live = request.flag("live") or media_type == EVENT_STREAM
        if media_type == JSON:
            if is_live:
                raise BadArgument("live", True, f"a page ends; ask for {NDJSON} or {EVENT_STREAM}")
            return await self._page(request, tags, after)
        refuse_page_parameters(request, "limit")
        found = self._parts.tags.events(
            tags, after=after, live=is_live, skip_trimmed=request.flag("skip_trimmed"), at_least=request.token
        )
        response = StreamResponse(
            _items(found, self._writer(request), request.caller),
            media_type,
            self._terms,
            request_id=request.request_id,
            is_live=is_live,
            caller=request.caller,
            expires_s=request.caller.expires_s,
        )
        return response if is_live else await response.fetch_first()

    async def _page(self, request: GatewayRequest, tags: list[str], after: After) -> dict[str, Any]:
        limit = request.number("limit", default=min(_LIMIT, self._page_limit), least=1, most=self._page_limit)
        writer = self._writer(request)
        page: list[dict[str, Any]] = []
        left_out = 0
        place = str(after) if isinstance(after, str) else None
        found = self._parts.tags.events(
            tags, after=after, skip_trimmed=request.flag("skip_trimmed"), at_least=request.token
        )
        async with contextlib.aclosing(found) as events:
            async for event in events:
                # A tag with a million events that the caller may not read is gone through in many short requests.
                if len(page) == limit or left_out == _LEFT_OUT_AT_MOST:
                    return {"events": page, "next": place, "is_end": False}
                place = str(event.tag_offset)
                if request.caller.may("read", "topic", event.topic):
                    page.append(await writer.write(event))
                else:
                    left_out += 1
        return {"events": page, "next": place, "is_end": True}

    def _writer(self, request: GatewayRequest) -> EventRenderer:
        form = request.text("avro")
        if form not in (None, "json"):
            raise BadArgument("avro", form, "it must be json, or absent")
        return EventRenderer(self._renderer if form else None)


async def _items(
    events: AsyncGenerator[TaggedEvent, None], writer: EventRenderer, caller: Caller
) -> AsyncGenerator[StreamItem, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            if caller.may("read", "topic", event.topic):
                yield StreamItem(await writer.write(event), str(event.tag_offset))


def _tags_of(request: GatewayRequest) -> list[str]:
    """Return the tags of the query, which the caller must all be allowed to read. Raises BadArgument, Forbidden."""
    tags = list(dict.fromkeys(request.query.getlist("tag")))
    if not 1 <= len(tags) <= _TAGS_AT_MOST:
        raise BadArgument("tag", len(tags), f"a query names 1 to {_TAGS_AT_MOST} tags, as in ?tag=vip")
    for tag in tags:
        request.caller.check("read", "tag", tag)
    return tags


def _after_of(text: str | None) -> After:
    """Return where to begin: an offset stays text, a time is parsed. Raises BadArgument."""
    if not text:
        return None
    if ":" in text and "-" not in text.removeprefix("-").partition(":")[0]:
        return text
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # the latter for the first or last day of all, in another zone
        rule = "it must be the tag_offset of an event, or a time as 2026-01-31T12:00Z"
        raise BadArgument("after", text[:60], rule) from error
