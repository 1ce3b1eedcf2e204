"""What replication feeds besides the journals themselves: views of their events, as those by tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.journal.key_writes import KeyFold
from headrace.journal.layout import Layout
from headrace.model import TopicPartition
from headrace.store import ReplicatedOffset

__all__ = ["Views"]


class Views(Protocol):
    """Written before the journals of a batch, so that whoever sees a journal's state can rely on its views."""

    async def log_time_ms(self, layout: Layout, start: ReplicatedOffset) -> int:
        """Return the log time to go on from after `start`: its own, or a later one where views need that."""
        ...

    async def last_offset(self, start: ReplicatedOffset) -> int | None:
        """Return the last offset that may be applied now; None: any. Asked after `log_time_ms`."""
        ...

    async def write(self, at: TopicPartition, folds: Mapping[str, KeyFold], *, up_to: int) -> None:
        """Write what the keys of a batch bring, which ends at offset `up_to`.

        It may come again, cut elsewhere, and from two processes at once.
        """
        ...
