"""Clocks, which are passed as arguments so that tests can set them."""

from __future__ import annotations

import subprocess
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.errors import UnsupportedPlatform

__all__ = ["SYSTEM_CLOCK", "BootMoment", "BootTime", "Clock", "SystemClock", "elapsed_ms", "moment_of"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Only Linux has it by this name; the monotonic clock of macOS includes the time asleep.
_CLOCK_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class BootTime(NamedTuple):
    """Milliseconds since the machine started, and the id of that boot, which all processes of the machine share.

    It can't be set, and it runs on while the machine is suspended. Times of two boots can't be compared.
    """

    boot_id: str
    ms: int


class BootMoment(NamedTuple):
    """A time that can be stored: since the boot for as long as the machine runs, by the wall clock after that."""

    boot: BootTime
    wall_ms: int


class Clock(Protocol):
    """The time.

    Promises: `monotonic_s` never goes back, nor does `boot_time` before the machine is started again.
    Does not promise: that `now_ms` never does; operators and NTP set the wall clock.
    """

    def now_ms(self) -> int:
        """Return the wall clock: milliseconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; for measuring how long things take."""
        ...

    def boot_time(self) -> BootTime:
        """Return the time since the machine was started; for leases that its processes share."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Return the machine's wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return the machine's monotonic clock."""
        return time.monotonic()

    def boot_time(self) -> BootTime:
        """Return CLOCK_BOOTTIME and the boot's id."""
        return BootTime(_boot_id(), time.clock_gettime_ns(_CLOCK_BOOTTIME) // 1_000_000)


def moment_of(clock: Clock) -> BootMoment:
    """Return the present."""
    return BootMoment(clock.boot_time(), clock.now_ms())


def elapsed_ms(then: BootMoment, now: BootMoment) -> int | None:
    """Return how long ago `then` was; None if nobody can tell, because the wall clock went back since another boot."""
    if then.boot.boot_id == now.boot.boot_id:
        return now.boot.ms - then.boot.ms
    passed_ms = now.wall_ms - then.wall_ms
    return passed_ms if passed_ms >= 0 else None


@cache
def _boot_id() -> str:
    """Return what the kernel calls this boot: Linux in a file, macOS through sysctl. Raises UnsupportedPlatform."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    try:
        asked = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        need = "a kernel that tells which boot this is"
        raise UnsupportedPlatform(need, f"none ({error})", "use Linux or macOS, or the tier on servers") from error


SYSTEM_CLOCK = SystemClock()
