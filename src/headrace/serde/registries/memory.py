"""A registry in memory: for tests, and for programs whose data does not outlive them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.serde.compatibility import Level
from headrace.serde.ports import Version
from headrace.serde.registries.entries import RegistryContents
from headrace.serde.schemas import Schema

__all__ = ["MemoryRegistry"]


class MemoryRegistry:
    """All of it in this process."""

    def __init__(self, *, level: Level = Level.FULL_TRANSITIVE) -> None:
        self._catalogue = RegistryContents("the registry in memory", level)
        self.levels = MemoryLevels(self._catalogue)

    async def register(self, subject: str, schema: Schema) -> Version:
        """Find the schema's version, or add it."""
        found = self._catalogue.find(subject, schema)
        if found is None:
            found = self._catalogue.next_version(subject, schema)
            self._catalogue.add(found)
        return found

    async def schema(self, schema_id: int) -> Schema:
        """Look it up."""
        return self._catalogue.schema(schema_id)

    async def versions(self, subject: str) -> Sequence[Version]:
        """Look them up."""
        return self._catalogue.versions(subject)

    async def subjects(self) -> Sequence[str]:
        """List them."""
        return self._catalogue.subjects()

    async def close(self) -> None:
        """Nothing is open."""


class MemoryLevels:
    """Levels in memory."""

    def __init__(self, catalogue: RegistryContents) -> None:
        self._catalogue = catalogue

    async def get(self, subject: str | None) -> Level:
        """Look it up."""
        return self._catalogue.level(subject)

    async def put(self, subject: str | None, level: Level) -> None:
        """Keep it."""
        self._catalogue.set_level(subject, level)
