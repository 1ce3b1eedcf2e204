"""What a registry holds, as a plain value: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import BadArgument, UnknownSchema, UnknownSubject
from headrace.serde.levels import Level, check_compatible
from headrace.serde.ports import Version
from headrace.serde.schemas import Schema

__all__ = ["Catalogue", "check_subject"]


class Catalogue:
    """Schemas by id, versions by subject, levels. `registry` is what errors call it."""

    def __init__(self, registry: str, level: Level) -> None:
        self._registry = registry
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[Schema, int] = {}
        self._versions: dict[str, list[Version]] = {}
        self._levels: dict[str | None, Level] = {None: level}

    def find(self, subject: str, schema: Schema) -> Version | None:
        """Return the subject's version with that very schema."""
        return next((each for each in self._versions.get(subject, ()) if each.schema == schema), None)

    def next_version(self, subject: str, schema: Schema) -> Version:
        """Return what registering the schema would add. Raises IncompatibleSchema."""
        check_subject(subject)
        earlier = self._versions.get(subject, [])
        check_compatible(schema, earlier, self.level(subject), subject=subject)
        schema_id = self._ids.get(schema) or max(self._schemas, default=0) + 1
        return Version(subject, len(earlier) + 1, schema_id, schema)

    def add(self, version: Version) -> None:
        """Take a version in."""
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
        """Say whether the id is known."""
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


def check_subject(subject: str) -> None:
    """Raise BadArgument unless it can be a subject's name."""
    if not subject or len(subject.encode()) > 255 or not subject.isprintable():
        raise BadArgument("subject", subject, "a subject is 1 to 255 bytes of printable text")
