"""Which places have messages waiting, and which of them could be taken now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from headrace.outbox.databases import Database, execute
from headrace.outbox.leases import LeaseTimes
from headrace.outbox.messages import Lane

__all__ = ["Lanes", "WaitingPlace", "free_places", "soonest_s"]


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """A place with messages, and what its lease row says; times are the database's, as is `now`."""

    place: Lane
    is_known: bool
    locked_by: str | None
    locked_at: int | None
    retry_at: int | None
    now: int

    def is_free(self, times: LeaseTimes, ours: frozenset[str] = frozenset()) -> bool:
        """Say whether one of us could take it now."""
        return self.is_retry_due(times) and (self.locked_by in ours or not self.is_held(times))

    def is_retry_due(self, times: LeaseTimes) -> bool:
        """Say whether no error holds it back any more."""
        return self.retry_at is None or not self.now < self.retry_at <= self.now + times.hold_ms

    def is_held(self, times: LeaseTimes) -> bool:
        """Say whether its lease is somebody's, and alive."""
        return (
            self.locked_by is not None
            and self.locked_at is not None
            and self.now - times.lease_ms <= self.locked_at <= self.now + times.lease_ms
        )


def free_places(waiting: Sequence[WaitingPlace], times: LeaseTimes, ours: frozenset[str] = frozenset()) -> list[Lane]:
    """Return what could be taken now, leases of our own crashed workers included."""
    return [each.place for each in waiting if each.is_free(times, ours)]


def soonest_s(waiting: Sequence[WaitingPlace], limit_s: float) -> float:
    """Return how long to wait until the next error hold is over, at most `limit_s`."""
    waits = [(each.retry_at - each.now) / 1000 for each in waiting if each.retry_at is not None]
    return min([limit_s, *(wait for wait in waits if wait > 0)])


class Lanes:
    """Looks for places."""

    def __init__(self, database: Database) -> None:
        self._database = database
        speech = database.speech
        self._select = (
            f"SELECT p.topic, p.bucket, i.topic, i.locked_by, i.locked_at, i.retry_at, {speech.now_ms} "  # noqa: S608
            f"FROM ({speech.pending_places}) p "
            "LEFT JOIN kafka_topic_info i ON i.topic = p.topic AND i.bucket = p.bucket"
        )
        self._insert = speech.insert_ignoring("kafka_topic_info", ("topic", "bucket"))

    async def waiting(self) -> list[WaitingPlace]:
        """Return all places with messages; those never seen before get their lease row."""
        found = await self._database.read(self._find)
        unknown = [each.place for each in found if not each.is_known]
        if unknown:
            await self._database.write(lambda db: self._add(db, unknown))
        return found

    def _find(self, db: Connection) -> list[WaitingPlace]:
        return [
            WaitingPlace(Lane(topic, bucket), known is not None, locked_by, locked_at, retry_at, now)
            for topic, bucket, known, locked_by, locked_at, retry_at, now in execute(db, self._select)
        ]

    def _add(self, db: Connection, places: Sequence[Lane]) -> None:
        for place in places:
            execute(db, self._insert, place._asdict())
