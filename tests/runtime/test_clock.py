"""Clocks: the machine's, and the one tests set."""

from __future__ import annotations

import time

import pytest

from headrace.errors import BadArgument
from headrace.runtime import SYSTEM_CLOCK, Clock
from headrace.testing.clock import SettableClock
from headrace.testing.processes import running


def test_the_system_clock_tells_the_machines_time() -> None:
    """`now_ms` lies between two readings of the machine's clock, in milliseconds."""
    before = time.time_ns() // 1_000_000
    now = SYSTEM_CLOCK.now_ms()
    assert before <= now <= time.time_ns() // 1_000_000
    assert SYSTEM_CLOCK.monotonic_s() <= time.monotonic()


def test_the_time_since_boot_is_that_of_the_machine() -> None:
    """It goes on within one boot, and every process of the machine tells the same."""
    first, second = SYSTEM_CLOCK.boot_time(), SYSTEM_CLOCK.boot_time()
    code = "from headrace.runtime import SYSTEM_CLOCK; print(*SYSTEM_CLOCK.boot_time())"
    with running("-c", code) as child:
        assert child.wait(20) == 0
        boot_id, ms = child.stdout.split()
    assert first.boot_id == second.boot_id == boot_id
    assert 0 < first.ms <= second.ms <= int(ms) <= SYSTEM_CLOCK.boot_time().ms


def test_setting_the_wall_clock_leaves_the_time_since_boot() -> None:
    """A restart begins it again, in another boot."""
    clock = SettableClock()
    clock.advance(2)
    clock.set(5_000)
    assert clock.boot_time() == ("boot-1", 2_000)
    clock.reboot()
    clock.advance(1)
    assert clock.boot_time() == ("boot-2", 1_000)


def test_advancing_moves_both_clocks() -> None:
    """Time that passes passes for the wall clock and the monotonic clock alike."""
    clock: Clock = SettableClock(now_ms=1_000)
    assert isinstance(clock, SettableClock)
    clock.advance(1.5)
    assert clock.now_ms() == 2_500
    assert clock.monotonic_s() == 1.5


def test_small_advances_add_up_exactly() -> None:
    """A thousand steps of a tenth of a millisecond are a tenth of a second, not less."""
    clock = SettableClock(now_ms=0)
    for _ in range(1000):
        clock.advance(0.0001)
    assert clock.now_ms() == 100
    assert clock.monotonic_s() == 0.1


def test_setting_the_wall_clock_back_leaves_the_monotonic_clock() -> None:
    """An operator can put the wall clock back; measured durations don't notice."""
    clock = SettableClock(now_ms=10_000)
    clock.advance(1)
    clock.set(5_000)
    assert (clock.now_ms(), clock.monotonic_s()) == (5_000, 1.0)


def test_time_does_not_pass_backwards() -> None:
    """`advance` refuses to go back."""
    with pytest.raises(BadArgument, match=r"use set\(\)"):
        SettableClock().advance(-1)
