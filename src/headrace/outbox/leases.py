"""Lanes with messages, and their leases: one worker at a time sends the messages of a lane, and an epoch fences others.

Between processes the lease decides, a row of the lane in the database; within one process a queue does.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from sqlalchemy.engine import Connection

from headrace.outbox.dialects import Dialect
from headrace.outbox.engines import Database, execute, storable
from headrace.outbox.messages import Lane

__all__ = [
    "NOTE_FORMAT",
    "LaneLease",
    "LaneLeases",
    "LaneQueue",
    "Lanes",
    "LeaseLost",
    "LeaseTimes",
    "WaitingLane",
    "confirm",
    "free_lanes",
    "soonest_s",
]

# Rounding, and statements of one transaction that read the clock one after the other.
_MARGIN_MS = 1000
# Longer than any relay waits after an error unless its settings say so.
_LONGEST_HOLD_S = 3600.0


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a lease lives without being renewed, and how long an error holds a lane back at most.

    A time in a lease's row that lies further ahead than these was written before the database's clock was set back,
    and is ignored. Otherwise a lane whose holder died, or that was held back for a moment, would not be sent until the
    clock comes to that time again.
    """

    lease_ms: int
    hold_ms: int

    @classmethod
    def of(cls, lease_s: float, longest_hold_s: float = _LONGEST_HOLD_S) -> LeaseTimes:
        """Return the times of a relay."""
        return cls(int(lease_s * 1000), int(longest_hold_s * 1000) + _MARGIN_MS)


NOTE_FORMAT = 2
"""The format in which notes are written now: event ids beside ids, under the database's own key."""

_FENCE = "topic = :topic AND bucket = :bucket AND locked_by = :owner AND epoch = :epoch"


class LeaseLost(Exception):
    """Another worker has the lane now; the worker that gets this error writes nothing more there."""


@dataclass(slots=True)
class LaneLease:
    """A lane that is ours, as of `confirmed_s` on this process' own clock.

    `progress_offset` is where the log's last note of the lane was when its messages were deleted, and `note_format`
    how such notes are written; `database_id` is the identity of the database that the lease is in.
    """

    lane: Lane
    owner: str
    epoch: int
    retries: int
    progress_offset: int | None
    note_format: int
    database_id: str
    confirmed_s: float = field(default_factory=time.monotonic)

    @property
    def fence(self) -> dict[str, object]:
        """The parameters of a condition that holds only while the lease is ours."""
        return {"topic": self.lane.topic, "bucket": self.lane.bucket, "owner": self.owner, "epoch": self.epoch}


