"""Logging messages of chosen topics, decoded."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.observe import get_logger
from headrace.outbox.messages import PendingMessage
from headrace.outbox.ports import Decoder

__all__ = ["Showing"]

_logger = get_logger(__name__)


class Showing:
    """Shows messages. What it can't decode it shows as bytes: looking must never hide what happened."""

    def __init__(self, topics: Sequence[str], decoder: Decoder | None) -> None:
        self._topics = frozenset(topics)
        self._decoder = decoder

    def sent(self, topic: str, rows: Sequence[PendingMessage]) -> None:
        """Show messages that were sent."""
        if topic in self._topics:
            for row in rows:
                _logger.info("outbox message sent", topic=topic, id=row.id, key=row.key, **self._decoded(topic, row))

    def failed(self, topic: str, rows: Sequence[PendingMessage], error: BaseException) -> None:
        """Show messages that were on their way when something went wrong, and what that was."""
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
