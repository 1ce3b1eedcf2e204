"""The registry in a folder: one file for each schema, which people can read, diff and keep under version control.

    schemas/1.avsc                  the schema with id 1
    subjects/orders-value/1.json    version 1 of the subject: {"id": 1}
    levels/orders-value.json        its level, if it has one; levels/.json is the default level

Any number of processes of one machine may register at once: an existing file is never replaced, and the process that
makes the file of the next number first gets that number. The others read the new file and try again.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from headrace.errors import IncompatibleData, UnknownSchema, UnknownSubject
from headrace.serde.compatibility import Level, check_compatible
from headrace.serde.ports import Version
from headrace.serde.schemas import Schema
from headrace.serde.subjects import check_subject

__all__ = ["FolderRegistry"]


class FolderRegistry:
    """Schemas in files."""

    def __init__(self, folder: Path, *, level: Level = Level.FULL_TRANSITIVE) -> None:
        self._folder = folder
        self._schemas: dict[int, Schema] = {}
        self.levels = FolderLevels(folder / "levels", level)

    async def register(self, subject: str, schema: Schema) -> Version:
        """Find the schema's version, or make its files."""
        check_subject(subject)
        return await asyncio.to_thread(self._register, subject, schema)

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema, reading its file once."""
        found = self._schemas.get(schema_id) or await asyncio.to_thread(self._read_schema, schema_id)
        if found is None:
            raise UnknownSchema(schema_id, str(self._folder))
        return found

    async def versions(self, subject: str) -> Sequence[Version]:
        """Read the subject's files."""
        found = await asyncio.to_thread(self._versions, subject)
        if not found:
            raise UnknownSubject(subject, str(self._folder))
        return found

    async def subjects(self) -> Sequence[str]:
        """List the folders that hold a version."""
        return await asyncio.to_thread(self._subjects)

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    def _register(self, subject: str, schema: Schema) -> Version:
        while True:
            earlier = self._versions(subject)
            found = next((each for each in earlier if each.schema == schema), None)
            if found is not None:
                return found
            check_compatible(schema, earlier, self.levels.read(subject), subject=subject)
            version = Version(subject, len(earlier) + 1, self._id_of(schema), schema)
            place = self._place(subject) / f"{version.version}.json"
            if _create(place, json.dumps({"id": version.schema_id})):
                return version

    def _id_of(self, schema: Schema) -> int:
        """Return the schema's id, with a new file if it has none.

        Ids have no gaps, so the process that makes file n has read all files below it; otherwise it tries again.
        """
        while True:
            schema_id = 1
            while (known := self._read_schema(schema_id)) is not None:
                if known == schema:
                    return schema_id
                schema_id += 1
            if _create(self._schema_file(schema_id), schema.text):
                return schema_id

    def _read_schema(self, schema_id: int) -> Schema | None:
        if schema_id not in self._schemas:
            try:
                self._schemas[schema_id] = Schema(self._schema_file(schema_id).read_text(encoding="utf-8"))
            except FileNotFoundError:
                return None
        return self._schemas[schema_id]

    def _versions(self, subject: str) -> list[Version]:
        found: list[Version] = []
        while (entry := _read(self._place(subject) / f"{len(found) + 1}.json")) is not None:
            schema = self._read_schema(entry["id"])
            if schema is None:
                missing = f"no schema {entry['id']}, which {subject} names"
                raise IncompatibleData(str(self._folder), missing, "complete folders")
            found.append(Version(subject, len(found) + 1, entry["id"], schema))
        return found

    def _subjects(self) -> list[str]:
        return sorted(unquote(place.parent.name) for place in (self._folder / "subjects").glob("*/1.json"))

    def _schema_file(self, schema_id: int) -> Path:
        return self._folder / "schemas" / f"{schema_id}.avsc"

    def _place(self, subject: str) -> Path:
        return self._folder / "subjects" / _file_name(subject)


class FolderLevels:
    """One small file for each level that was set."""

    def __init__(self, folder: Path, level: Level) -> None:
        self._folder = folder
        self._default = level

    async def get(self, subject: str | None) -> Level:
        """Read the subject's file, or the default's."""
        return await asyncio.to_thread(self.read, subject)

    async def put(self, subject: str | None, level: Level) -> None:
        """Replace the file of the level."""
        await asyncio.to_thread(_replace, self._file(subject), json.dumps({"level": level}))

    def read(self, subject: str | None) -> Level:
        """Return the level in force."""
        entry = _read(self._file(subject)) or _read(self._file(None))
        return Level(entry["level"]) if entry else self._default

    def _file(self, subject: str | None) -> Path:
        return self._folder / f"{_file_name(subject or '')}.json"


def _file_name(subject: str) -> str:
    return quote(subject, safe="").replace(".", "%2E")


def _read(place: Path) -> Any:  # noqa: ANN401
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _create(place: Path, text: str) -> bool:
    """Make the file atomically. Return False if another process made it first."""
    draft = _draft(place, text)
    try:
        os.link(draft, place)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    _sync_folder(place.parent)
    return True


def _replace(place: Path, text: str) -> None:
    _draft(place, text).replace(place)
    _sync_folder(place.parent)


def _draft(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".draft-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