class LaneLeases:
    """Takes, renews and gives back leases.

    Promises: a lane has one holder whose writes count. Time is the database's. A row without a holder,
    whatever else it says, can be taken once its retry time has passed. Times that are ahead because the clock was set
    back are ignored.
    """

    def __init__(
        self,
        database: Database,
        *,
        lease_s: float,
        owners: Sequence[str] = (),
        times: LeaseTimes | None = None,
    ) -> None:
        self._database = database
        self.owners = frozenset(owners)
        self.times = times or LeaseTimes.of(lease_s)
        self._owner_names = {f"owner_{n}": owner for n, owner in enumerate(owners)}
        self._dialect = database.dialect

    async def acquire(self, lane: Lane, owner: str) -> LaneLease | None:
        """Take the lane if it is free; what one of our own `owners` left behind when it crashed is free to us."""
        return await self._database.write_relaxed(lambda db: self._acquire(db, lane, owner))

    async def renew(self, lease: LaneLease) -> None:
        """Make the lease last for another `lease_s`. Raises LeaseLost."""
        started_s = time.monotonic()
        sql = f"UPDATE kafka_topic_info SET locked_at = {self._dialect.now_ms} WHERE {_FENCE}"  # noqa: S608
        if await self._database.write_relaxed(lambda db: execute(db, sql, lease.fence).rowcount) != 1:
            raise LeaseLost(lease.lane)
        lease.confirmed_s = started_s

    async def release(self, lease: LaneLease, *, pause_ms: int = 0) -> None:
        """Give it back, to be taken again after `pause_ms`. Does nothing if it was lost."""
        retry_at = f"{self._dialect.now_ms} + {pause_ms}" if pause_ms else "NULL"
        changes = f"error = FALSE, retries = 0, last_error = NULL, retry_at = {retry_at}"
        await self._let_go(lease, changes, {})

    async def hold(self, lease: LaneLease, error: str, *, delay_s: float) -> None:
        """Give it back with an error: it can be taken when the delay is over. Does nothing if it was lost."""
        changes = (
            f"error = TRUE, retries = retries + 1, last_error = :error, retry_at = {self._dialect.now_ms} + :delay_ms"
        )
        await self._let_go(lease, changes, {"error": storable(error), "delay_ms": int(delay_s * 1000)})

    async def abandon(self, lease: LaneLease) -> None:
        """Give it back as it was found."""
        await self._let_go(lease, "epoch = epoch", {})

    async def _let_go(self, lease: LaneLease, changes: str, parameters: dict[str, object]) -> None:
        sql = f"UPDATE kafka_topic_info SET locked_by = NULL, locked_at = NULL, {changes} WHERE {_FENCE}"  # noqa: S608
        await self._database.write_relaxed(lambda db: execute(db, sql, {**parameters, **lease.fence}))

    def _acquire(self, db: Connection, lane: Lane, owner: str) -> LaneLease | None:
        confirmed_s = time.monotonic()
        asked = {"topic": lane.topic, "bucket": lane.bucket, "owner": owner, **asdict(self.times)}
        now = self._dialect.now_ms
        ours = ", ".join([":owner", *(f":{name}" for name in self._owner_names)])
        taken = execute(
            db,
            f"UPDATE kafka_topic_info SET locked_by = :owner, locked_at = {now}, epoch = epoch + 1 "  # noqa: S608
            f"WHERE topic = :topic AND bucket = :bucket "
            f"AND (retry_at IS NULL OR retry_at <= {now} OR retry_at > {now} + :hold_ms) "
            f"AND (locked_by IS NULL OR locked_by IN ({ours}) OR locked_at IS NULL "
            f"OR locked_at < {now} - :lease_ms OR locked_at > {now} + :lease_ms)",
            {**asked, **self._owner_names},
        )
        if taken.rowcount != 1:
            return None
        where = "topic = :topic AND bucket = :bucket"
        epoch, retries, progress, note_format, database_id = execute(
            db,
            "SELECT epoch, retries, progress_offset, note_format, "  # noqa: S608
            f"(SELECT database_id FROM kafka_outbox_identity WHERE nr = 1) FROM kafka_topic_info WHERE {where}",
            {"topic": lane.topic, "bucket": lane.bucket},
        ).one()
        known = database_id or self._identify(db)
        return LaneLease(lane, owner, epoch, retries, progress, note_format, known, confirmed_s)

    def _identify(self, db: Connection) -> str:
        """Give the database its identity, where the tables were made without the migrations."""
        made = {"nr": 1, "database_id": str(uuid.uuid4())}
        execute(db, self._dialect.insert_ignoring("kafka_outbox_identity", tuple(made)), made)
        return str(execute(db, "SELECT database_id FROM kafka_outbox_identity WHERE nr = 1").scalar_one())


def confirm(db: Connection, dialect: Dialect, lease: LaneLease, *, progress_offset: int | None = None) -> None:
    """Lock the lease's row inside a transaction: until it ends no other worker can take the lane. Raises LeaseLost."""
    now = dialect.now_ms
    sql = (
        f"UPDATE kafka_topic_info SET locked_at = {now}, last_processed_at = {now}, error = FALSE, retries = 0, "  # noqa: S608
        "retry_at = NULL, last_error = NULL, "
        f"progress_offset = COALESCE(:progress, progress_offset), note_format = :format WHERE {_FENCE}"
    )
    noted = {"progress": progress_offset, "format": lease.note_format if progress_offset is None else NOTE_FORMAT}
    if execute(db, sql, {**lease.fence, **noted}).rowcount != 1:
        raise LeaseLost(lease.lane)


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
