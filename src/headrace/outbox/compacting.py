"""Sending only a key's last message of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.outbox.messages import PendingMessage

__all__ = ["Compacted", "compact", "keep_all"]


class Compacted(NamedTuple):
    """What to send of the rows, and the ids that each sent message stands for beside its own."""

    rows: Sequence[PendingMessage]
    kept: Sequence[PendingMessage]
    superseded: dict[int, list[int]]

    def ids_done(self, sent: Iterable[int]) -> list[int]:
        """Return all ids that are done when these were sent."""
        if not self.superseded:
            return list(sent)
        return [id_ for each in sent for id_ in (*self.superseded.get(each, ()), each)]


def keep_all(rows: Sequence[PendingMessage]) -> Compacted:
    """Send everything."""
    return Compacted(rows, rows, {})


def compact(rows: Sequence[PendingMessage]) -> Compacted:
    """Keep the last message of each key, in order; messages without a key are all kept."""
    last = {row.key: row.id for row in rows if row.key is not None}
    kept = [row for row in rows if row.key is None or last[row.key] == row.id]
    superseded: dict[int, list[int]] = {}
    for row in rows:
        if row.key is not None and last[row.key] != row.id:
            superseded.setdefault(last[row.key], []).append(row.id)
    return Compacted(rows, kept, superseded)
