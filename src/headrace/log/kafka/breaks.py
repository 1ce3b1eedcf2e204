"""Connections of one client that broke while requests may have been on their way."""

from __future__ import annotations

import re
import time

from headrace.log.kafka.driver_log import DRIVER_LOG

__all__ = ["Breaks"]

# librdkafka tells an error that is identical to the one before at most once in 30 s.
_TOLD_ONCE_IN_S = 35.0
_BROKEN = frozenset({"FAIL", "REQTMOUT"})
# A connection that never came up has carried no request of ours.
_NEVER_UP = re.compile(r" in state (?!UP|REAUTH)[A-Z_]+")


class Breaks:
    """Remembers when a connection broke last. It is the client's logger: nothing else is told of every break.

    A request that was on its way when its connection broke may still reach the broker, at any later time, after
    librdkafka has sent it again and has had its answer.
    """

    def __init__(self) -> None:
        self._heard_s = float("-inf")

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take a line of librdkafka, which comes from inside of `poll` and `flush`, and pass it on."""
        if facility in _BROKEN and not _NEVER_UP.search(text):
            self._heard_s = time.monotonic()
        DRIVER_LOG.log(level, form, facility, client, text)

    def since(self, moment_s: float) -> bool:
        """Return True if a connection may have broken since then; what is queued must have been polled for."""
        return self._heard_s >= moment_s - _TOLD_ONCE_IN_S
