"""The routes of the console: its page, what the page shows, and what can be done from it.

What other routes of the gateway answer already (events, tags, keyspaces, the state of aggregates), the page asks there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from headrace.access import Caller
from headrace.engine import EngineClient
from headrace.errors import (
    Forbidden,
    HeadraceError,
    Misconfigured,
    MissingExtra,
    MissingTables,
    NotFound,
    OutdatedTables,
)
from headrace.gateway.console.cluster_facts import cluster_as_json, cluster_problems
from headrace.gateway.console.pages import ConsolePages
from headrace.gateway.console.ports import ConsoleOutbox, ConsoleParts, DeadChange, TopicFacts
from headrace.gateway.console.recorder import ChartPoint, ConsoleRecorder, now_ms
from headrace.gateway.event_json import BytesRenderer
from headrace.gateway.requests import GatewayRequest
from headrace.gateway.routes import JSON, GatewayRoute, Needs, RouteAnswer, RouteParameter
from headrace.journal import Moment
from headrace.observe import Health, get_logger
from headrace.serde import Registry

__all__ = ["ACTION_HEADER", "ConsoleRoutes"]

ACTION_HEADER = "headrace-action"

_logger = get_logger(__name__)
_GROUP = "Console"
_API = "/console/api"
_JOURNAL = f"{_API}/journals/{{topic}}/{{id}}"
_HELD = f"{_API}/quarantine/{{topic}}/{{id}}"
_DEAD = f"{_API}/outbox/{{topic}}"
_JOURNALS_SHOWN = 200
_MOMENTS_SHOWN = 500
_DEAD_SHOWN = 200
_IDS_AT_MOST = 1_000
_OBJECT = {"type": "object"}
_ACTION = RouteParameter(
    "Headrace-Action", "Any text: pages of other origins can't send it.", place="header", is_required=True
)
_ONE_ID = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_ONE_OFFSET = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# Who may see a chart's line: the kind of thing that the line's name names, or a part of the system.
_LINES_OF_TOPICS = ("rate", "lag")
_LINES_OF_ENGINES = ("commands", "sent", "command_p50_ms", "command_p99_ms")
_LINES_OF_OUTBOX = ("pending", "dead")
_LINES_OF_GATEWAY = ("requests", "failed", "request_p99_ms")
NO_NODE = (
    "This gateway has no node in its process, so it sees no cluster. Serve the console from a node "
    "(headrace node run --http), or name the application (headrace gateway run --app)."
)
NO_OUTBOX = "No outbox is configured here: set outbox.database to the database that has its tables."

_IDS_BODY = {
    JSON: {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "ids": {
                "type": "array",
                "minItems": 1,
                "maxItems": _IDS_AT_MOST,
                "items": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
            }
        },
    }
}
_OFFSET_BODY = {
    JSON: {
        "type": "object",
        "additionalProperties": False,
        "required": ["offset"],
        "properties": {"offset": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}},
    }
}


class DeadChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead messages of a topic: those with these ids, or all of them."""

    ids: Annotated[tuple[_ONE_ID, ...], msgspec.Meta(min_length=1, max_length=_IDS_AT_MOST)] | None = None


class HeldChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset of the record that is decided about, so that no other record is meant."""

    offset: _ONE_OFFSET


class ConsoleRoutes:
    """The routes of the console."""

    def __init__(
        self,
        parts: ConsoleParts,
        recorder: ConsoleRecorder,
        registry: Registry,
        health: Health,
        engines: Sequence[EngineClient[Any]],
        *,
        version: str,
        refresh_health: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._recorder = recorder
        self._health = health
        self._engines = {each.engine.name: each.engine for each in engines}
        self._version = version
        self._refresh_health = refresh_health
        self._pages = ConsolePages()
        self._bytes = BytesRenderer(registry)

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        return [*self._page_routes(), *self._reading_routes(), *self._action_routes()]

    def _page_routes(self) -> list[GatewayRoute]:
        page = partial(GatewayRoute, "GET", group=_GROUP)
        text = {"type": "string"}
        return [
            page(
                "/console",
                self._pages.index,
                "Get the console, a page for browsers.",
                answer=RouteAnswer("The page.", content={"text/html": text}),
            ),
            page(
                "/console/assets/{name}",
                self._pages.asset,
                "Get a file of that page.",
                answer=RouteAnswer(
                    "The file.", content={"text/javascript": text, "text/css": text, "image/svg+xml": text}
                ),
            ),
        ]

    def _reading_routes(self) -> list[GatewayRoute]:
        route = partial(
            GatewayRoute, "GET", group=_GROUP, answer=RouteAnswer("What is known.", content={JSON: _OBJECT})
        )
        topic = Needs("read", "topic", "{topic}")
        return [
            route(f"{_API}/overview", self.overview, "Get what is wrong, and what the caller may see and do."),
            route(f"{_API}/topics", self.topics, "Get the topics that the caller may read, with offsets and lag."),
            route(f"{_API}/charts", self.charts, "Get the charts of the last hour, of what the caller may read."),
            route(f"{_API}/engines", self.engines, "Get the engines that the caller may read, with rates and times."),
            route(
                f"{_API}/cluster",
                self.cluster,
                "Get nodes, owners, standbys and moves.",
                needs=Needs("read", "system", "cluster"),
            ),
            route(f"{_API}/journals/{{topic}}", self.journals, "Get some journals of a topic.", needs=topic),
            route(f"{_JOURNAL}/history", self.history, "Get every action on a journal that the log has.", needs=topic),
            route(
                f"{_API}/outbox",
                self.outbox,
                "Get what waits in the outbox, and dead messages of topics that the caller may read.",
                needs=Needs("read", "system", "outbox"),
            ),
            route(f"{_API}/quarantine", self.quarantine, "Get the journals that are held, and why."),
        ]

    def _action_routes(self) -> list[GatewayRoute]:
        done = RouteAnswer("What was done.", content={JSON: _OBJECT})
        route = partial(GatewayRoute, "POST", group=_GROUP, answer=done, parameters=(_ACTION,))
        dead = partial(route, needs=Needs("write", "system", "outbox"), body=_IDS_BODY)
        held = partial(route, needs=Needs("write", "system", "quarantine"), body=_OFFSET_BODY)
        replay, purge = partial(self.change_dead, "replay"), partial(self.change_dead, "purge")
        release, skip = partial(self.decide, False), partial(self.decide, True)
        return [
            dead(f"{_DEAD}/replay", replay, "Send dead messages of a topic again, all or those with the given ids."),
            dead(f"{_DEAD}/purge", purge, "Remove dead messages of a topic forever, all or those with the given ids."),
            held(f"{_HELD}/release", release, "Decode the record that a journal is held from again."),
            held(f"{_HELD}/skip", skip, "Skip the record that a journal is held from, forever."),
        ]

    async def overview(self, request: GatewayRequest) -> object:
        """Answer with what is wrong. What the caller may not see is named, so that silence is not taken for health."""
        caller = request.caller
        if not caller.grants:
            raise Forbidden("use the console", f"{caller.subject} has no grants")
        may = {name: caller.may("read", "system", name) for name in ("health", "cluster", "outbox", "metrics")}
        problems: list[dict[str, Any]] = []
        if may["health"]:
            await self._refresh_health()
            problems += [
                {"level": "bad", "text": f"{text[:1].upper()}{text[1:]}."} for text in self._health.complaints()
            ]
        view = self._parts.cluster
        if may["cluster"] and view is not None:
            self._recorder.look_at_cluster()
            problems += cluster_problems(view, self._recorder.departures)
        if may["outbox"]:
            problems += self._outbox_problems(caller)
        return {
            "version": self._version,
            "now_ms": now_ms(),
            "caller": caller.subject,
            "is_anonymous": caller.is_anonymous,
            "expires_ms": None if caller.expires_s is None else round(caller.expires_s * 1000),
            "problems": problems,
            "nodes": len(view.members) if may["cluster"] and view is not None else None,
            "unseen": [name for name, is_seen in may.items() if not is_seen and name != "metrics"],
            "may_change": {name: caller.may("write", "system", name) for name in ("outbox", "quarantine")},
        }

    async def topics(self, request: GatewayRequest) -> object:
        """Answer with topics."""
        found = await self._recorder.topics()
        readable = [each for each in found.topics if request.caller.may("read", "topic", each.name)]
        return {"topics": [self._topic(each) for each in readable], "left_out": found.left_out}

    async def charts(self, request: GatewayRequest) -> object:
        """Answer with the lines that the caller may see."""
        may_see = partial(_may_see, request.caller)
        names = (*_LINES_OF_TOPICS, *_LINES_OF_ENGINES, *_LINES_OF_OUTBOX, *_LINES_OF_GATEWAY)
        charts = {name: _lines(self._recorder.charts.lines(name), partial(may_see, name)) for name in names}
        return {"now_ms": now_ms(), "every_s": self._recorder.every_s, "charts": charts}

    async def engines(self, request: GatewayRequest) -> object:
        """Answer with the engines, and what this process measured of them."""
        readable = [name for name in sorted(self._engines) if request.caller.may("read", "engine", name)]
        return {"engines": [self._engine(name) for name in readable]}

    async def cluster(self, request: GatewayRequest) -> object:
        """Answer with the cluster, or why there is nothing to see."""
        view = self._parts.cluster
        if view is None:
            return {"is_available": False, "why": NO_NODE}
        self._recorder.look_at_cluster()
        found = cluster_as_json(view, self._recorder.departures, node_id=self._parts.node_id)
        return {"is_available": True, **found}

    async def journals(self, request: GatewayRequest) -> object:
        """Answer with journals of a topic."""
        found = await self._parts.topics.journals(request.path["topic"], limit=_JOURNALS_SHOWN + 1)
        return {"journals": found[:_JOURNALS_SHOWN], "is_cut": len(found) > _JOURNALS_SHOWN}

    async def history(self, request: GatewayRequest) -> object:
        """Answer with the last actions on a journal."""
        kept: deque[Moment] = deque(maxlen=_MOMENTS_SHOWN)
        is_cut = False
        async for each in self._parts.topics.history(request.path["topic"], request.path["id"]):
            is_cut = is_cut or len(kept) == _MOMENTS_SHOWN
            kept.append(each)
        return {"moments": list(kept), "is_cut": is_cut}

    async def outbox(self, request: GatewayRequest) -> object:
        """Answer with the outbox, or why it can't be shown."""
        if self._parts.outbox is None:
            return {"is_available": False, "why": NO_OUTBOX}
        try:
            lanes, dead = await self._parts.outbox.lanes(), await self._parts.outbox.dead(limit=_DEAD_SHOWN)
        except Misconfigured as error:
            _logger.warning("the console can't show the outbox", request_id=request.request_id, error=repr(error))
            return {"is_available": False, "why": _why_unusable(error)}
        self._recorder.note_lanes(lanes)
        may_read = partial(request.caller.may, "read", "topic")
        return {
            "is_available": True,
            "lanes": [msgspec.to_builtins(lane) for lane in lanes if may_read(lane.topic)],
            "dead": [await self._bytes.message(each) for each in dead if may_read(each.topic)],
            "is_cut": len(dead) >= _DEAD_SHOWN,
            "may_change": request.caller.may("write", "system", "outbox"),
        }

    async def change_dead(self, change: DeadChange, request: GatewayRequest) -> object:
        """Replay or purge dead messages of a topic that the caller may read."""
        _check_action(request)
        topic, choice = request.path["topic"], request.json(DeadChoice)
        request.caller.check("read", "topic", topic)
        count = await self._outbox().change_dead(change, topic, choice.ids)
        _logger.info("dead messages changed", change=change, topic=topic, count=count, by=request.caller.subject)
        return {"count": count}

    async def quarantine(self, request: GatewayRequest) -> object:
        """Answer with what is held of the topics that the caller may read."""
        found = await self._recorder.topics()
        may_read = partial(request.caller.may, "read", "topic")
        names = [each.name for each in found.topics if each.is_journal and may_read(each.name)]
        held = await self._parts.quarantine.held(names)
        return {"held": held, "topics": len(names), "may_change": request.caller.may("write", "system", "quarantine")}

    async def decide(self, skip: bool, request: GatewayRequest) -> object:
        """Write a decision about a record that a journal is held from."""
        _check_action(request)
        topic, id_ = request.path["topic"], request.path["id"]
        request.caller.check("read", "topic", topic)
        offset = request.json(HeldChoice).offset
        position = await self._parts.quarantine.decide(topic, id_, skip=skip, offset=offset)
        _logger.info("quarantine decided", skip=skip, topic=topic, id=id_, offset=offset, by=request.caller.subject)
        return {"partition": position.partition, "offset": position.offset}

    def _outbox_problems(self, caller: Caller) -> Iterator[dict[str, Any]]:
        if "outbox" in self._recorder.failing:
            yield {"level": "warn", "text": "The outbox can't be asked: what waits there is not known."}
            return
        for topic, count in sorted(self._recorder.dead.items()):
            if count and caller.may("read", "topic", topic):
                yield {"level": "warn", "text": f"{count} of the outbox's messages for {topic} could not be sent."}

    def _outbox(self) -> ConsoleOutbox:
        if self._parts.outbox is None:
            raise NotFound("outbox that this gateway knows; set outbox.database")
        return self._parts.outbox

    def _topic(self, facts: TopicFacts) -> dict[str, Any]:
        return {
            "name": facts.name,
            "is_journal": facts.is_journal,
            "head": facts.head,
            "lag": facts.lag,
            "rate": self._recorder.charts.last("rate", facts.name),
            "partitions": [{**msgspec.to_builtins(each), "lag": each.lag} for each in facts.partitions],
        }

    def _engine(self, name: str) -> dict[str, Any]:
        view, node_id = self._parts.cluster, self._parts.node_id
        owners = view.owners.get(name, {}) if view is not None else {}
        last = partial(self._recorder.charts.last, line=name)
        return {
            "name": name,
            "names": self._engines[name].commands.names,
            "partitions": self._engines[name].partitions,
            "owned_here": sum(owner.member == node_id for owner in owners.values()),
            "sent": last("sent"),
            "committed": last("commands"),
            "p50_ms": last("command_p50_ms"),
            "p99_ms": last("command_p99_ms"),
        }


