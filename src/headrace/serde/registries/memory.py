"""The registry in memory, for tests and for programs whose data ends with them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.serde.compatibility import Level
from headrace.serde.ports import Version
from headrace.serde.registries.entries import RegistryContents
from headrace.serde.schemas import Schema

__all__ = ["MemoryRegistry"]


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
