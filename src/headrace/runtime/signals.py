"""Signals: the first one asks for an orderly stop, the second one ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["shutdown_on_signals"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


@asynccontextmanager
async def shutdown_on_signals(signals: Sequence[signal.Signals] = STOP_SIGNALS) -> AsyncIterator[asyncio.Event]:
    """Set the event at the first signal; at the second, end the process with 128 + its number.

    Only the main thread can receive signals, so this is for programs, not for libraries. The handlers that
    were there before come back at the end.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    # A plain handler and not loop.add_signal_handler: that one waits for the loop's next turn, and the second
    # signal is for the case where the loop hangs.
    def handle(number: int, frame: FrameType | None) -> None:
        if stop_asked:
            _exit_now(number)
        stop_asked.append(number)
        loop.call_soon_threadsafe(stop.set)

    stop_asked: list[int] = []
    before = {each: signal.signal(each, handle) for each in signals}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            # None means a handler that was not set from Python; the default is the nearest there is.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _exit_now(number: int) -> NoReturn:
    os.write(2, f"second signal ({signal.Signals(number).name}): exiting at once\n".encode())
    os._exit(128 + number)
