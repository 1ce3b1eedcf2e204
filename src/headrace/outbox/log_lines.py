"""Log lines of the outbox: messages of chosen topics, decoded, and warnings for a process without logging."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence

from headrace.observe import get_logger
from headrace.outbox.messages import PendingMessage
from headrace.outbox.ports import MessageDecoder

__all__ = ["MessageLog", "warn_without_logging"]

_logger = get_logger(__name__)

_AGAIN_AFTER_S = 60.0

_lock = threading.Lock()
_written_s: dict[str, float] = {}


def warn_without_logging(line: str) -> None:
    """Write the line to stderr if no logging is set up, at most once a minute.

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
        is_due = now_s - _written_s.get(line, -_AGAIN_AFTER_S) >= _AGAIN_AFTER_S
        if is_due:
            for known in [known for known, at_s in _written_s.items() if now_s - at_s >= _AGAIN_AFTER_S]:
                del _written_s[known]
            _written_s[line] = now_s
    return is_due


class MessageLog:
    """Logs the messages of chosen topics. What it can't decode it logs as bytes: logging must never hide an error."""

    def __init__(self, topics: Sequence[str], decoder: MessageDecoder | None) -> None:
        self._topics = frozenset(topics)
        self._decoder = decoder

    def sent(self, topic: str, rows: Sequence[PendingMessage]) -> None:
        """Log messages that were sent."""
        if topic in self._topics:
            for row in rows:
                _logger.info("outbox message sent", topic=topic, id=row.id, key=row.key, **self._decoded(topic, row))

    def failed(self, topic: str, rows: Sequence[PendingMessage], error: BaseException) -> None:
        """Log messages that were being sent when an error occurred, and the error."""
        if topic in self._topics:
            for row in rows:
                decoded = self._decoded(topic, row)
                _logger.warning(
                    "outbox message not sent", topic=topic, id=row.id, key=row.key, error=str(error), **decoded
                )

    def _decoded(self, topic: str, row: PendingMessage) -> dict[str, object]:
        if row.message is None or self._decoder is None:
            return {"message": row.message}
        try:
            return {"message": self._decoder.decode(topic, row.message)}
        except Exception as undecodable:
            return {"message": row.message, "decode_error": f"{type(undecodable).__name__}: {undecodable}"}