def _may_see(caller: Caller, chart: str, line: str) -> bool:
    if chart in _LINES_OF_TOPICS:
        return caller.may("read", "topic", line)
    if chart in _LINES_OF_ENGINES:
        return caller.may("read", "engine", line)
    if chart in _LINES_OF_OUTBOX:
        return caller.may("read", "system", "outbox") and caller.may("read", "topic", line)
    return caller.may("read", "system", "metrics")


def _lines(found: Mapping[str, Sequence[ChartPoint]], is_seen: Callable[[str], bool]) -> dict[str, list[ChartPoint]]:
    return {line: list(points) for line, points in found.items() if is_seen(line)}


def _check_action(request: GatewayRequest) -> None:
    """Raise Forbidden for an action that a page of another origin may have caused.

    Browsers send a header of this kind only for pages of the same origin, or after asking (CORS). The gateway checks
    the origin as well; this holds where a proxy removes it.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if ACTION_HEADER not in request.headers or site not in ("same-origin", "none"):
        raise Forbidden("do this from that page", "an action has the header Headrace-Action and comes from the console")


def _why_unusable(error: HeadraceError) -> str:
    """Return why the outbox can't be shown, without the names of hosts and files that an error may hold."""
    if isinstance(error, MissingTables | OutdatedTables):
        return "The outbox's tables are missing or of an earlier version; run: headrace outbox migrate"
    if isinstance(error, MissingExtra):
        return f"The gateway lacks {error.module}; install headrace[{error.extra}] where it runs."
    return "The outbox's database can't be used; the gateway's log says why."
