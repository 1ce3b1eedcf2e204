"""The registry on a server with Confluent's protocol, through confluent-kafka's client."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from headrace.config import HttpRegistrySettings
from headrace.errors import (
    BadSchema,
    Forbidden,
    HeadraceError,
    IncompatibleSchema,
    MissingExtra,
    OperationFailed,
    TimedOut,
    UnknownSchema,
    UnknownSubject,
    Unreachable,
)
from headrace.observe import get_logger
from headrace.serde.compatibility import Level, check_compatible
from headrace.serde.ports import Version
from headrace.serde.schemas import Schema
from headrace.serde.subjects import check_subject

__all__ = ["ConfluentRegistry", "is_missing", "new_client", "translated_errors"]


class _Missing(Exception):
    """The server answered 404; `is_missing` raises the error that this means."""


def new_client(url: str, settings: HttpRegistrySettings) -> Any:  # noqa: ANN401
    """Return a client for the registry at `url`. Raises MissingExtra."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise MissingExtra(str(error.name or "confluent_kafka"), "registry") from error
    return SchemaRegistryClient({"url": url, **_properties(settings)})


@contextlib.contextmanager
def translated_errors(operation: str, url: str, timeout_s: float, *, is_read: bool) -> Iterator[None]:
    """Translate the client's exceptions to Headrace's errors. What only reads has a known outcome: nothing was done."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        yield
    except SchemaRegistryError as error:
        raise _refusal(error, operation, is_read=is_read) from error
    except _transport_errors() as error:
        if "Timeout" in type(error).__name__:
            raise TimedOut(operation, timeout_s, outcome_known=is_read) from error
        raise Unreachable(url, str(error) or type(error).__name__, outcome_known=is_read) from error


@contextlib.contextmanager
def is_missing(meaning: HeadraceError) -> Iterator[None]:
    """Raise `meaning` if the server answers 404."""
    try:
        yield
    except _Missing as error:
        raise meaning from error


def _refusal(error: Any, operation: str, *, is_read: bool) -> Exception:  # noqa: ANN401
    message = str(error.error_message)
    match error.http_status_code:
        case 404:
            return _Missing(message)
        case 401 | 403:
            return Forbidden(operation, f"the registry says {error.http_status_code}: {message}")
        case 409:
            return IncompatibleSchema(operation, "the server's level", "?", 0, "the server refuses it", (message,))
        case 422:
            return BadSchema("the top", message)
    return OperationFailed(operation, str(error), outcome_known=is_read)


def _properties(settings: HttpRegistrySettings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ssl.ca.location": settings.ca_location,
        "ssl.certificate.location": settings.certificate_location,
        "ssl.key.location": settings.key_location,
        "ssl.key.password": settings.key_password and settings.key_password.get_secret_value(),
        "timeout": settings.timeout_s,
        "max.retries": settings.retries,
    }
    if settings.username is not None:
        password = settings.password.get_secret_value() if settings.password else ""
        found["basic.auth.user.info"] = f"{settings.username}:{password}"
    return {name: value for name, value in found.items() if value is not None}


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the transport errors of httpx2 and httpx; the client uses httpx2 if it is installed."""
    found = []
    for name in ("httpx2", "httpx"):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name).TransportError)
    return tuple(found)


T = TypeVar("T")

ATTEMPTS = 5

_log = get_logger(__name__)


