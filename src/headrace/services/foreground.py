"""Holding attached services until somebody ends us, or one of them dies."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from headrace.errors import ServiceFailed
from headrace.services.running import RunningService

__all__ = ["hold", "told_to_end"]

LOOK_EVERY_S = 0.5


@contextmanager
def told_to_end() -> Iterator[threading.Event]:
    """Give an event that SIGINT, SIGTERM and SIGHUP set, in place of what they usually do."""
    told = threading.Event()

    def tell(_number: int, _frame: FrameType | None) -> None:
        told.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, tell) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hold(services: Sequence[RunningService], told: threading.Event) -> None:
    """Wait until the event is set. Raises ServiceFailed when a server dies first."""
    nodes = [node for service in services for node in service.nodes]
    while not told.wait(LOOK_EVERY_S):
        for node in nodes:
            if not node.is_running:
                raise ServiceFailed(node.name, "it ended", node.log_tail())
