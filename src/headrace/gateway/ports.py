"""What the gateway needs from the rest: handed in, so that it can stand on anything that does the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import timedelta
from typing import Protocol

from headrace.model import Event, StoredEvent, WrittenPosition
from headrace.observe import Health
from headrace.protocol import UNCHECKED, Expected
from headrace.serde import Registry
from headrace.tags import After, TaggedEvent

__all__ = ["GatewayParts", "ServedJournal", "ServedTags"]


class ServedJournal(Protocol):
    """The journals of one topic, as `headrace.journal.Journal` has them."""

    async def append(
        self,
        id_: str,
        events: Iterable[Event],
        *,
        expected: Expected = UNCHECKED,
        append_id: str | None = None,
        metadata: object = None,
        headers: Mapping[str, str] | None = None,
        expire_after: timedelta | str | None = None,
    ) -> WrittenPosition:
        """Write events, all of them or none."""
        ...

    def read(
        self,
        id_: str,
        from_seq_nr: int = 1,
        *,
        to_seq_nr: int | None = None,
        live: bool = False,
        at_least: str | None = None,
    ) -> AsyncGenerator[StoredEvent, None]:
        """Yield events."""
        ...

    async def pointer(self, id_: str, *, at_least: str | None = None) -> int | None:
        """Return the last seq_nr."""
        ...

    async def token_of(self, event: StoredEvent) -> str:
        """Return the consistency token of an event."""
        ...

    async def delete(self, id_: str, *, to: int) -> WrittenPosition | None:
        """Delete events up to a seq_nr."""
        ...

    async def purge(self, id_: str) -> WrittenPosition:
        """Remove the journal."""
        ...


class ServedTags(Protocol):
    """Queries by tag, as `headrace.tags.TagQueries` has them."""

    def events(
        self,
        tag: str | list[str],
        *,
        after: After = None,
        live: bool = False,
        skip_trimmed: bool = False,
        at_least: str | None = None,
    ) -> AsyncGenerator[TaggedEvent, None]:
        """Yield the events of tags."""
        ...

    async def tags(self, *, at_least: str | None = None) -> list[str]:
        """Return all tags."""
        ...

    async def tags_of(self, topic: str, id_: str, *, at_least: str | None = None) -> dict[str, int]:
        """Return the tags of a journal."""
        ...


class GatewayParts(Protocol):
    """Everything that the gateway's own routes serve."""

    @property
    def registry(self) -> Registry:
        """The schemas."""
        ...

    @property
    def tags(self) -> ServedTags:
        """Queries by tag."""
        ...

    @property
    def health(self) -> Health:
        """The state of what the gateway stands on."""
        ...

    def journal(self, topic: str) -> ServedJournal:
        """Return the journals of a topic, the same object for the same topic. Raises BadArgument."""
        ...

    async def has_topic(self, topic: str) -> bool:
        """Return True if the topic exists."""
        ...
