"""Limits on what callers may use: requests in flight, streams, and requests in a second by caller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import Gauge

from headrace.access import CallerRates
from headrace.errors import Busy, RateExceeded
from headrace.gateway.metrics import REFUSED

__all__ = ["Rates", "Slots"]


class Slots:
    """A number of places; `take` raises Busy if all are taken."""

    def __init__(self, what: str, limit: int, shown: Gauge) -> None:
        self._what = what
        self._limit = limit
        self._shown = shown
        self._taken = 0

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._taken

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Hold a place while the block runs. Raises Busy."""
        if self._taken >= self._limit:
            REFUSED.labels(self._what).inc()
            raise Busy(f"the gateway ({self._what})", self._limit)
        self._taken += 1
        self._shown.inc()
        try:
            yield
        finally:
            self._taken -= 1
            self._shown.dec()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Give one's place back while the block runs, for a request that only waits; it gets one again in any case."""
        self._taken -= 1
        self._shown.dec()
        try:
            yield
        finally:
            self._taken += 1
            self._shown.inc()


class Rates(CallerRates):
    """The rates of the gateway's callers; what is refused is counted."""

    def take(self, caller: str) -> None:
        """Count a request. Raises RateExceeded if the caller has used up what it may send."""
        try:
            super().take(caller)
        except RateExceeded:
            REFUSED.labels("rate").inc()
            raise
