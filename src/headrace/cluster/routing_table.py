"""Whom to ask for a partition: what the coordinator shows, corrected by what nodes answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from headrace.cluster.members import ClusterView

__all__ = ["RoutingTable"]

_Partition: TypeAlias = tuple[str, int]


class RoutingTable:
    """The newest view, and the owners that answers named since the view last said something about their partition."""

    def __init__(self, view: ClusterView | None = None) -> None:
        self.view = view or ClusterView()
        self._learnt: dict[_Partition, str] = {}
        self._changed = asyncio.Event()
        self._on_move: list[Callable[[str, int, str], None]] = []

    def on_move(self, call: Callable[[str, int, str], None]) -> None:
        """Call with group, partition and the new owner whenever a partition has another owner than before."""
        self._on_move.append(call)

    def update(self, view: ClusterView) -> None:
        """Take a newer view. Where it announces another owner than the last view did, it knows better than answers."""
        if view is self.view:
            return
        before, self.view = self.view, view
        for group in view.groups:
            for partition in range(view.groups[group].partitions):
                announced = view.owners.get(group, {}).get(partition)
                if announced != before.owners.get(group, {}).get(partition):
                    self._learnt.pop((group, partition), None)
                    if announced is not None:
                        self._move(group, partition, announced.member)
        self._learnt = {where: member for where, member in self._learnt.items() if member in view.members}
        self._wake()

    def learn(self, group: str, partition: int, member: str) -> None:
        """Remember that a member owns a partition: it answered, or another one named it."""
        if member in self.view.members and self.owner(group, partition) != member:
            self._learnt[group, partition] = member
            self._move(group, partition, member)
            self._wake()

    def forget(self, group: str, partition: int, member: str) -> None:
        """Remember that a member does not own a partition, whatever was learnt before."""
        if self._learnt.get((group, partition)) == member:
            del self._learnt[group, partition]

    def owner(self, group: str, partition: int) -> str | None:
        """Return the member to ask first."""
        return self._learnt.get((group, partition)) or self.view.owner_of(group, partition)

    def candidates(self, group: str, partition: int) -> list[str]:
        """Return all members worth asking, the likely owner first, then the replicas in the order of rank."""
        placements = self.view.placements.get(group, ())
        replicas = placements[partition].replicas if partition < len(placements) else ()
        likely = self.owner(group, partition)
        listed = dict.fromkeys(([likely] if likely else []) + [each for each in replicas if each in self.view.members])
        return list(listed)

    async def changed(self, *, timeout_s: float) -> None:
        """Return when something has changed, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _move(self, group: str, partition: int, member: str) -> None:
        for call in self._on_move:
            call(group, partition, member)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
