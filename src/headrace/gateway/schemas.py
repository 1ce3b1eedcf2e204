"""Schemas in the dialect of Confluent's registry, so that its clients work against the gateway unchanged.

Problems carry `error_code` and `message` beside the members of a JSON problem: those clients read these.
What this registry never does, deleting versions, removing levels and changing modes, is answered with 501.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import Any, Literal

import msgspec
from starlette.responses import JSONResponse

from headrace.errors import (
    BadArgument,
    BadSchema,
    HeadraceError,
    IncompatibleSchema,
    NotRegistered,
    UnknownSchema,
    UnknownSubject,
)
from headrace.gateway.problems import PROBLEM_JSON, problem_of
from headrace.gateway.requests import GatewayRequest, whole_number
from headrace.gateway.routes import JSON, GatewayRoute, Handler, Needs, RouteAnswer, RouteParameter
from headrace.serde import Level, Registry, Schema, Version, incompatibilities

__all__ = ["SchemaRoutes"]

DIALECT = "application/vnd.schemaregistry.v1+json"

_GROUP = "Schemas"
_SUBJECT = "/subjects/{subject}"
_LATEST = ("latest", "-1")
_SCHEMA_BODY = {
    JSON: {
        "type": "object",
        "required": ["schema"],
        "properties": {
            "schema": {"type": "string"},
            "schemaType": {"type": "string"},
            "references": {"type": "array"},
        },
    },
}
_LEVEL_BODY = {
    JSON: {
        "type": "object",
        "required": ["compatibility"],
        "properties": {"compatibility": {"enum": [str(level) for level in Level]}},
    }
}
_ANYTHING = RouteAnswer("As Confluent's registry answers.", content={DIALECT: {}})


class _SchemaForm(msgspec.Struct, frozen=True):
    """The body with a schema; what clients of later versions add is ignored."""

    schema: str
    schemaType: str | None = None  # noqa: N815 - the dialect's name
    references: list[Any] | None = None


class _LevelForm(msgspec.Struct, frozen=True):
    compatibility: str | None = None


class _DialectRefusal(Exception):
    """A refusal that only the dialect has."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SchemaRoutes:
    """The routes of schemas."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        read, register, configure = (partial(Needs, each, "schema") for each in ("read", "register", "configure"))
        one, both = "{subject}", f"{_SUBJECT}/versions/{{version}}"
        check = "/compatibility/subjects/{subject}/versions"
        by_id = "/schemas/ids/{id}"
        return [
            _route("GET", "/subjects", self.subjects, "List all subjects."),
            _route("GET", f"{_SUBJECT}/versions", self.versions, "List the versions of a subject.", read(one)),
            _route("GET", both, self.version, "Get a version of a subject.", read(one)),
            _route("GET", f"{both}/schema", self.version_schema, "Get the schema of a version.", read(one)),
            _route("GET", f"{both}/referencedby", self.nothing, "List what refers to a version: nothing.", read(one)),
            _route(
                "POST", f"{_SUBJECT}/versions", self.register, "Register a schema.", register(one), body=_SCHEMA_BODY
            ),
            _route("POST", _SUBJECT, self.lookup, "Find the version with a schema.", read(one), body=_SCHEMA_BODY),
            _route("DELETE", _SUBJECT, self.never, "Delete a subject: never done.", register(one)),
            _route("DELETE", both, self.never, "Delete a version: never done.", register(one)),
            _route("GET", f"{_SUBJECT}/metadata", self.metadata, "Find a version by its metadata: none.", read(one)),
            _route("GET", "/schemas/types", self.types, "List the kinds of schemas: AVRO."),
            _route("GET", by_id, self.by_id, "Get a schema by its id."),
            _route("GET", f"{by_id}/schema", self.by_id_schema, "Get a schema alone by its id."),
            _route("GET", f"{by_id}/versions", self.by_id_versions, "List the versions with a schema."),
            _route("GET", f"{by_id}/subjects", self.by_id_subjects, "List the subjects with a schema."),
            _route("GET", "/schemas/guids/{guid}", self.by_guid, "Get a schema by its GUID: none has one."),
            _route("GET", "/contexts", self.contexts, "List the contexts: the one that has no name."),
            _route("POST", check, self.check_all, "Check a schema against the level.", read(one), body=_SCHEMA_BODY),
            _route(
                "POST",
                f"{check}/{{version}}",
                self.check_one,
                "Check a schema against one version.",
                read(one),
                body=_SCHEMA_BODY,
            ),
            _route("GET", "/config", self.default_level, "Get the default level."),
            _route("PUT", "/config", self.set_level, "Set the default level.", configure("*"), body=_LEVEL_BODY),
            _route("GET", "/config/{subject}", self.level, "Get the level of a subject.", read(one)),
            _route(
                "PUT", "/config/{subject}", self.set_level, "Set a subject's level.", configure(one), body=_LEVEL_BODY
            ),
            _route("DELETE", "/config", self.no_removal, "Remove the default level: never done.", configure("*")),
            _route(
                "DELETE", "/config/{subject}", self.no_removal, "Remove a subject's level: never done.", configure(one)
            ),
            *self._mode_routes(),
        ]

    def _mode_routes(self) -> list[GatewayRoute]:
        """Return the routes of modes: there is one."""
        everything, one = Needs("configure", "schema", "*"), Needs("configure", "schema", "{subject}")
        read, of_one = Needs("read", "schema", "{subject}"), "/mode/{subject}"
        return [
            _route("GET", "/mode", self.mode, "Get the mode: READWRITE."),
            _route("PUT", "/mode", self.no_other_mode, "Set the mode: never done.", everything),
            _route("DELETE", "/mode", self.no_other_mode, "Remove the mode: never done.", everything),
            _route("GET", of_one, self.mode, "Get the mode of a subject: READWRITE.", read),
            _route("PUT", of_one, self.no_other_mode, "Set a subject's mode: never done.", one),
            _route("DELETE", of_one, self.no_other_mode, "Remove a subject's mode: never done.", one),
        ]

    async def subjects(self, request: GatewayRequest) -> object:
        """List the subjects that the caller may read."""
        prefix = request.text("subjectPrefix") or ""
        found = [name for name in await self._registry.subjects() if name.startswith(prefix.removesuffix(":*:"))]
        return _window(request, [name for name in found if request.caller.may("read", "schema", name)])

    async def versions(self, request: GatewayRequest) -> object:
        """List the numbers of a subject's versions."""
        found = [each.version for each in await self._registry.versions(request.path["subject"])]
        return _window(request, found)

    async def version(self, request: GatewayRequest) -> object:
        """Return a version."""
        return _as_json(await self._version(request))

    async def version_schema(self, request: GatewayRequest) -> object:
        """Return the schema of a version."""
        return msgspec.Raw((await self._version(request)).schema.text.encode())

    async def register(self, request: GatewayRequest) -> object:
        """Register a schema."""
        version = await self._registry.register(request.path["subject"], _schema_of(request))
        return _as_json(version)

    async def lookup(self, request: GatewayRequest) -> object:
        """Return the version of a subject that has the schema."""
        subject, wanted = request.path["subject"], _schema_of(request)
        found = [each for each in await self._registry.versions(subject) if each.schema == wanted]
        if not found:
            raise _DialectRefusal(404, 40403, f"subject {subject!r} has no version with this schema")
        return _as_json(found[0])

    async def by_id(self, request: GatewayRequest) -> object:
        """Return a schema."""
        return {"schema": (await self._by_id(request)).text}

    async def by_id_schema(self, request: GatewayRequest) -> object:
        """Return a schema's own JSON."""
        return msgspec.Raw((await self._by_id(request)).text.encode())

    async def by_id_versions(self, request: GatewayRequest) -> object:
        """List the subjects and versions with a schema."""
        found = await self._uses(request, await self._by_id(request))
        return _window(request, [{"subject": each.subject, "version": each.version} for each in found])

    async def by_id_subjects(self, request: GatewayRequest) -> object:
        """List the subjects with a schema."""
        found = await self._uses(request, await self._by_id(request))
        return _window(request, sorted({each.subject for each in found}))

    async def check_all(self, request: GatewayRequest) -> object:
        """Check a schema as registering it would."""
        return await self._checked(request, await self._versions_or_none(request.path["subject"]))

    async def check_one(self, request: GatewayRequest) -> object:
        """Check a schema against one version."""
        earlier = await self._versions_or_none(request.path["subject"])
        if not earlier and request.path["version"] in _LATEST:
            return await self._checked(request, ())
        return await self._checked(request, [await self._version(request)])

    async def default_level(self, request: GatewayRequest) -> object:
        """Return the default level."""
        return {"compatibilityLevel": str(await self._registry.levels.get(None))}

    async def level(self, request: GatewayRequest) -> object:
        """Return the level in force for a subject."""
        return {"compatibilityLevel": str(await self._registry.levels.get(request.path["subject"]))}

    async def set_level(self, request: GatewayRequest) -> object:
        """Set a level."""
        asked = (request.json(_LevelForm).compatibility or "").upper()
        if asked not in Level.__members__:
            raise _DialectRefusal(422, 42203, f"a level is one of {', '.join(Level.__members__)}")
        await self._registry.levels.put(request.path.get("subject"), Level(asked))
        return {"compatibility": asked}

    async def types(self, request: GatewayRequest) -> object:
        """List the kinds of schemas."""
        return ["AVRO"]

    async def mode(self, request: GatewayRequest) -> object:
        """Return the mode, which never changes."""
        return {"mode": "READWRITE"}

    async def nothing(self, request: GatewayRequest) -> object:
        """List nothing: schemas here hold all that they use."""
        await self._version(request)
        return []

    async def never(self, request: GatewayRequest) -> object:
        """Refuse what this registry never does."""
        raise NotImplementedError("versions of a schema are never deleted here; data may need them")

    async def no_removal(self, request: GatewayRequest) -> object:
        """Refuse to remove a level."""
        raise NotImplementedError("a level is never removed here; set it to the one that you want")

    async def no_other_mode(self, request: GatewayRequest) -> object:
        """Refuse to change a mode."""
        raise NotImplementedError("the mode is always READWRITE here; to refuse schemas, grant nobody to register them")

    async def by_guid(self, request: GatewayRequest) -> object:
        """Find nothing: schemas have no GUIDs here."""
        raise _DialectRefusal(404, 40403, "schemas have no GUIDs here; ask by id, or by subject and version")

    async def metadata(self, request: GatewayRequest) -> object:
        """Find nothing: versions have no metadata here. Raises UnknownSubject."""
        await self._registry.versions(request.path["subject"])
        raise _DialectRefusal(404, 40402, "versions have no metadata here; ask by number, or for the latest")

    async def contexts(self, request: GatewayRequest) -> object:
        """List the one context."""
        return ["."]

    async def _by_id(self, request: GatewayRequest) -> Schema:
        text = request.path["id"]
        number = whole_number(text)
        if number is None or number >= 2**31:
            raise _DialectRefusal(404, 40403, f"there is no schema {text[:60]!r}: ids are whole numbers")
        schema = await self._registry.schema(number)
        if not request.caller.may("read", "schema", "*") and not await self._uses(request, schema):
            # An id does not say which subject it belongs to, so any that the caller may read will do.
            request.caller.check("read", "schema", "*")
        return schema

    async def _uses(self, request: GatewayRequest, schema: Schema) -> list[Version]:
        readable = [each for each in await self._registry.subjects() if request.caller.may("read", "schema", each)]
        return [each for name in readable for each in await self._registry.versions(name) if each.schema == schema]

    async def _version(self, request: GatewayRequest) -> Version:
        text = request.path["version"]
        known = await self._registry.versions(request.path["subject"])
        if text in _LATEST:
            return known[-1]
        number = whole_number(text)
        if number is None or not 1 <= number < 2**31:
            raise _DialectRefusal(422, 42202, f"{text[:60]!r} is no version; it is a number from 1 on, or latest")
        found = [each for each in known if each.version == number]
        if not found:
            raise UnknownSubject(request.path["subject"], "", number)
        return found[0]

    async def _versions_or_none(self, subject: str) -> Sequence[Version]:
        with contextlib.suppress(UnknownSubject):
            return await self._registry.versions(subject)
        return ()

    async def _checked(self, request: GatewayRequest, earlier: Sequence[Version]) -> dict[str, Any]:
        level = await self._registry.levels.get(request.path["subject"])
        found = incompatibilities(_schema_of(request), earlier, level)
        messages = [
            f"version {version} ({direction}), {problem.field}: {problem.detail}"
            for version, direction, problem in found
        ]
        answer: dict[str, Any] = {"is_compatible": not messages}
        if (request.text("verbose") or "").lower() == "true":
            answer["messages"] = messages
        return answer


