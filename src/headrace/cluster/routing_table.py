"""Whom to ask for a partition: what the coordinator shows, corrected by what nodes answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from headrace.cluster.members import AnnouncedOwner, ClusterView

__all__ = ["RoutingTable"]

_Partition: TypeAlias = tuple[str, int]


class RoutingTable:
    """The newest view, and the owners that announcements and answers named.

    Promises: an owner whose session at the coordinator was lost is still asked, until another one takes over: it may
    well be alive, and the partition's log decides who owns it.
    """

    def __init__(self) -> None:
        self.view = ClusterView()
        self.addresses: dict[str, str] = {}
        self._announced: dict[_Partition, AnnouncedOwner] = {}
        self._learnt: dict[_Partition, str] = {}
        # Every request asks for them; they are worked out again after a change.
        self._candidates: dict[_Partition, list[str]] = {}
        self._changed = asyncio.Event()
        self._on_move: list[Callable[[str, int, str], None]] = []

    def on_move(self, call: Callable[[str, int, str], None]) -> None:
        """Call with group, partition and the new owner whenever a partition has another owner than before."""
        self._on_move.append(call)

    def update(self, view: ClusterView) -> None:
        """Take a newer view. Where it announces a new owner, it knows better than earlier answers."""
        if view is self.view:
            return
        self.view = view
        for group, owners in view.owners.items():
            for partition, owner in owners.items():
                self._take(group, partition, owner)
        known = {name: facts.address for name, facts in view.members.items()}
        absent = {*self._learnt.values(), *(owner.member for owner in self._announced.values())} - known.keys()
        self.addresses = {**{name: self.addresses[name] for name in absent if name in self.addresses}, **known}
        self._wake()

    def learn(self, group: str, partition: int, member: str) -> None:
        """Remember that a member owns a partition: it answered, or another one named it."""
        if member in self.addresses and self.owner(group, partition) != member:
            self._learnt[group, partition] = member
            self._move(group, partition, member)
            self._wake()

    def forget(self, group: str, partition: int, member: str) -> None:
        """Remember that a member does not own a partition, whatever was learnt before."""
        if self._learnt.get((group, partition)) == member:
            del self._learnt[group, partition]
            self._candidates.clear()

    def owner(self, group: str, partition: int) -> str | None:
        """Return the member to ask first."""
        where = (group, partition)
        announced = self._announced.get(where)
        likely = self._learnt.get(where) or (announced.member if announced else None)
        return likely if likely in self.addresses else self.view.owner_of(group, partition)

    def candidates(self, group: str, partition: int) -> list[str]:
        """Return all members worth asking, the likely owner first, then the replicas in the order of rank."""
        found = self._candidates.get((group, partition))
        if found is None:
            found = self._candidates[group, partition] = self._worth_asking(group, partition)
        return found

    def _worth_asking(self, group: str, partition: int) -> list[str]:
        placements = self.view.placements.get(group, ())
        replicas = placements[partition].replicas if partition < len(placements) else ()
        likely = self.owner(group, partition)
        listed = dict.fromkeys(([likely] if likely else []) + [each for each in replicas if each in self.addresses])
        return list(listed)

    async def changed(self, *, timeout_s: float) -> None:
        """Return when something has changed, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _take(self, group: str, partition: int, owner: AnnouncedOwner) -> None:
        before = self._announced.get((group, partition))
        # The highest epoch counts, also when the member that announced it has vanished from the view.
        if before is not None and owner.epoch <= before.epoch:
            return
        self._announced[group, partition] = owner
        self._learnt.pop((group, partition), None)
        self._move(group, partition, owner.member)

    def _move(self, group: str, partition: int, member: str) -> None:
        for call in self._on_move:
            call(group, partition, member)

    def _wake(self) -> None:
        self._candidates.clear()
        self._changed.set()
        self._changed = asyncio.Event()
