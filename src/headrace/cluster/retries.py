"""Sending a request again: whether one that failed is, what its caller gets otherwise, and who waits meanwhile.

The first two are pure decisions. Requests of one caller for one key keep their order: while one is being repeated,
those after it wait in its lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from headrace.errors import Busy, HeadraceError, NotPartitionOwner, OperationFailed, TimedOut, Unavailable, Unreachable
from headrace.runtime import Backoff

__all__ = ["Attempts", "RequestLanes", "RetryVerdict", "Ticket", "Trail", "explain", "judge", "not_ours", "out_of_time"]

_BACKOFF = Backoff(first_s=0.01, factor=1.6, limit_s=0.2, jitter=0.5)


class Attempts(NamedTuple):
    """What happened to a request so far.

    `number` is 1 more than the attempts whose outcome is unknown; `failures` counts all that failed.
    """

    number: int = 1
    failures: int = 0

    def after(self, *, is_unknown: bool) -> Attempts:
        """Return what it is after one more failure."""
        return Attempts(self.number + is_unknown, self.failures + 1)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        return _BACKOFF.delay_s(self.failures) if self.failures else 0.0


class Trail:
    """The members that one request has asked: the likely owner whenever it is a new one, else the others in turn."""

    def __init__(self, began_s: float = 0.0) -> None:
        self.began_s = began_s
        self._likely: str | None = None
        self._asked: str | None = None

    def next(self, candidates: Sequence[str]) -> str:
        """Return whom to ask now; `candidates` begin with the likely owner and are not empty."""
        at = 0
        if candidates[0] == self._likely and self._asked in candidates:
            at = (candidates.index(self._asked) + 1) % len(candidates)
        self._likely, self._asked = candidates[0], candidates[at]
        return self._asked


class RetryVerdict(NamedTuple):
    """What to do after an attempt failed: whether to send again, and whether it may have been done already."""

    retries: bool
    is_unknown: bool


def judge(error: HeadraceError, *, is_repeatable: bool, has_unknown: bool = False) -> RetryVerdict:
    """Return what to do after an attempt failed; `has_unknown` says that an earlier one may have been done.

    A node that does not own the partition, and anything else that says that nothing was done, is tried again. What may
    have been done is repeated only if that is safe: a read, or a command with an id. A refusal is never repeated. Nor
    is what a busy node does not take, unless that is the only way to learn what became of an earlier attempt: whoever
    waits here instead would be one of an unbounded number.
    """
    if isinstance(error, Busy):
        return RetryVerdict(retries=has_unknown, is_unknown=False)
    if isinstance(error, NotPartitionOwner):
        return RetryVerdict(retries=True, is_unknown=False)
    if not isinstance(error, Unavailable):
        return RetryVerdict(retries=False, is_unknown=not getattr(error, "outcome_known", True))
    is_unknown = not error.outcome_known
    return RetryVerdict(retries=is_repeatable or not is_unknown, is_unknown=is_unknown)


def out_of_time(group: str, partition: int, timeout_s: float, attempts: Attempts) -> TimedOut:
    """Return the error of a request that was tried until its deadline."""
    return TimedOut(f"a request to {group}[{partition}]", timeout_s, outcome_known=attempts.number == 1)


def explain(
    error: Exception, member: str, timeout_s: float, limit: asyncio.Timeout, is_out_of_time: bool
) -> HeadraceError:
    """Return what the caller gets for an error that is not ours: a request that was under way may have been done."""
    if not limit.expired():
        return not_ours(error, member)
    if is_out_of_time:
        return TimedOut(f"a request to node {member!r}", timeout_s, outcome_known=False)
    return Unreachable(member, "the partition has moved to another node", outcome_known=False)


def not_ours(error: Exception, member: str) -> HeadraceError:
    """Return the error of a request whose handler raised something that is not ours."""
    return OperationFailed(f"a request to node {member!r}", f"{type(error).__name__}: {error}", outcome_known=False)


class Ticket:
    """One request's place in the lane of its key, while the block runs."""

    __slots__ = ("_before", "_done", "_is_done", "_key", "_lane", "_lanes", "is_repeated")

    def __init__(self, lanes: dict[Hashable, list[Ticket]], key: Hashable) -> None:
        self._lanes = lanes
        self._key = key
        lane = lanes.get(key)
        self._before: Sequence[Ticket] = ()
        if lane is None:
            lane = lanes[key] = [self]
        else:
            self._before = tuple(lane)
            lane.append(self)
        self._lane = lane
        self._is_done = False
        self._done: asyncio.Event | None = None
        self.is_repeated = False

    @property
    def must_wait(self) -> bool:
        """True if an earlier request of the key is being repeated."""
        return bool(self._before) and any(ticket.is_repeated for ticket in self._before)

    async def wait_to_send(self) -> None:
        """Return when no earlier request of the key is being repeated."""
        for ticket in self._before:
            if ticket.is_repeated:
                await ticket.ended()

    async def wait_to_repeat(self) -> None:
        """Return when all earlier requests of the key have ended: they may have to be repeated, too."""
        self.is_repeated = True
        for ticket in self._before:
            await ticket.ended()

    async def ended(self) -> None:
        """Return when the request has ended."""
        if not self._is_done:
            self._done = self._done or asyncio.Event()
            await self._done.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_done = True
        self._before = ()  # those behind hold this one; else they would hold all that ever were before it
        if self._done is not None:
            self._done.set()
        if len(self._lane) == 1:
            del self._lanes[self._key]
        else:
            self._lane.remove(self)


class RequestLanes:
    """The lanes of all keys that have requests under way."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, list[Ticket]] = {}

    def ticket(self, key: Hashable) -> Ticket:
        """Take a place behind the requests of the key that are under way; it is left at the end of the block."""
        return Ticket(self._lanes, key)
