"""librdkafka's own log lines, thinned out on their way to logging.

A broker that is away makes every client tell every attempt: hundreds of lines a minute, each of which says less than
the error that follows. So those lines are for `DEBUG`, until it has lasted: then one warning says so.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

__all__ = ["DRIVER_LOG", "LOGGER", "DriverLog"]

LOGGER = logging.getLogger("headrace.log.kafka")
# Without a handler Python would print warnings of programs that configure no logging to stderr.
LOGGER.addHandler(logging.NullHandler())

_TROUBLE = frozenset({"FAIL", "REQTMOUT", "ERROR"})
_LASTING_S = 10.0
_WARN_EVERY_S = 60.0
# librdkafka itself repeats an identical line every 30 s only: a longer silence is the end of an outage.
_OVER_S = 45.0
_REPEAT_S = 30.0
_KINDS_KEPT = 1_000
_NUMBERS = re.compile(r"[0-9]+")


class DriverLog:
    """Takes the place of a Logger for librdkafka's clients, which call `log` from any thread."""

    def __init__(self, logger: logging.Logger = LOGGER, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._lock = threading.Lock()
        self._began_s = self._last_s = self._warned_s = float("-inf")
        self._count = 0
        self._told: dict[tuple[str, str], float] = {}

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take one line."""
        if facility in _TROUBLE:
            self._logger.debug(form, facility, client, text)
            self._hear_trouble(text)
        elif self._is_repeated(facility, text):
            self._logger.debug(form, facility, client, text)
        else:
            self._logger.log(level, form, facility, client, text)

    def _hear_trouble(self, text: str) -> None:
        now_s = self._now_s()
        with self._lock:
            if now_s - self._last_s > _OVER_S:
                self._began_s, self._count = now_s, 0
            self._last_s = now_s
            self._count += 1
            lasted_s, count = now_s - self._began_s, self._count
            if lasted_s < _LASTING_S or now_s - self._warned_s < _WARN_EVERY_S:
                return
            self._warned_s = now_s
        warn_aloud(
            self._logger,
            "connections to Kafka brokers have been failing for %.0f s (%d times); the last one: %s",
            lasted_s,
            count,
            text,
        )

    def _is_repeated(self, facility: str, text: str) -> bool:
        kind, now_s = (facility, _NUMBERS.sub("#", text)), self._now_s()
        with self._lock:
            if len(self._told) >= _KINDS_KEPT:
                self._told.clear()
            if now_s - self._told.get(kind, float("-inf")) < _REPEAT_S:
                return True
            self._told[kind] = now_s
            return False


def warn_aloud(logger: logging.Logger, message: str, *args: object) -> None:
    """Warn, by the standard library's last resort where the program has configured no logging at all."""
    logger.warning(message, *args)
    if logging.lastResort is not None and not _is_heard(logger):
        record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, message, args, None)
        logging.lastResort.handle(record)


def _is_heard(logger: logging.Logger) -> bool:
    """Return True if somebody who configured logging gets the logger's lines, be it to drop them."""
    above: logging.Logger | None = logger
    while above is not None:
        if above.disabled or any(not isinstance(handler, logging.NullHandler) for handler in above.handlers):
            return True
        above = above.parent if above.propagate else None
    return False


DRIVER_LOG = DriverLog()
