"""A clock that moves only when a test moves it."""

from __future__ import annotations

import threading

from headrace.errors import BadArgument
from headrace.runtime import BootTime

__all__ = ["SettableClock"]

NEW_YEAR_2026_MS = 1_767_225_600_000


class SettableClock:
    """A `headrace.runtime.Clock` for tests; any thread may move it.

    Promises: `advance` moves all clocks, `set` only the wall clock, as an operator or NTP would; `reboot` starts the
    time since the boot again.
    """

    def __init__(self, now_ms: int = NEW_YEAR_2026_MS) -> None:
        self._now_ns = now_ms * 1_000_000
        self._monotonic_ns = 0
        self._booted_ns = 0
        self._boots = 1
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the wall clock as it was last set or moved."""
        return self._now_ns // 1_000_000

    def monotonic_s(self) -> float:
        """Return how far the clock was advanced since it was made."""
        return self._monotonic_ns / 1_000_000_000

    def boot_time(self) -> BootTime:
        """Return how far the clock was advanced since the last boot."""
        return BootTime(f"boot-{self._boots}", (self._monotonic_ns - self._booted_ns) // 1_000_000)

    def reboot(self) -> None:
        """Start the machine again: another boot, whose time begins at 0."""
        with self._lock:
            self._boots += 1
            self._booted_ns = self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise BadArgument("seconds", seconds, "time passes forward; use set() to put the wall clock back")
        passed_ns = round(seconds * 1_000_000_000)
        with self._lock:
            self._now_ns += passed_ns
            self._monotonic_ns += passed_ns

    def set(self, now_ms: int) -> None:
        """Set the wall clock to any time, also back."""
        with self._lock:
            self._now_ns = now_ms * 1_000_000
