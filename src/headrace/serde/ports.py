"""The port of schema registries.

A backend implements these protocols and passes `headrace.testing.conformance.RegistryConformance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from headrace.serde.compatibility import Level
    from headrace.serde.schemas import Schema

__all__ = ["Levels", "Registry", "Version"]


class Version(NamedTuple):
    """A version of a subject. The same schema has the same id under every subject."""

    subject: str
    version: int
    schema_id: int
    schema: Schema


class Levels(Protocol):
    """Compatibility levels of subjects. The level of None is the default for subjects without a level of their own."""

    async def get(self, subject: str | None) -> Level:
        """Return the level in force for the subject."""
        ...

    async def put(self, subject: str | None, level: Level) -> None:
        """Set the level; existing versions are not checked."""
        ...


class Registry(Protocol):
    """Schemas by id, and by subject and version.

    Promises: an id belongs to one schema forever; versions of a subject count from 1 without gaps and never change; a
    call after a registration has returned sees it; of two simultaneous registrations, one is checked against the
    other. Does not promise: ids without gaps.
    """

    @property
    def levels(self) -> Levels:
        """Compatibility levels."""
        ...

    async def register(self, subject: str, schema: Schema) -> Version:
        """Return the subject's version with this schema; add one if there is none.

        Raises IncompatibleSchema if it breaks the subject's level; nothing is written then.
        """
        ...

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema of an id. Raises UnknownSchema."""
        ...

    async def versions(self, subject: str) -> Sequence[Version]:
        """Return all versions of a subject, in order. Raises UnknownSubject."""
        ...

    async def subjects(self) -> Sequence[str]:
        """Return the names of all subjects, sorted."""
        ...

    async def close(self) -> None:
        """Release all resources. A second call does nothing."""
        ...
