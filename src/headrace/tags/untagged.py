"""Replicating without views by tag: only into a store that keeps none.

Whether a store keeps them is a fact of the store. A process with other settings would leave events out of the views for
good, and nothing would tell.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import TagSettings
from headrace.errors import TagsInUse
from headrace.journal import Layout
from headrace.journal.key_writes import KeyFold
from headrace.model import TopicPartition
from headrace.store import ReplicatedOffset, Store
from headrace.tags.registry import TagRegistry, TagUse

__all__ = ["UntaggedViews"]


class UntaggedViews:
    """Stands where views by tag would be written, and notes that they are not.

    Promises: nothing is replicated into a store that keeps views by tag. Raises TagsInUse.
    """

    def __init__(self, store: Store, settings: TagSettings) -> None:
        self._registry = TagRegistry(store, settings)

    async def open_topic(self, layout: Layout) -> None:
        """Note in the store that it keeps no views, before anything is replicated."""
        await self._check()

    async def log_time_ms(self, layout: Layout, start: ReplicatedOffset) -> int:
        """Return the log time that the partition goes on from: its own."""
        await self._check()
        return start.log_time_ms

    async def last_offset(self, start: ReplicatedOffset) -> int | None:
        """Return None: nothing has to be waited for."""
        return None

    async def write(self, at: TopicPartition, folds: Mapping[str, KeyFold], *, up_to: int) -> None:
        """Write nothing. The store may have been told to keep views since the batch began: so it is asked again."""
        await self._check()

    async def _check(self) -> None:
        if (await self._registry.settle(TagUse.OFF)).use is not TagUse.OFF:
            raise TagsInUse
