"""Time, as something that can be handed over, so that tests can set it."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """What time it is.

    Promises: `monotonic_s` never goes back.
    Does not promise: that `now_ms` never does; operators and NTP set the wall clock.
    """

    def now_ms(self) -> int:
        """Return the wall clock: milliseconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; for measuring how long things take."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Return the machine's wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return the machine's monotonic clock."""
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()
