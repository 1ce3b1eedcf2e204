"""The table of routes: what is served at which path, who may use it, and how it is described.

Paths are matched by their raw segments, each decoded alone, so that a journal whose id holds a slash has a path too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from headrace.access import ResourceKind
from headrace.errors import BadArgument, NoSuchRoute

if TYPE_CHECKING:
    from starlette.responses import Response

    from headrace.gateway.requests import GatewayRequest

__all__ = [
    "AT_LEAST",
    "JSON",
    "TOKEN_HEADER",
    "GatewayRoute",
    "Handler",
    "Match",
    "Needs",
    "RouteAnswer",
    "RouteParameter",
    "RouteTable",
]

Handler: TypeAlias = "Callable[[GatewayRequest], Awaitable[object]]"
JsonSchema: TypeAlias = Mapping[str, Any]

JSON = "application/json"


class Needs(NamedTuple):
    """The permission that a route needs; `name` is the path parameter that names the thing, or a fixed name."""

    operation: str
    kind: ResourceKind
    name: str

    def thing(self, path: Mapping[str, str]) -> str:
        """Return the name of the thing in a request's path."""
        return path[self.name[1:-1]] if self.name.startswith("{") else self.name


@dataclass(frozen=True, slots=True)
class RouteParameter:
    """A parameter in the query or in a header."""

    name: str
    about: str
    schema: JsonSchema = field(default_factory=lambda: {"type": "string"})
    place: Literal["query", "header"] = "query"
    is_required: bool = False


TOKEN_HEADER = "Headrace-Token"  # noqa: S105 - a name, and no secret
"""The header of consistency tokens: of answers to writes, and of requests that must show what was written."""

AT_LEAST = RouteParameter(
    TOKEN_HEADER, "The consistency token of a write, or several with commas: the answer shows it.", place="header"
)


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """A successful answer: its status, its schema by media type, and whether it has a consistency token."""

    about: str
    status: int = 200
    content: Mapping[str, JsonSchema] = field(default_factory=dict)
    has_token: bool = False


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """One method of one path. `{name}` in the path is a parameter.

    A handler gets the request and returns what JSON can carry, a Response, or None, which is answered with 404. The
    deadline is the handler's: a stream that it returns has none. Without `needs` everybody may use the route. A request
    that `needs_owners` is held, or refused, while partitions have no owner. `at_once` is asked before the handler: it
    returns the answer if nothing has to be waited for, and otherwise None, having done nothing.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    group: str
    answer: RouteAnswer
    needs: Needs | None = None
    parameters: tuple[RouteParameter, ...] = ()
    body: Mapping[str, JsonSchema] | None = None
    takes_any_query: bool = False
    needs_owners: Callable[[GatewayRequest], bool] | None = None
    at_once: Callable[[GatewayRequest], Response | None] | None = None

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path."""
        return tuple(self.path.strip("/").split("/")) if self.path != "/" else ()

    @property
    def path_parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(part[1:-1] for part in self.segments if part.startswith("{"))


class Match(NamedTuple):
    """The route of a request, and the parameters of its path."""

    route: GatewayRoute
    path: dict[str, str]


class RouteTable:
    """All routes. A fixed segment wins over a parameter. Raises BadArgument for two routes that are the same."""

    def __init__(self, routes: Sequence[GatewayRoute]) -> None:
        self.routes = tuple(routes)
        # By the number of segments and the first one, which is a parameter in few paths: most others are not looked at.
        self._by_start: dict[tuple[int, bytes | None], list[_PathShape]] = {}
        for route in sorted(routes, key=lambda each: [part.startswith("{") for part in each.segments]):
            self._add(route)

    def _add(self, route: GatewayRoute) -> None:
        shape = _shape_of(route)
        start = shape.fixed[0][1] if shape.fixed and shape.fixed[0][0] == 0 else None
        known = self._by_start.setdefault((len(route.segments), start), [])
        same = next((each for each in known if each.fixed == shape.fixed), None)
        if same is None:
            known.append(shape)
        elif route.method in same.methods:
            raise BadArgument("routes", f"{route.method} {route.path}", "another route has this method and path")
        else:
            same.methods.update(shape.methods)

    def find(self, method: str, raw_path: bytes) -> Match | None:
        """Return the route of a request; None if nothing is served at the path. Raises NoSuchRoute, BadArgument."""
        raw = raw_path.split(b"?", 1)[0].strip(b"/")
        given = raw.split(b"/") if raw else []
        if b"" in given:  # no parameter is empty
            return None
        wanted = "GET" if method == "HEAD" else method
        allowed: dict[str, GatewayRoute] = {}
        for start in (given[0] if given else None, None):
            for shape in self._by_start.get((len(given), start), ()):
                if shape.fits(given):
                    found = shape.methods.get(wanted)
                    if found is not None:
                        return Match(found[0], {name: _decoded(name, given[at]) for at, name in found[1]})
                    for each, (route, _) in shape.methods.items():
                        allowed.setdefault(each, route)
        if not allowed:
            return None
        raise NoSuchRoute(method, next(iter(allowed.values())).path, tuple(sorted(allowed)))


class _PathShape(NamedTuple):
    """What stands at which place in the paths of some routes, and by method the route and where its parameters are."""

    fixed: tuple[tuple[int, bytes], ...]
    methods: dict[str, tuple[GatewayRoute, tuple[tuple[int, str], ...]]]

    def fits(self, given: Sequence[bytes]) -> bool:
        """Return True if the segments are those of the routes."""
        for at, part in self.fixed:  # noqa: SIM110 - every request comes here, and a generator costs more
            if given[at] != part:
                return False
        return True


def _shape_of(route: GatewayRoute) -> _PathShape:
    parts = list(enumerate(route.segments))
    parameters = tuple((at, part[1:-1]) for at, part in parts if part.startswith("{"))
    fixed = tuple((at, part.encode()) for at, part in parts if not part.startswith("{"))
    return _PathShape(fixed, {route.method: (route, parameters)})


def _decoded(name: str, raw: bytes) -> str:
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError as error:
        raise BadArgument(name, raw.decode("ascii", "replace"), "a path is UTF-8, percent-encoded") from error
