"""Limits on what callers may use: requests in flight, streams, bytes of bodies, and requests in a second by caller."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from prometheus_client import Gauge

from headrace.errors import Busy, RateExceeded
from headrace.gateway.metrics import REFUSED

__all__ = ["BodyBytes", "Rates", "Slots", "TakenSlot"]

_CALLERS_AT_MOST = 10_000


class Slots:
    """A number of places; `take` raises Busy if all are taken, or as many as one caller may have."""

    def __init__(self, what: str, limit: int, shown: Gauge, *, per_caller: int | None = None) -> None:
        self._what = what
        self._limit = limit
        self._per_caller = limit if per_caller is None else per_caller
        self._shown = shown
        self._taken = 0
        self._by_caller: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._taken

    def take(self, caller: str = "") -> TakenSlot:
        """Take a place, which is held while the block runs. Raises Busy: one caller must not take all places."""
        if self._taken >= self._limit or self._by_caller.get(caller, 0) >= self._per_caller:
            REFUSED.labels(self._what).inc()
            raise Busy(f"the gateway ({self._what})", min(self._limit, self._per_caller))
        return TakenSlot(self, caller)

    def enter(self, caller: str) -> None:
        """Count a place."""
        self._taken += 1
        self._by_caller[caller] += 1
        self._shown.inc()

    def leave(self, caller: str) -> None:
        """Count a place no more."""
        self._taken -= 1
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
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

    def hold(self, size_bytes: int) -> None:
        """Count bytes that have come. Raises Busy if there are too many, and counts nothing then."""
        if self._held_bytes + size_bytes > self._limit_bytes:
            REFUSED.labels("bodies").inc()
            raise Busy("the gateway (bytes of bodies)", self._limit_bytes)
        self._held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count bytes no more."""
        self._held_bytes -= size_bytes


class Rates:
    """A token bucket for each caller. A caller that was silent long enough to have a full bucket is forgotten."""

    def __init__(
        self,
        per_s: float | None,
        burst: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        reason: str = "rate",
    ) -> None:
        self._per_s = per_s
        self._reason = reason
        self._burst = float(burst)
        self._now_s = now_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count a request. Raises RateExceeded if the caller has used up what it may send."""
        if self._per_s is None:
            return
        now_s = self._now_s()
        tokens, at_s = self._buckets.pop(caller, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) * self._per_s)
        is_taken = tokens >= 1
        self._buckets[caller] = (tokens - 1 if is_taken else tokens, now_s)
        while len(self._buckets) > _CALLERS_AT_MOST:
            self._buckets.popitem(last=False)
        if not is_taken:
            REFUSED.labels(self._reason).inc()
            raise RateExceeded((1 - tokens) / self._per_s)
