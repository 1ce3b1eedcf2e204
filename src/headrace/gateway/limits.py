"""Limits on what callers may use: requests in flight, streams, bytes of bodies, and requests in a second by caller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import Gauge

from headrace.access import CallerRates
from headrace.errors import Busy, RateExceeded
from headrace.gateway.metrics import REFUSED

__all__ = ["BodyBytes", "Rates", "Slots", "TakenSlot"]


class Slots:
    """A number of places; `take` raises Busy if all are taken, or as many as one caller may have."""

    def __init__(self, what: str, limit: int, shown: Gauge, *, per_caller: int | None = None) -> None:
        self._what = what
        self._limit = limit
        self._per_caller = limit if per_caller is None else per_caller
        self._shown = shown
        self._taken = 0
        self._by_caller: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._taken

    def take(self, caller: str = "") -> TakenSlot:
        """Take a place, which is held while the block runs. Raises Busy: one caller must not take all places."""
        self._check(caller)
        return TakenSlot(self, caller)

    def occupy(self, caller: str) -> None:
        """Take a place, which is held until `leave`. Raises Busy."""
        self._check(caller)
        self.enter(caller)

    def has_room(self, caller: str) -> bool:
        """Return True if the caller may take a place."""
        return self._taken < self._limit and self._by_caller.get(caller, 0) < self._per_caller

    def _check(self, caller: str) -> None:
        if not self.has_room(caller):
            REFUSED.labels(self._what).inc()
            raise Busy(f"the gateway ({self._what})", min(self._limit, self._per_caller))

    def enter(self, caller: str) -> None:
        """Count a place."""
        self._taken += 1
        self._by_caller[caller] = self._by_caller.get(caller, 0) + 1
        self._shown.inc()

    @contextlib.contextmanager
    def lent(self, caller: str = "") -> Iterator[None]:
        """Give one's place back while the block runs, for a request that only waits; it gets one again in any case."""
        self.leave(caller)
        try:
            yield
        finally:
            self.enter(caller)

    def leave(self, caller: str) -> None:
        """Count a place no more."""
        self._taken -= 1
        left = self._by_caller[caller] - 1
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]
        self._shown.dec()


class TakenSlot:
    """A place that is held while its block runs."""

    __slots__ = ("_caller", "_slots")

    def __init__(self, slots: Slots, caller: str) -> None:
        self._slots = slots
        self._caller = caller

    def __enter__(self) -> None:
        self._slots.enter(self._caller)

    def __exit__(self, *_: object) -> None:
        self._slots.leave(self._caller)


class BodyBytes:
    """The bytes of all bodies in memory. A body that is on its way holds no place, only what has come of it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that are held."""
        return self._held_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Return True if so many bytes more may be held."""
        return self._held_bytes + size_bytes <= self._limit_bytes

    def hold(self, size_bytes: int) -> None:
        """Count bytes that have come. Raises Busy if there are too many, and counts nothing then."""
        if not self.has_room(size_bytes):
            REFUSED.labels("bodies").inc()
            raise Busy("the gateway (bytes of bodies)", self._limit_bytes)
        self._held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count bytes no more."""
        self._held_bytes -= size_bytes


class Rates(CallerRates):
    """The rates of the gateway's callers; what is refused is counted under a reason."""

    def __init__(
        self,
        per_s: float | None,
        burst: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        reason: str = "rate",
    ) -> None:
        super().__init__(per_s, burst, now_s=now_s)
        self._reason = reason

    def take(self, caller: str) -> None:
        """Count a request. Raises RateExceeded if the caller has used up what it may send."""
        try:
            super().take(caller)
        except RateExceeded:
            REFUSED.labels(self._reason).inc()
            raise
