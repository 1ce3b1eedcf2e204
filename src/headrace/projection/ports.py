"""Where a projection keeps how far it is, beside or inside what its handler writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from headrace.tags import TaggedEvent, TagOffset

__all__ = ["Offsets", "Target"]

# By slot; None: nothing was handled yet.
Offsets: TypeAlias = Mapping[int, TagOffset | None]


class Target(Protocol):
    """What a projection writes to.

    Promises: `handle` moves the offsets of those given slots that are below an offset from what the caller knows up
    to it, or raises Fenced. No slot moves back, except by `begin_again`.
    """

    async def load(self) -> Offsets:
        """Return how far each slot is. Raises BadArgument if the projection has run with other slots."""
        ...

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset) -> None:
        """Handle events and move the slots of `known` up to an offset, if they are still there. Raises Fenced."""
        ...

    async def begin_again(self, at: TagOffset | None) -> None:
        """Reset what the handler made, and put all slots to a place; None: the start of time."""
        ...

    async def close(self) -> None:
        """Let go of what was opened."""
        ...
