"""Where a projection keeps how far it is, beside or inside what its handler writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from headrace.projection.projection import DeadLetter
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["REBUILDING", "DeadLetters", "Offsets", "Target"]

# By slot; None: nothing was handled yet.
Offsets: TypeAlias = Mapping[int, TagOffset | None]

# Stands in place of every offset while a rebuild resets the handler's work: no worker knows such a place.
REBUILDING = "rebuilding"


class Target(Protocol):
    """What a projection writes to.

    Promises: `handle` moves the offsets of those given slots that are below an offset from what the caller knows up
    to it, or raises SlotsMoved. No slot moves back, except by `begin_again` and `put`.
    """

    @property
    def is_transactional(self) -> bool:
        """True if a handler's work and the offsets are stored together or not at all."""
        ...

    @property
    def letters(self) -> DeadLetters:
        """The events that were set aside."""
        ...

    async def load(self) -> Offsets:
        """Return how far each slot is.

        Raises BadArgument if the projection has run with other slots, ProjectionChanged if with another tag,
        ProjectionRebuilding while a rebuild resets its work.
        """
        ...

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset, *, attempt: int = 1) -> None:
        """Handle events and move the slots of `known` up to an offset, if they are still there.

        Raises SlotsMoved, and EventFailed if the handler raises.
        """
        ...

    async def bury(self, letter: DeadLetter, known: Offsets, to: TagOffset) -> None:
        """Store a dead letter and move the slots up to an offset, as `handle` does. Raises SlotsMoved."""
        ...

    async def begin_again(self, at: TagOffset | None) -> None:
        """Take the offsets from all workers, reset what the handler made, and put all slots to a place.

        None is the start of time. Dead letters behind the place go: their events come again.
        """
        ...

    async def put(self, places: Offsets) -> None:
        """Put some slots to other places, wherever they are, without touching what the handler made."""
        ...

    async def close(self) -> None:
        """Let go of what was opened."""
        ...


class DeadLetters(Protocol):
    """Events of one projection that were set aside."""

    async def all(self) -> Sequence[DeadLetter]:
        """Return them in the order of their events."""
        ...

    async def replay(self, letter: DeadLetter, event: TaggedEvent) -> bool:
        """Handle the event of a letter and remove it; False if it was gone. Raises EventFailed: then it stays."""
        ...

    async def remove(self, letters: Sequence[DeadLetter]) -> int:
        """Remove letters; returns how many there were."""
        ...