class ConfluentRegistry:
    """A registry on a server. It checks compatibility itself first, so that errors name field, version and rule.

    A subject's own level on the server counts; without one, this client's default level does, not the server's. A
    subject that is made here gets that level on the server too, so that the server also refuses other clients.
    """

    def __init__(
        self, url: str, settings: HttpRegistrySettings | None = None, *, level: Level = Level.FULL_TRANSITIVE
    ) -> None:
        self._url = url
        self._settings = settings or HttpRegistrySettings()
        self._client = new_client(url, self._settings)
        self._schemas: dict[int, Schema] = {}
        self._registered: dict[tuple[str, Schema], Version] = {}
        self.levels = ConfluentLevels(self, level)

    async def register(self, subject: str, schema: Schema) -> Version:
        """Find the schema's version, or check the schema and add it on the server."""
        check_subject(subject)
        known = self._registered.get((subject, schema))
        if known is None:
            earlier = await self._versions(subject)
            known = next((each for each in earlier if each.schema == schema), None)
        if known is None:
            own_level = await self.levels.own(subject)
            check_compatible(schema, earlier, own_level or await self.levels.get(None), subject=subject)
            known = await self._add(subject, schema)
            if known.version == 1 and own_level is None:
                await self._protect(subject)
        self._registered[subject, schema] = known
        return known

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema, asking the server once."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = await self._fetch(schema_id)
        return self._schemas[schema_id]

    async def versions(self, subject: str) -> Sequence[Version]:
        """Return the versions, asking the server for the list and for each version once."""
        found = await self._versions(subject)
        if not found:
            raise UnknownSubject(subject, self._url)
        return found

    async def subjects(self) -> Sequence[str]:
        """Ask the server for all subjects."""
        return sorted(await self.ask("list subjects", self._client.get_subjects))

    async def close(self) -> None:
        """Close the client's connections."""
        await asyncio.to_thread(self._client.close)

    async def ask(self, operation: str, call: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
        """Read with the client, in a thread, and translate its exceptions."""
        with translated_errors(operation, self._url, self._settings.timeout_s, is_read=True):
            return await asyncio.to_thread(call, *arguments)

    async def change(self, operation: str, call: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
        """Do with the client what may have been done if it fails."""
        with translated_errors(operation, self._url, self._settings.timeout_s, is_read=False):
            return await asyncio.to_thread(call, *arguments)

    @property
    def client(self) -> Any:  # noqa: ANN401
        """The client of confluent-kafka."""
        return self._client

    async def _fetch(self, schema_id: int) -> Schema:
        with is_missing(UnknownSchema(schema_id, self._url)):
            return _avro_schema(
                await self.ask("get a schema", self._client.get_schema, schema_id), f"schema {schema_id}"
            )

    async def _versions(self, subject: str) -> list[Version]:
        try:
            with is_missing(UnknownSubject(subject, self._url)):
                numbers = await self.ask("list versions", self._client.get_versions, subject)
        except UnknownSubject:
            return []
        return [await self._version(subject, number) for number in sorted(numbers)]

    async def _version(self, subject: str, number: int) -> Version:
        # The client caches versions, which never change.
        found = await self.ask("get a version", self._client.get_version, subject, number)
        schema = _avro_schema(found.schema, f"version {number} of {subject}")
        return Version(subject, number, found.schema_id, schema)

    async def _add(self, subject: str, schema: Schema) -> Version:
        from confluent_kafka.schema_registry import Schema as TheirSchema

        theirs = TheirSchema(schema.text, "AVRO")
        operation = f"register under {subject!r}"
        try:
            schema_id = await self.change(operation, self._client.register_schema, subject, theirs)
        except IncompatibleSchema:
            # Another client was faster. A check against the versions now names field and version; the server may not.
            check_compatible(schema, await self._versions(subject), await self.levels.get(subject), subject=subject)
            raise
        found = await self.change(operation, self._client.lookup_schema, subject, theirs)
        self._schemas[schema_id] = schema
        return Version(subject, found.version, schema_id, schema)

    async def _protect(self, subject: str) -> None:
        try:
            await self.levels.put(subject, await self.levels.get(None))
        except Forbidden:
            _log.warning("the registry does not permit setting a level", subject=subject, exc_info=True)


class ConfluentLevels:
    """Levels of subjects on the server. The default is this client's; `put(None, …)` also sets the server's default."""

    def __init__(self, registry: ConfluentRegistry, default: Level) -> None:
        self._registry = registry
        self._default = default

    async def get(self, subject: str | None) -> Level:
        """Return the subject's own level on the server, or the default."""
        own = None if subject is None else await self.own(subject)
        return own or self._default

    async def own(self, subject: str) -> Level | None:
        """Return the level that the server has for this subject; None if none is set. Some servers say NONE then."""
        try:
            with is_missing(UnknownSubject(subject, "the registry's levels")):
                return Level(await self._registry.ask("get a level", self._own_level, subject))
        except UnknownSubject:
            return None

    async def put(self, subject: str | None, level: Level) -> None:
        """Set the level on the server."""
        for _ in range(ATTEMPTS):
            try:
                await self._registry.change("set a level", self._registry.client.set_compatibility, subject, str(level))
            except IncompatibleSchema as error:
                # Status 409 means here that another client set a level at the same moment.
                conflict = error
            else:
                self._default = level if subject is None else self._default
                return
        raise OperationFailed("set a level", conflict.problems[0]) from conflict

    def _own_level(self, subject: str) -> str:
        config = self._registry.client.get_config(subject)
        return str(config.compatibility_level or config.compatibility)


def _avro_schema(theirs: Any, where: str) -> Schema:  # noqa: ANN401
    if (theirs.schema_type or "AVRO") != "AVRO":
        raise BadSchema(where, f"it is {theirs.schema_type}, not Avro")
    return Schema(theirs.schema_str)
