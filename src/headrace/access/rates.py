"""How often a caller may ask: a token bucket for each."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from headrace.errors import RateExceeded

__all__ = ["CallerRates"]

_CALLERS_AT_MOST = 10_000


class CallerRates:
    """A token bucket for each caller. Of more than 10 000 callers, those that were silent longest are forgotten."""

    def __init__(self, per_s: float | None, burst: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._now_s = now_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take_if_free(self, caller: str) -> bool:
        """Count a request; return False, and count nothing, if the caller has used up what it may send."""
        if self._per_s is None:
            return True
        try:
            CallerRates.take(self, caller)
        except RateExceeded:
            return False
        return True

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
            raise RateExceeded((1 - tokens) / self._per_s)
