"""Telling an application that has not configured logging what it would otherwise never hear."""

from __future__ import annotations

import logging
import sys
import threading
import time

__all__ = ["tell_unheard"]

_AGAIN_AFTER_S = 60.0

_lock = threading.Lock()
_told_s: dict[str, float] = {}


def tell_unheard(line: str) -> None:
    """Write the line to stderr if nobody listens to the logs, at most once a minute.

    A library is silent where no handler is set up. But a relay that can't connect does nothing at all, and looks like
    one that has nothing to do.
    """
    if _has_handlers(logging.getLogger("headrace.outbox")) or not _is_due(line):
        return
    print(f"headrace outbox: {line}", file=sys.stderr, flush=True)


def _has_handlers(logger: logging.Logger | None) -> bool:
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _is_due(line: str) -> bool:
    now_s = time.monotonic()
    with _lock:
        is_due = now_s - _told_s.get(line, -_AGAIN_AFTER_S) >= _AGAIN_AFTER_S
        if is_due:
            for known in [known for known, at_s in _told_s.items() if now_s - at_s >= _AGAIN_AFTER_S]:
                del _told_s[known]
            _told_s[line] = now_s
    return is_due