def _route(
    method: Literal["GET", "POST", "PUT", "DELETE"],
    path: str,
    handler: Handler,
    summary: str,
    needs: Needs | None = None,
    *,
    body: dict[str, Any] | None = None,
) -> GatewayRoute:
    return GatewayRoute(
        method,
        path,
        _in_dialect(handler),
        summary,
        _GROUP,
        _ANYTHING,
        needs,
        parameters=(RouteParameter("verbose", "Explain what is not compatible."),) if "compatibility" in path else (),
        body=body,
        takes_any_query=True,  # clients send parameters of options that this registry does not have
    )


def _in_dialect(handler: Handler) -> Callable[[GatewayRequest], Awaitable[object]]:
    """Return the handler with answers and refusals as clients of the dialect expect them."""

    @wraps(handler)
    async def answered(request: GatewayRequest) -> object:
        try:
            value = await handler(request)
        except (HeadraceError, NotImplementedError, _DialectRefusal) as error:
            code = _code_of(error)
            if code is None:
                raise
            return _refusal(error, code, request.request_id)
        content = msgspec.json.encode(value)
        return _DialectResponse(content)

    return answered


class _DialectResponse(JSONResponse):
    media_type = DIALECT

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - as in the class above
        """Return the content, which is JSON already."""
        return bytes(content)


