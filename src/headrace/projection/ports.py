"""Ports of projections: the target that stores offsets, beside or inside what the handler writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from headrace.projection.projection import DeadLetter
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["COMMITTED_EARLY", "REBUILDING", "DeadLetters", "Offsets", "Target"]

# By slot; None if nothing was handled yet.
Offsets: TypeAlias = Mapping[int, TagOffset | None]

# Takes the place of every offset while a rebuild resets the handler's work: no worker knows such a place.
REBUILDING = "rebuilding"
# Takes the place of the offsets of a batch whose handler committed in the middle of it.
COMMITTED_EARLY = "committed-early"


class Target(Protocol):
    """Where a projection stores its offsets, and calls its handler.

    Promises: `handle` moves those of the given slots that are below an offset up to it, or raises SlotsMoved if one is
    not where the caller knows it. No slot moves back, except by `begin_again` and `put`.
    """

    @property
    def is_transactional(self) -> bool:
        """True if a handler's work and the offsets are stored together or not at all."""
        ...

    @property
    def letters(self) -> DeadLetters:
        """The dead letters of the projection."""
        ...

    async def load(self) -> Offsets:
        """Return the offset of each slot.

        Raises BadArgument if the projection has run with another number of slots, ProjectionChanged if it has run with
        other tags, ProjectionRebuilding while a rebuild resets its work, HandlerCommitted after a batch of which only a
        part may be stored.
        """
        ...

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset, *, attempt: int = 1) -> None:
        """Handle events and move the slots of `known` up to an offset, if they are still where `known` says.

        Raises SlotsMoved, EventFailed if the handler raises, and HandlerCommitted.
        """
        ...

    async def bury(self, letter: DeadLetter, known: Offsets, to: TagOffset) -> None:
        """Store a dead letter and move the slots up to an offset, as `handle` does. Raises SlotsMoved."""
        ...

    async def begin_again(self, at: TagOffset | None) -> None:
        """Take the slots from all workers, reset what the handler wrote, and set all slots to an offset.

        None is the beginning. Dead letters behind the offset are removed, because their events come again.
        """
        ...

    async def put(self, places: Offsets) -> None:
        """Set some slots to other offsets, wherever they are, and leave what the handler wrote."""
        ...

    async def close(self) -> None:
        """Close what was opened."""
        ...


class DeadLetters(Protocol):
    """The dead letters of one projection."""

    async def all(self) -> Sequence[DeadLetter]:
        """Return them in the order of their events."""
        ...

    async def replay(self, letter: DeadLetter, event: TaggedEvent) -> bool:
        """Handle the event of a letter and remove it; False if it was gone. If EventFailed is raised, it stays."""
        ...

    async def remove(self, letters: Sequence[DeadLetter]) -> int:
        """Remove letters; return the number removed."""
        ...
