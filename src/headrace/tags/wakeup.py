"""The wake-up of a query: it sleeps until no head holds up its first event any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headrace.model import TopicPartition
from headrace.store import FIRST_TAG_TIME, TagTime
from headrace.tags.followed import FollowedTopics
from headrace.tags.heads import PartitionHead

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes a query by setting `woken`. It watches the heads that hold the query up, one at a time.

    Positions never go back, so a head that has moved out of the way needs no second look.
    """

    def __init__(self, followed: FollowedTopics, woken: asyncio.Event) -> None:
        self._followed = followed
        self._woken = woken
        self._blockers: list[PartitionHead] = []
        self._blocked_until = FIRST_TAG_TIME
        self._marked: frozenset[TopicPartition] = frozenset()

    def expect_marks(self, partitions: Iterable[TopicPartition]) -> None:
        """Remember which idle partitions Marks were asked for: only others need new ones."""
        self._marked = frozenset(partitions)

    def is_held_up(self, place: TagTime | None) -> bool:
        """Return True if a head holds up the place that comes next, or if none does; the head will wake the query."""
        self.stop()
        self._blocked_until = FIRST_TAG_TIME if place is None else place
        self._blockers = [head for head in self._followed.heads.values() if self._holds_up(head)]
        if self._blockers:
            self._blockers[-1].watch(self._blocker_moved)
        return bool(self._blockers) or place is None

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the query is woken; False if that did not happen in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Watch no head any more."""
        if self._blockers:
            self._blockers[-1].watch(None)
            self._blockers = []

    def _holds_up(self, head: PartitionHead) -> bool:
        position = head.position
        if self._followed.until is not None and position.offset < self._followed.until[head.at]:
            return True
        return position <= self._blocked_until

    def _blocker_moved(self) -> None:
        """Watch the next head that holds up the query; wake the query if there is none, or if it needs a Mark."""
        while self._blockers and not self._holds_up(self._blockers[-1]):
            self._blockers.pop().watch(None)
        if not self._blockers or self._needs_mark(self._blockers[-1]):
            self._woken.set()
        else:
            self._blockers[-1].watch(self._blocker_moved)

    def _needs_mark(self, head: PartitionHead) -> bool:
        """Return True if a head has reached the end of the log since Marks were last asked for."""
        return self._followed.is_idle(head) and head.at not in self._marked