def _refusal(error: Exception, code: int, request_id: str) -> JSONResponse:
    if isinstance(error, _DialectRefusal):
        problem: dict[str, Any] = {"type": "about:blank", "status": error.status, "detail": str(error)}
    else:
        problem = problem_of(error).to_json(request_id)
    problem |= {"error_code": code, "message": problem["detail"], "request_id": request_id}
    return JSONResponse(problem, problem["status"], media_type=PROBLEM_JSON)


def _code_of(error: Exception) -> int | None:
    """Return the dialect's number of an error; None for what has none."""
    match error:
        case _DialectRefusal():
            return error.code
        case UnknownSubject():
            return 40401 if error.version is None else 40402
        case UnknownSchema():
            return 40403
        case NotRegistered():
            return 40403
        case IncompatibleSchema():
            return 409
        case BadSchema():
            return 42201
        case BadArgument():
            return 42201 if error.name == "schema" else 42200
        case NotImplementedError():
            return 501
    return None


def _schema_of(request: GatewayRequest) -> Schema:
    """Return the schema of the body. Raises BadSchema, BadArgument."""
    form = request.json(_SchemaForm)
    if (form.schemaType or "AVRO").upper() != "AVRO":
        raise BadSchema("the top", f"this registry holds Avro, not {str(form.schemaType)[:60]}")
    if form.references:
        raise BadSchema("the top", "references to other schemas are not supported; write the types out")
    return Schema(form.schema)


def _as_json(version: Version) -> dict[str, Any]:
    return {
        "subject": version.subject,
        "id": version.schema_id,
        "version": version.version,
        "schema": version.schema.text,
        "schemaType": "AVRO",
    }


def _window(request: GatewayRequest, found: list[Any]) -> list[Any]:
    """Return the part of a list that offset and limit ask for; a limit of -1 is none. Nothing is ever deleted."""
    wanted = request.text("deletedOnly") or request.text("deleted_only") or ""  # as servers and a client call it
    if wanted.lower() == "true":
        return []
    first = request.number("offset", default=0, least=0, most=2**31)
    limit = request.text("limit")
    if limit in (None, "-1"):
        return found[first:]
    return found[first : first + request.number("limit", default=0, least=0, most=2**31)]
