"""What a schema registry is, whoever keeps it.

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
    """A schema as a subject holds it. The same schema has the same id under every subject."""

    subject: str
    version: int
    schema_id: int
    schema: Schema


class Levels(Protocol):
    """What subjects promise about their versions. The level of None is that of subjects without one of their own."""

    async def get(self, subject: str | None) -> Level:
        """Return the level in force for the subject."""
        ...

    async def put(self, subject: str | None, level: Level) -> None:
        """Set the level; versions that are there already are not looked at."""
        ...


class Registry(Protocol):
    """Schemas by id, and by subject and version.

    Promises: an id stands for one schema for ever; versions of a subject count from 1 without gaps and never change;
    whoever asks after a registration returned sees it; of two registrations at once, one is checked against the other.
    Does not promise: ids without gaps.
    """

    @property
    def levels(self) -> Levels:
        """Compatibility levels."""
        ...

    async def register(self, subject: str, schema: Schema) -> Version:
        """Return the subject's version that holds the schema, made if there is none.

        Raises IncompatibleSchema when it breaks the subject's level; nothing is written then.
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
        """Let go of everything. Raises nothing the second time."""
        ...
