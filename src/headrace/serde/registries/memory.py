"""The registry in memory, for tests and for programs whose data ends with them.

The registry in the log keeps what it has read in the same contents.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import UnknownSchema, UnknownSubject
from headrace.serde.compatibility import Level, check_compatible
from headrace.serde.ports import Version
from headrace.serde.schemas import Schema
from headrace.serde.subjects import check_subject

__all__ = ["MemoryRegistry", "RegistryContents"]


class RegistryContents:
    """Schemas by id, versions by subject, and levels. Errors name the registry by `registry`."""

    def __init__(self, registry: str, level: Level) -> None:
        self._registry = registry
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[Schema, int] = {}
        self._versions: dict[str, list[Version]] = {}
        self._levels: dict[str | None, Level] = {None: level}

    def find(self, subject: str, schema: Schema) -> Version | None:
        """Return the subject's version with this schema; None if there is none."""
        return next((each for each in self._versions.get(subject, ()) if each.schema == schema), None)

    def next_version(self, subject: str, schema: Schema) -> Version:
        """Return the version that registering the schema would add. Raises IncompatibleSchema."""
        check_subject(subject)
        earlier = self._versions.get(subject, [])
        check_compatible(schema, earlier, self.level(subject), subject=subject)
        schema_id = self._ids.get(schema) or max(self._schemas, default=0) + 1
        return Version(subject, len(earlier) + 1, schema_id, schema)

    def add(self, version: Version) -> None:
        """Add a version."""
        self._schemas[version.schema_id] = version.schema
        self._ids.setdefault(version.schema, version.schema_id)
        self._versions.setdefault(version.subject, []).append(version)

    def set_level(self, subject: str | None, level: Level) -> None:
        """Set a level."""
        self._levels[subject] = level

    def level(self, subject: str | None) -> Level:
        """Return the level in force."""
        return self._levels.get(subject, self._levels[None])

    def holds(self, schema_id: int) -> bool:
        """Return True if the id is known."""
        return schema_id in self._schemas

    def schema(self, schema_id: int) -> Schema:
        """Return a schema. Raises UnknownSchema."""
        if schema_id not in self._schemas:
            raise UnknownSchema(schema_id, self._registry)
        return self._schemas[schema_id]

    def versions(self, subject: str) -> Sequence[Version]:
        """Return a subject's versions. Raises UnknownSubject."""
        if subject not in self._versions:
            raise UnknownSubject(subject, self._registry)
        return tuple(self._versions[subject])

    def subjects(self) -> Sequence[str]:
        """Return all subjects, sorted."""
        return sorted(self._versions)


class MemoryRegistry:
    """A registry in the memory of this process."""

    def __init__(self, *, level: Level = Level.FULL_TRANSITIVE) -> None:
        self._contents = RegistryContents("the registry in memory", level)
        self.levels = MemoryLevels(self._contents)

    async def register(self, subject: str, schema: Schema) -> Version:
        """Find the schema's version, or add it."""
        found = self._contents.find(subject, schema)
        if found is None:
            found = self._contents.next_version(subject, schema)
            self._contents.add(found)
        return found

    async def schema(self, schema_id: int) -> Schema:
        """Look it up."""
        return self._contents.schema(schema_id)

    async def versions(self, subject: str) -> Sequence[Version]:
        """Look them up."""
        return self._contents.versions(subject)

    async def subjects(self) -> Sequence[str]:
        """List them."""
        return self._contents.subjects()

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class MemoryLevels:
    """Levels in memory."""

    def __init__(self, contents: RegistryContents) -> None:
        self._contents = contents

    async def get(self, subject: str | None) -> Level:
        """Look it up."""
        return self._contents.level(subject)

    async def put(self, subject: str | None, level: Level) -> None:
        """Keep it."""
        self._contents.set_level(subject, level)
