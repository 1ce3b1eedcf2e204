"""Rebalances: partitions are assigned to a member of a group, revoked from it, or lost; the listener is called."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.log.embedded import membership
from headrace.log.embedded.append import LogCall, LogWork
from headrace.log.embedded.membership import load_offsets
from headrace.log.embedded.read import PartitionReader, find_bounds
from headrace.log.ports import Listener, StartAt
from headrace.model import TopicPartition
from headrace.runtime import Clock
from headrace.sqlite import ChangeWatch, GroupCommit, Readers

__all__ = ["EmbeddedAssignment", "GroupTables"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupTables:
    """What all members in a process share."""

    commits: GroupCommit[LogWork]
    readers: Readers
    changes: ChangeWatch
    clock: Clock

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in a write transaction."""
        result: T = await self.commits.submit(LogCall(function))
        return result


class EmbeddedAssignment:
    """The partitions of one member, each with its reader. Polls change it, so that no record comes meanwhile."""

    def __init__(
        self, shared: GroupTables, group: str, member_id: str, listener: Listener | None, start_at: StartAt
    ) -> None:
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.paused: set[TopicPartition] = set()
        self.generation = 0
        self.listener = listener
        self._shared = shared
        self._group = group
        self._member_id = member_id
        self._start_at = start_at

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What the member owns."""
        return frozenset(self.readers)

    async def lose_all(self) -> None:
        """Note that all partitions are gone, because the session has expired."""
        lost = self.partitions
        self.readers.clear()
        self.paused.clear()
        if lost:
            self.generation += 1
            if self.listener:
                await self.listener.lost(lost)

    async def revoke(self, unwanted: frozenset[TopicPartition]) -> None:
        """Give partitions back after the listener was called."""
        if not unwanted:
            return
        read = unwanted & self.partitions
        if self.listener and read:
            await self.listener.revoked(read)
        for at in read:
            del self.readers[at]
        self.paused -= unwanted
        self.generation += 1
        await self._shared.call(lambda db: membership.let_go(db, self._group, self._member_id, unwanted))

    async def assign(self, share: membership.Share) -> None:
        """Claim what is free, and open readers for all that is owned: an earlier change may have failed in between."""
        claimed: frozenset[TopicPartition] = await self._shared.call(
            lambda db: membership.claim(db, self._group, self._member_id)
        )
        taken = (claimed | (share.owned & share.wanted)) - self.partitions
        if not taken:
            return
        starts = await self._shared.readers.run(lambda db: self._starts(db, taken))
        for at, start in starts.items():
            self.readers[at] = PartitionReader(self._shared.readers, self._shared.changes, at, start)
        self.generation += 1
        if self.listener:
            await self.listener.assigned(taken)

    def _starts(self, db: sqlite3.Connection, taken: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        committed = load_offsets(db, self._group, taken)
        return {at: committed.get(at, self._first(db, at)) for at in taken}

    def _first(self, db: sqlite3.Connection, at: TopicPartition) -> int:
        bounds = find_bounds(db, at)
        return bounds.start if self._start_at == "earliest" else bounds.end
