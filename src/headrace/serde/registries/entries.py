"""The contents of a registry, the entries of the registry in the log, and their fold into the contents.

An entry says what it adds, and its number `nr`: one more than that of the last entry its writer had seen. The first
entry with a number counts, in the order of the log; later ones with the same number are void, and their writers try
again. So nodes that register at the same time agree on every id without a lock. The fold only counts numbers, so nodes
with different versions of the compatibility rules agree too.

Every entry has a key of its own, so compaction never removes one that counts and never reorders entries. Void entries
are removed by a tombstone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import BadArgument, IncompatibleData, UnknownSchema, UnknownSubject
from headrace.model import Record
from headrace.serde.compatibility import Level, check_compatible
from headrace.serde.ports import Version
from headrace.serde.schemas import Schema

__all__ = ["Entries", "RegistryContents", "RegistryEntry", "check_subject", "entry_of_level", "entry_of_version"]


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


def check_subject(subject: str) -> None:
    """Raise BadArgument unless the text can be a subject's name."""
    if not subject or len(subject.encode()) > 255 or not subject.isprintable():
        raise BadArgument("subject", subject, "a subject is 1 to 255 bytes of printable text")


FORMAT = 1


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """An entry as a record of the log."""

    key: bytes
    value: bytes


def entry_of_version(nr: int, version: Version) -> RegistryEntry:
    """Return the entry that adds a version."""
    content = {"subject": version.subject, "version": version.version, "id": version.schema_id}
    return _entry(nr, {**content, "schema": version.schema.text})


def entry_of_level(nr: int, subject: str | None, level: Level) -> RegistryEntry:
    """Return the entry that sets a level."""
    return _entry(nr, {"subject": subject, "level": level})


class Entries:
    """Folds entries, in the order of the log, into the contents."""

    def __init__(self, contents: RegistryContents) -> None:
        self._contents = contents
        self._last_nr = 0
        self._counted: set[bytes | None] = set()

    @property
    def next_nr(self) -> int:
        """The number that the next entry must have to count."""
        return self._last_nr + 1

    def counts(self, key: bytes) -> bool:
        """Return True if the entry with this key counts."""
        return key in self._counted

    def apply(self, record: Record) -> None:
        """Apply the entry of a record, if it counts. Raises IncompatibleData."""
        if record.value is None:
            return
        content = _content(record)
        if content["nr"] < self.next_nr:
            return
        if content["nr"] > self.next_nr:
            # The writer had seen the entry before it, so that entry was in the log.
            found = f"entry {content['nr']} without entry {self.next_nr}"
            raise IncompatibleData(_where(record), found, "topics that were never truncated")
        if "level" in content:
            self._contents.set_level(content["subject"], Level(content["level"]))
        else:
            schema = Schema(content["schema"])
            self._contents.add(Version(content["subject"], content["version"], content["id"], schema))
        self._last_nr = content["nr"]
        self._counted.add(record.key)


def _entry(nr: int, content: dict[str, Any]) -> RegistryEntry:
    value = json.dumps({"format": FORMAT, "nr": nr, **content}, ensure_ascii=False)
    return RegistryEntry(f"{nr}/{uuid.uuid4().hex}".encode(), value.encode())


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}] offset {record.offset}"


def _content(record: Record) -> dict[str, Any]:
    where = _where(record)
    try:
        content: dict[str, Any] = json.loads(record.value or b"")
        found = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleData(where, "no entry of a schema registry", f"format {FORMAT}") from error
    if found != FORMAT:
        raise IncompatibleData(where, f"format {found}", f"format {FORMAT}")
    return content
