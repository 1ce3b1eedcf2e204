"""Lanes with messages: finding them in the table, and the queue that gives each to one worker at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from headrace.outbox.databases import Database, execute
from headrace.outbox.leases import LeaseTimes
from headrace.outbox.messages import Lane

__all__ = ["LaneQueue", "Lanes", "WaitingLane", "free_lanes", "soonest_s"]


@dataclass(frozen=True, slots=True)
class WaitingLane:
    """A lane with messages, and what its lease row says; times are the database's, as is `now`."""

    lane: Lane
    is_known: bool
    locked_by: str | None
    locked_at: int | None
    retry_at: int | None
    now: int

    def is_free(self, times: LeaseTimes, ours: frozenset[str] = frozenset()) -> bool:
        """Return True if one of our workers could take it now."""
        return self.is_retry_due(times) and (self.locked_by in ours or not self.is_held(times))

    def is_retry_due(self, times: LeaseTimes) -> bool:
        """Return True if no error holds it back any more."""
        return self.retry_at is None or not self.now < self.retry_at <= self.now + times.hold_ms

    def is_held(self, times: LeaseTimes) -> bool:
        """Return True if a worker has its lease, and the lease is alive."""
        return (
            self.locked_by is not None
            and self.locked_at is not None
            and self.now - times.lease_ms <= self.locked_at <= self.now + times.lease_ms
        )


def free_lanes(waiting: Sequence[WaitingLane], times: LeaseTimes, ours: frozenset[str] = frozenset()) -> list[Lane]:
    """Return the lanes that could be taken now, those with leases of our own crashed workers included."""
    return [each.lane for each in waiting if each.is_free(times, ours)]


def soonest_s(waiting: Sequence[WaitingLane], limit_s: float) -> float:
    """Return how long to wait until the next error hold is over, at most `limit_s`."""
    waits = [(each.retry_at - each.now) / 1000 for each in waiting if each.retry_at is not None]
    return min([limit_s, *(wait for wait in waits if wait > 0)])


class Lanes:
    """The lanes of one database, as its tables show them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect = database.dialect
        self._select = (
            f"SELECT p.topic, p.bucket, i.topic, i.locked_by, i.locked_at, i.retry_at, {dialect.now_ms} "  # noqa: S608
            f"FROM ({dialect.pending_lanes}) p "
            "LEFT JOIN kafka_topic_info i ON i.topic = p.topic AND i.bucket = p.bucket"
        )
        self._insert = dialect.insert_ignoring("kafka_topic_info", ("topic", "bucket"))

    async def waiting(self) -> list[WaitingLane]:
        """Return all lanes with messages; those never seen before get their lease row."""
        found = await self._database.read(self._find)
        unknown = [each.lane for each in found if not each.is_known]
        if unknown:
            await self._database.write(lambda db: self._add(db, unknown))
        return found

    def _find(self, db: Connection) -> list[WaitingLane]:
        return [
            WaitingLane(Lane(topic, bucket), known is not None, locked_by, locked_at, retry_at, now)
            for topic, bucket, known, locked_by, locked_at, retry_at, now in execute(db, self._select)
        ]

    def _add(self, db: Connection, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            execute(db, self._insert, lane._asdict())


class LaneQueue:
    """The lanes that wait for a worker, first come, first served.

    Promises: one worker has a lane at a time; a lane that comes back with more messages queues up behind the others.
    """

    def __init__(self) -> None:
        self._queue: deque[Lane] = deque()
        self._known: set[Lane] = set()  # in the queue, or with a worker
        self._changed = asyncio.Condition()
        self._is_closed = False

    async def add(self, lanes: Iterable[Lane]) -> bool:
        """Queue the lanes that are neither queued nor with a worker; returns True if there was one."""
        new = [lane for lane in lanes if lane not in self._known]
        async with self._changed:
            self._known.update(new)
            self._queue.extend(new)
            self._changed.notify(len(new))
        return bool(new)

    async def take(self) -> Lane | None:
        """Wait for a lane and return it; None when the queue is closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._queue or self._is_closed)
            return None if self._is_closed else self._queue.popleft()

    async def give_back(self, lane: Lane, *, has_more: bool) -> bool:
        """End a worker's turn with the lane; returns True if the lane is queued again because it has more messages."""
        async with self._changed:
            if has_more and not self._is_closed:
                self._queue.append(lane)
                self._changed.notify()
                return True
            self._known.discard(lane)
            return False

    async def close(self) -> None:
        """Hand out nothing more."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()
