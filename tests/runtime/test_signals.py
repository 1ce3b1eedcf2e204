"""Signals, sent to real processes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headrace.runtime import shutdown_on_signals
from headrace.testing.processes import running

ORDERLY = """
import asyncio
from headrace.runtime import shutdown_on_signals

async def main():
    async with shutdown_on_signals() as stop:
        print("ready", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        await asyncio.to_thread(input)
        print("stopped in order", flush=True)

asyncio.run(main())
"""

HANGING = """
import asyncio, time
from headrace.runtime import shutdown_on_signals

async def main():
    async with shutdown_on_signals() as stop:
        print("ready", flush=True)
        while not stop.is_set():
            await asyncio.sleep(0.001)
        print("stopping", flush=True)
        while True:
            time.sleep(0.01)

asyncio.run(main())
"""

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT]


@pytest.mark.parametrize("number", STOPS)
def test_the_first_signal_stops_in_order(number: signal.Signals) -> None:
    """The event is set, clean-up runs, and the process ends with 0."""
    with running("-c", ORDERLY) as child:
        child.wait_for_line("ready")
        child.send_signal(number)
        child.wait_for_line("stopping")
        child.send_line("go on")
        assert child.wait() == 0
        assert "stopped in order" in child.stdout


@pytest.mark.parametrize("number", STOPS)
def test_the_second_signal_ends_the_process_even_when_its_loop_hangs(number: signal.Signals) -> None:
    """The exit code is 128 plus the signal, without waiting for anything."""
    with running("-c", HANGING) as child:
        child.wait_for_line("ready")
        child.send_signal(signal.SIGTERM)
        child.wait_for_line("stopping")
        child.send_signal(number)
        assert child.wait() == 128 + number
        assert f"second signal ({number.name}): exiting at once" in child.stderr


async def test_earlier_handlers_come_back() -> None:
    """Leaving the block restores what was there, and signals are theirs again."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        async with shutdown_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stop.wait(), 5)
            assert seen == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
